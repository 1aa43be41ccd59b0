"""
Which addresses may be reached: public ones only, unless an allow-list names them, and none that a
deny-list names.

The check is made at the socket (`Guard.allows`), after the name was resolved. Every spelling of
an address, a name that changes its address between two look-ups, and several addresses of one name
all end at the same place. What the URL itself shows is refused earlier, when the endpoint is set
(`check_url`).
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from laneway.errors import UsageError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

REFUSED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
"""
IPv4 networks that are not public: this host, private, link-local, documentation, multicast …, and
the address of Azure's fabric inside each of its machines.
"""

UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
"""
All public IPv6 addresses. Those outside are of this host, private, link-local, multicast, not given
to anyone, or have an IPv4 address inside, like 64:ff9b::/96 and ::ffff:0:0:0/96: translators lead
these to any IPv4 address.
"""

REFUSED_V6 = tuple(
    ipaddress.IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
"""Networks inside of these that are not public."""

GLOBAL_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in ("2001:1::1/128", "2001:1::2/128", "2001:3::/32", "2001:4:112::/48")
)
"""Public networks inside of refused ones."""

OPEN_PORTS = frozenset({80, 443})
FIRST_USER_PORT = 1024
REFUSED_PORTS = frozenset(
    {1433, 1521, 2049, 2181, 2375, 2376, 2379, 2380, 3306, 3389, 4369, 5432, 5601, 5672, 5900, 5985}
    | {6000, 6379, 6380, 6443, 7001, 8086, 8500, 9000, 9042, 9092, 9200, 9300, 10250, 11211, 15672}
    | {26379, 27017, 50070}
)
"""Ports from 1024 on of services that are no webhook receivers."""

LOCAL_ENDINGS = (".local", ".internal", ".localhost", ".localdomain", ".home.arpa", ".onion")
MAX_URL = 2_000
NOT_PUBLIC = "the address is not public"
"""What an owner of an endpoint reads; the address itself would make the sender a port scanner."""

_NUMBER = re.compile(r"0x[0-9a-f]*|\d+")
"""The last part of a name that resolvers read as an address."""

_HOST = re.compile(r"[a-z0-9_.:\-]+", re.IGNORECASE)


class Guard:
    """
    What one sender may reach.

    Arguments: `allow`: networks (`"10.0.0.0/8"`) and host names that are reached although they are
    not public, on any port, by `http:` too. `deny`: networks and host names that are never reached,
    whatever else allows them. `is_open`: everything else is allowed (`laneway dev`).
    """

    def __init__(
        self, allow: Iterable[str] = (), *, deny: Iterable[str] = (), is_open: bool = False
    ) -> None:
        self._allowed = _read("allow", allow)
        self._denied = _read("deny", deny)
        self.is_open = is_open

    def with_others(self, allow: Iterable[str]) -> Guard:
        """Add entries to the allow-list, and return the guard."""
        more = _read("allow", allow)
        self._allowed = _Entries(
            self._allowed.networks + more.networks, self._allowed.hosts | more.hosts
        )
        return self

    def opened(self) -> Guard | None:
        """The guard for trusted requests to private addresses, or None if it refuses nothing."""
        if not any(self._denied):
            return None
        guard = Guard(is_open=True)
        guard._denied = self._denied
        return guard

    def names(self, host: str) -> bool:
        """Whether the allow-list names this host."""
        return self.is_open or self._allowed.names(host)

    def denies(self, host: str) -> bool:
        """Whether the deny-list names this host, or the address that it spells."""
        return self._denied.lists(host)

    def allows(self, address: str, port: int, *, host: str = "") -> bool:
        """
        Whether a socket may be connected to this address, which a name was resolved to.

        Arguments: `address`: as the resolver returned it; `host`: of the URL.
        """
        if self._denied.names(host) or self._denied.lists(address.partition("%")[0]):
            return False
        if self.names(host):
            return True
        if "%" in address:  # a scope: an interface of this machine
            return False
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        if self._allowed.has(found):
            return True
        return is_public(found) and is_open_port(port)

    def lists(self, host: str) -> bool:
        """Whether the allow-list names this host, or the address that it spells."""
        return self.is_open or self._allowed.lists(host)


class _Entries(NamedTuple):
    """The networks and hosts of a list."""

    networks: tuple[Network, ...]
    hosts: frozenset[str]

    def names(self, host: str) -> bool:
        return host.lower().rstrip(".") in self.hosts

    def has(self, address: Address) -> bool:
        inside = address.ipv4_mapped if address.version == 6 else None
        return any(
            each is not None and each.version == network.version and each in network
            for network in self.networks
            for each in (address, inside)
        )

    def lists(self, host: str) -> bool:
        """Whether it has a host, or the address that the host spells."""
        if self.names(host):
            return True
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            return False
        return self.has(found)


def _read(name: str, entries: Iterable[str]) -> _Entries:
    networks: list[Network] = []
    hosts: set[str] = set()
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry, strict=False))
        except ValueError:
            if not _HOST.fullmatch(entry) or entry.replace(".", "").isdigit():
                raise UsageError(
                    f'push: expected {name} to list networks such as "10.0.0.0/8" and host'
                    f" names, got {entry!r:.80}"
                ) from None
            hosts.add(entry.lower().rstrip("."))
    return _Entries(tuple(networks), frozenset(hosts))


ALLOW_VARIABLE, DENY_VARIABLE = "LANEWAY_PUSH_ALLOW", "LANEWAY_PUSH_DENY"
PROXY_VARIABLE = "LANEWAY_PUSH_PROXY"
"""Both lists (separated by commas), and the proxy for all requests, of this process."""


def of_process(*, is_open: bool = False) -> Guard:
    """The guard with the lists in the environment. Raises UsageError."""
    return Guard(_listed(ALLOW_VARIABLE), deny=_listed(DENY_VARIABLE), is_open=is_open)


def _listed(variable: str) -> list[str]:
    entries = os.environ.get(variable, "").split(",")
    return [each.strip() for each in entries if each.strip()]


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public Internet. By our own table, not `is_global`."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in REFUSED_V4)
    inside = address.ipv4_mapped
    if inside is not None:
        return is_public(inside)
    if any(address in network for network in GLOBAL_V6):
        return True
    return address in UNICAST_V6 and not any(address in network for network in REFUSED_V6)


def is_open_port(port: int) -> bool:
    """Whether a webhook receiver may listen at this port."""
    return port in OPEN_PORTS or (FIRST_USER_PORT <= port <= 65_535 and port not in REFUSED_PORTS)


class SplitURL(NamedTuple):
    """A URL and its parts."""

    text: str
    scheme: str
    netloc: str
    host: str
    port: int


def split_url(url: object) -> SplitURL:
    """Split a URL that a request can be sent to. Raises UsageError, without a password in it."""
    if not isinstance(url, str) or not url or len(url) > MAX_URL:
        raise UsageError(
            f"endpoint: expected url to be text of at most {MAX_URL:,} characters, got"
            f" {type(url).__name__ if not isinstance(url, str) else f'{len(url):,} characters'}"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"endpoint: expected url to be like https://host/path: {error}") from error
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise UsageError(
            "endpoint: expected url to have visible ASCII characters only; encode others"
            " (%20, xn--…)"
        )
    if parts.scheme not in ("http", "https"):
        got = f'"{parts.scheme[:20]}:"' if parts.scheme else "a text without either"
        raise UsageError(f"endpoint: expected url to begin with https:// or http://, got {got}")
    if "@" in parts.netloc:
        raise UsageError(
            "endpoint: a user name or password in the url is refused; send a header instead"
        )
    if not host or not _HOST.fullmatch(host) or port == 0:
        raise UsageError("endpoint: expected url to have a host, like https://acme.example/hooks")
    return SplitURL(
        parts.geturl(),
        parts.scheme,
        parts.netloc,
        host,
        port or (443 if parts.scheme == "https" else 80),
    )


def check_url(url: object, guard: Guard, *, allow_private: bool, allow_http: bool) -> SplitURL:
    """
    Check an endpoint's URL as far as the URL itself shows; the socket decides later.

    Raises UsageError, which explains what to change.
    """
    parts = split_url(url)
    host, port = parts.host, parts.port
    if guard.denies(host):
        raise UsageError(f"endpoint: {NOT_PUBLIC}")
    if allow_private or guard.lists(host):
        return parts
    if parts.scheme == "http" and not allow_http:
        raise UsageError(
            "endpoint: http: sends messages unencrypted; use https:, or allow_http=True"
            " (--allow-http) for this endpoint"
        )
    if not is_open_port(port):
        raise UsageError(f"endpoint: port {port} is refused; use 443, 80, or one above 1023")
    name = host.lower().rstrip(".")
    is_literal = ":" in name or _NUMBER.fullmatch(name.rpartition(".")[2]) is not None
    if is_literal:
        try:
            public = is_public(ipaddress.ip_address(name))
        except ValueError:  # a spelling that only some resolvers know, like 0x7f.1
            public = False
        if not public:
            raise UsageError(
                f"endpoint: {NOT_PUBLIC}; use a public one, or allow_private=True"
                " (--allow-private) for this endpoint"
            )
    elif "." not in name or name.endswith(LOCAL_ENDINGS):
        raise UsageError(
            f'endpoint: expected url to have a public host name, got "{host[:80]}"; the sender\'s'
            " allow-list can name it"
        )
    return parts
