"""An endpoint as a sender has it in memory, and the requests that are sent to it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from urllib.parse import urlsplit

import msgspec

from laneway import units
from laneway.errors import LanewayError, UsageError
from laneway.message import Lease
from laneway.push import breaker, payloads, signature
from laneway.push.address_guard import Guard, check_url
from laneway.push.secret_store import SecretStore
from laneway.push.table import Record
from laneway.push.transport import Destination, Settings

MAX_CONTENT_TYPE = 200
PROXY_PORTS = {"http": 80, "https": 443}
USER_AGENT = f"Laneway/{version('laneway')} (+https://github.com/laneway-project/laneway)"
TRACE_HEADERS = ("traceparent", "tracestate")
_TRACES = frozenset(TRACE_HEADERS)


class Target(msgspec.Struct):
    """
    An endpoint as a sender has it in memory.

    `signers`: of its secrets, with the time until which each signs. `headers`: lines that every
    request has. `problem`: why nothing can be sent; `is_ours`: it is a fault of this sender's
    settings. `open_until`: when the breaker's back-off ends (monotonic seconds).
    """

    stored: bytes
    record: Record
    window: breaker.Window
    signers: list[tuple[signature.Signer, int]] = []
    headers: list[bytes] = []
    host: str = ""
    port: int = 443
    destination: Destination | None = None
    """Where its requests go, or None if not known yet."""
    problem: str | None = None
    is_ours: bool = False
    open_until: float = 0.0
    backs_off_from: float = 0.0
    """
    When its topic last began to back off (monotonic seconds): messages that were leased before go
    back. The back-off itself is the store's, and an operator may end it.
    """
    busy: int = 0
    """How many times in a row it answered 429 or 503, as far as its topic backed off for each."""
    busy_since_us: int = 0
    busy_until: float = 0.0
    """When the last of these back-offs ends (monotonic seconds)."""
    opens: int = 0
    is_gone: bool = False
    """Whether it answered 410, and is not yet stored as disabled."""
    is_noted: bool = False
    """Whether its condition has an entry that a success ends."""


def fill(target: Target, topic: str, guard: Guard, secrets: SecretStore) -> None:
    """Read a target's record: its address, its secrets, its request headers."""
    record = target.record
    try:
        url = check_url(
            record.url, guard, allow_private=record.allow_private, allow_http=record.allow_http
        )
    except UsageError as error:
        target.problem = str(error)
        return
    target.host, target.port = url.host, url.port
    try:
        target.signers = [
            (
                signature.Key(secrets.decrypt(each.stored, topic), each.is_ed25519).signer(),
                each.until_us,
            )
            for each in record.secrets
        ]
        if not (record.headers or record.sealed):
            target.headers = _PLAIN_HEADERS
            return
        headers = record.headers | {
            name: secrets.decrypt(sealed, topic).decode("latin-1")
            for name, sealed in record.sealed.items()
        }
    except LanewayError as error:
        target.problem, target.is_ours = str(error), True
        return
    headers.setdefault("user-agent", USER_AGENT)
    target.headers = _lines(headers)


def _lines(headers: Mapping[str, str]) -> list[bytes]:
    """The header lines of each request. libcurl adds none of its own."""
    return [b"expect:", b"accept:"] + [
        f"{name}: {value}".encode("latin-1") if value else f"{name};".encode()
        for name, value in headers.items()
    ]


_PLAIN_HEADERS = _lines({"user-agent": USER_AGENT})


def headers_for(
    target: Target, lease: Lease, body: bytes, content_type: str, now_us: int
) -> list[bytes]:
    """The header lines of a request for a message, its signature included."""
    passed_on = lease.headers
    message_id = lease.id
    if passed_on is not None and signature.REPLAY_HEADER in passed_on:
        message_id = passed_on[signature.REPLAY_HEADER]
    webhook_id = signature.webhook_id(message_id).encode()
    timestamp = now_us // units.SECOND
    signers = [each for each, until_us in target.signers if not until_us or until_us > now_us]
    headers = [
        *target.headers,
        _content_type(content_type),
        b"webhook-id: " + webhook_id,
        b"webhook-timestamp: %d" % timestamp,
        b"webhook-signature: " + signature.sign(signers, webhook_id, timestamp, body),
        b"webhook-attempt: %d" % lease.attempt,
        b"idempotency-key: " + webhook_id,
    ]
    if target.record.topic_header and lease.topic.isascii():
        headers.append(b"webhook-topic: " + lease.topic.encode())
    if target.record.content == "cloudevents-binary":
        headers += payloads.event_headers(lease)
    if passed_on is not None and not _TRACES.isdisjoint(passed_on):
        headers += _passed_on(passed_on)
    return headers


def destination_of(target: Target, proxy: str | None) -> Destination:
    """Where a target's requests go. `proxy`: the sender's, which is trusted."""
    if target.destination is None:
        target.destination = _destination(target, proxy)
    return target.destination


def _destination(target: Target, proxy: str | None) -> Destination:
    record = target.record
    settings = Settings(
        method=record.method,
        timeout_ms=round(record.timeout * 1000),
        connect_timeout_ms=round(min(record.connect_timeout, record.timeout) * 1000),
        verify_tls=record.verify_tls,
        ca=record.ca,
        proxy=proxy or record.proxy,
        is_proxy_trusted=proxy is not None,
        http2=record.http2 == "auto" and record.url.startswith("https:"),
    )
    name, port = target.host, target.port
    if settings.proxy is not None:
        parts = urlsplit(settings.proxy)
        name, port = parts.hostname or "", parts.port or PROXY_PORTS.get(parts.scheme, 1080)
    return Destination(
        url=record.url,
        host=target.host,
        settings=_shared(settings),
        name="" if _is_address(name) else name,
        name_port=port,
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@lru_cache(256)
def _shared(settings: Settings) -> Settings:
    """The same object for equal settings, which most endpoints have."""
    return settings


@lru_cache(256)
def _content_type(text: str) -> bytes:
    """The header of a content type, if it can stand in one: it is the publisher's."""
    if len(text) <= MAX_CONTENT_TYPE and text.isascii() and text.isprintable():
        return b"content-type: " + text.encode()
    return b"content-type: application/octet-stream"


def _passed_on(headers: Mapping[str, str]) -> list[bytes]:
    """The headers of a message that the request has, too: those of traces."""
    return [
        f"{name}: {headers[name]}".encode()
        for name in TRACE_HEADERS
        if name in headers and headers[name].isascii() and headers[name].isprintable()
    ]
