"""Proxies whose `X-Forwarded-…` headers are believed."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from laneway.gateway.http import Scope

SCHEMES = ("http", "https")


class Proxies:
    """Addresses and networks of proxies; `*`: every client is one."""

    def __init__(self, trusted: Iterable[str]) -> None:
        self._names = set(trusted)
        self._networks = [each for each in map(_network, self._names) if each is not None]

    def apply(self, scope: Scope) -> None:
        """Give the request the address and scheme of its client, if a proxy sent it."""
        if scope["client"] is None or not self._are_trusted(scope["client"][0]):
            return
        headers = scope["headers"]
        schemes = [value.strip() for name, value in headers if name == b"x-forwarded-proto"]
        if schemes and (scheme := schemes[-1].decode("latin-1")) in SCHEMES:
            scope["scheme"] = scheme
        hops = [value for name, value in headers if name == b"x-forwarded-for"]
        clients = [_address_of(each) for each in b",".join(hops).decode("latin-1").split(",")]
        others = [each for each in clients if not self._are_trusted(each)]
        client = others[-1] if others else clients[0]  # each proxy appends the one that it saw
        if client:
            scope["client"] = (client, 0)

    def _are_trusted(self, host: str) -> bool:
        if "*" in self._names or host in self._names:
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    """The network of an address, or a network; None if it is neither."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _address_of(hop: str) -> str:
    """An address of `X-Forwarded-For`, without its port."""
    hop = hop.strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop
