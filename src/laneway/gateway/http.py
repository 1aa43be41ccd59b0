"""Requests and answers of one HTTP exchange, on ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    MutableMapping,
)
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from laneway.gateway.problems import Problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
T = TypeVar("T")

MAX_BODY = 16 << 20
"""Maximum bytes of a request's body, or of each line of a stream of lines, which has no end."""

MAX_HEAD = 32 << 10
"""Most bytes of a request's line and headers."""

IDLE_SECONDS = 60.0
"""How long a client may send nothing in the middle of a request, or read nothing of an answer."""

JSON = b"application/json"
JSON_TYPES = ("application/json", "")
"""Content types of requests that are read as JSON."""

MSGPACK_TYPES = frozenset(
    {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"}
)
"""Content types of requests that are read as MessagePack, which becomes JSON first."""

MSGPACK = b"application/msgpack"

PROBLEM = b"application/problem+json"
NDJSON = b"application/x-ndjson"


def security_headers(embed_origins: Collection[str] = ()) -> tuple[tuple[bytes, bytes], ...]:
    """Headers of every answer. `embed_origins`: of sites that may show it in a frame."""
    ancestors = " ".join(sorted(embed_origins)) or "'none'"
    return (
        (
            b"content-security-policy",
            b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
            b" connect-src 'self'; font-src 'self'; form-action 'self';"
            b" frame-ancestors %s; base-uri 'none'" % ancestors.encode(),
        ),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
    )


SECURITY_HEADERS = security_headers()

NO_STORE = b"no-store"
IMMUTABLE = b"public, max-age=31536000, immutable"
"""Values of `Cache-Control`: of answers, and of files whose URL changes with their content."""

HTML = b"text/html; charset=utf-8"
FORM = "application/x-www-form-urlencoded"
MAX_FORM = 1 << 20
"""Most bytes of a form."""

MAX_FORM_FIELDS = 1000
MAX_QUERY_FIELDS = 100


EXCHANGE = "laneway.exchange"
"""The name of an ASGI extension: what a server does for a request past ASGI's events."""


class Exchange(Protocol):
    """
    One request of a server that bounds heads to `MAX_HEAD` and immediately sees a disconnect.
    Other servers have ASGI's events only.
    """

    @property
    def has_arrived(self) -> bool:
        """Whether the next event has arrived."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing more reaches the client."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has ended the connection, or its side of it."""

    def close(self) -> None:
        """End the connection without an answer."""

    def when_gone(self) -> asyncio.Future[None]:
        """Is done once the client is gone."""


_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Disconnected(Exception):  # not an error of the gateway
    """The client has gone."""


class Response(msgspec.Struct):
    """
    An answer.

    `on_lost`: called if the client has gone before the answer was sent. `undo`: of a changed
    policy, its pattern and the operator's fields before, for the audit log. `cache`: the value of
    `Cache-Control`.
    """

    status: int = 200
    body: bytes = b""
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = []
    on_lost: Callable[[], Awaitable[None]] | None = None
    undo: tuple[str, dict[str, Any]] | None = None
    cache: bytes = NO_STORE


class Stream(msgspec.Struct):
    """An answer that is sent piece by piece; the client may read more slowly than it is made."""

    chunks: AsyncIterator[bytes]
    content_type: bytes = NDJSON
    status: int = 200
    headers: list[tuple[bytes, bytes]] = []


Readers = dict["Request", asyncio.AbstractEventLoop]
"""The requests that wait for more of their bodies, with their event loops."""


class Request:
    """One request. Its body is read by `body`, `chunks` or `lines`, once."""

    __slots__ = (
        "_ended",
        "_ends_at",
        "_exchange",
        "_is_read",
        "_limit",
        "_media_type",
        "_prefix",
        "_problem",
        "_query",
        "_readers",
        "_receive",
        "_send",
        "header_bytes",
        "headers",
        "method",
        "more_headers",
        "on_open",
        "scope",
        "security",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        prefix: str = "",
        readers: Readers | None = None,
    ) -> None:
        """
        `prefix`: of the path, which a proxy may have removed. `readers`: has the request while it
        waits for more of its body.
        """
        self._readers = readers
        self._limit: asyncio.Timeout | None = None
        self._ends_at: float | None = None
        self._ended: asyncio.Future[None] | None = None
        self._problem: Problem | None = None
        self.on_open: Callable[[Request], None] | None = None
        """Called before it waits or streams; from then on `end` may be called."""
        self.scope = scope
        self._prefix: str = scope.get("root_path") or prefix
        self.method: str = scope["method"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._is_read = False
        extensions = scope.get("extensions")
        self._exchange: Exchange | None = extensions.get(EXCHANGE) if extensions else None
        self.header_bytes = dict(reversed(self.headers))
        """The first value of each header, by its name in lower case."""
        self._query: dict[str, str] | None = None
        self._media_type: str | None = None
        self.more_headers: tuple[tuple[bytes, bytes], ...] = ()
        """Headers for the answer, whatever it is."""
        self.security = SECURITY_HEADERS

    @property
    def has_bounded_head(self) -> bool:
        """Whether the server has refused it if its head is larger than `MAX_HEAD`."""
        return self._exchange is not None

    def header(self, name: bytes) -> str | None:
        """The value of a header; the first one if it comes twice. `name`: in lower case."""
        value = self.header_bytes.get(name)
        return None if value is None else value.decode("latin-1")

    def text(self, name: bytes) -> str | None:
        """As `header`, of a value in UTF-8. Raises Problem if it is not, or comes twice."""
        value = self.header_bytes.get(name)
        if value is None:
            return None
        if self.count(name) > 1:
            raise Problem("bad-request", f"header {name.decode()}: given twice; give it once")
        return decoded(name, value)

    def count(self, name: bytes) -> int:
        """How often a header comes. `name`: in lower case."""
        if len(self.header_bytes) == len(self.headers):  # none comes twice
            return int(name in self.header_bytes)
        return sum(1 for each, _ in self.headers if each == name)

    @property
    def bearer_token(self) -> str | None:
        """The token of the header `Authorization`, or None if it has none."""
        value = self.header_bytes.get(b"authorization")
        if value is None:
            return None
        kind, _, token = value.decode("latin-1").partition(" ")
        return token.strip() if token and kind.lower() == "bearer" else None

    def path(self) -> str:
        """The path as it was sent, relative to the mount point."""
        return _path_of(self.scope, self._prefix)

    def url(self, path: str) -> str:
        """The path of a link to a path of the gateway, such as `/docs`: with the mount point."""
        return f"{self._prefix}{path}"

    def target(self) -> str:
        """The path and query of this request, as a link to it."""
        query = self.scope["query_string"].decode("latin-1")
        path = _path_of(self.scope, self._prefix)
        return self.url(f"{path}?{query}" if query else path)

    @property
    def content_type(self) -> str:
        """
        The media type of the body, without parameters; "" without one. That of MessagePack is
        JSON, because `body` makes JSON of it.
        """
        found = self._sent_type()
        return JSON_TYPES[0] if found in MSGPACK_TYPES else found

    @property
    def is_packed(self) -> bool:
        """Whether the body was sent as MessagePack."""
        return self._sent_type() in MSGPACK_TYPES

    def _sent_type(self) -> str:
        if self._media_type is None:
            sent = self.header(b"content-type") or ""
            self._media_type = sent.partition(";")[0].strip().lower()
        return self._media_type

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the URL. Raises Problem if one comes twice."""
        if self._query is None:
            self._query = _query_of(self.scope["query_string"])
        return self._query

    @property
    def address(self) -> str:
        """The client's address; "" if the server does not know it."""
        client = self.scope.get("client")
        return client[0] if client else ""

    # The body

    async def body(self, limit: int = MAX_BODY, *, as_sent: bool = False) -> bytes:
        """
        The whole body, MessagePack as JSON unless `as_sent`. Raises Problem if it is too large or
        too slow, and Disconnected.
        """
        self._check_coding()
        content = await self._whole_body(limit)
        if as_sent or not self.is_packed:
            return content
        try:
            value = msgspec.msgpack.decode(content)
            if not _is_finite(value):  # it would become null
                raise ValueError("a number is not finite")
            return msgspec.json.encode(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise Problem("bad-request", f"body: it is not MessagePack of JSON ({error})") from None

    def _check_coding(self) -> None:
        """Raise Problem if the body is compressed: nothing here would decompress it."""
        coding = self.header_bytes.get(b"content-encoding")
        if coding is not None and coding.lower() not in (b"", b"identity"):
            raise Problem(
                "unsupported-media",
                f"expected a body without content-encoding, got {coding.decode('latin-1'):.80};"
                " send it as it is",
                headers=(("accept-encoding", "identity"),),
            )

    async def _whole_body(self, limit: int) -> bytes:
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size, is_last = 0, False
        while not is_last:
            chunk, is_last = await self._next_chunk()
            chunks.append(chunk)
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
        return b"".join(chunks)

    async def form(self) -> dict[str, list[str]]:
        """The fields of a form, each with its values in their order. Raises as `body`."""
        if self.content_type != FORM:
            raise Problem(
                "unsupported-media", f"expected a form ({FORM}), got {self.content_type:.80}"
            )
        found: dict[str, list[str]] = {}
        for name, value in _pairs(await self.body(MAX_FORM), MAX_FORM_FIELDS, "form"):
            found.setdefault(name, []).append(value)
        return found

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """
        The lines of the body as they arrive, without empty ones. Raises as `body`, for each line,
        and the problem of `end`.
        """
        self._check_coding()
        self._open()
        rest, is_last = bytearray(), False
        while not is_last:
            chunk, is_last = await self._next_chunk()
            self._check_ended()
            rest += chunk
            if b"\n" in chunk:  # a long line is not searched again and again
                *lines, rest = rest.split(b"\n")
                if found := [bytes(line) for line in lines if line.strip()]:
                    yield found
            if len(rest) > MAX_BODY:
                raise _too_large(MAX_BODY)
        if rest.strip():
            yield [bytes(rest)]

    async def _next_chunk(self) -> tuple[bytes, bool]:
        if self._is_read:
            return b"", True
        event = await self._next_event()
        if event["type"] == "http.disconnect":
            raise Disconnected
        self._is_read = not event.get("more_body", False)
        return event.get("body", b""), self._is_read

    async def _next_event(self) -> MutableMapping[str, Any]:
        if self._exchange is not None and self._exchange.has_arrived:
            return await self._receive()  # a timeout is not needed, and costs more
        if self._readers is not None:
            self._readers[self] = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(IDLE_SECONDS) as self._limit:
                if self._ends_at is not None:
                    self._limit.reschedule(self._ends_at)
                return await self._receive()
        except TimeoutError:
            if self._ends_at is not None:
                raise Problem(
                    "stopping", "the gateway is stopping; send the rest to another one"
                ) from None
            raise Problem(
                "request-timeout", f"no part of the request arrived for {IDLE_SECONDS:g} s"
            ) from None
        finally:
            self._limit = None
            if self._readers is not None:
                self._readers.pop(self, None)

    def end_reading(self, seconds: float) -> None:
        """The gateway stops: what has not arrived by then is a Problem. On the event loop."""
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + seconds
            if self._limit is not None:
                self._limit.reschedule(self._ends_at)

    # A client that goes away

    def _open(self) -> asyncio.Future[None]:
        """The request waits or streams. Returns what is done once `end` was called."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.on_open is not None:
                self.on_open(self)
        return self._ended

    @property
    def was_opened(self) -> bool:
        """Whether it has waited or streamed, so that `on_open` was called."""
        return self._ended is not None

    def end(self, problem: Problem) -> None:
        """End what waits or streams, because its caller may no longer have it. On the loop."""
        if self._ended is not None and not self._ended.done():
            self._problem = problem
            self._ended.set_result(None)

    def _check_ended(self) -> None:
        if self._problem is not None:
            raise self._problem

    async def while_there(self, work: Coroutine[Any, Any, T]) -> T:
        """
        Await `work`. If the client goes meanwhile, cancel it and raise Disconnected, and if `end`
        is called, its problem.

        For a request whose body has been read.
        """
        ended = self._open()
        task = asyncio.ensure_future(work)
        gone = self._when_gone()
        waits: set[asyncio.Future[Any]] = {task, gone, ended}
        try:
            if not ended.done():
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    return task.result()
            self._check_ended()
            raise Disconnected
        finally:
            await _cancel(gone)
            await _cancel(task)

    async def is_gone(self) -> bool:
        """Whether the client has gone by now, as far as the server knows."""
        if self._exchange is not None:
            await asyncio.sleep(0)  # in the next iteration the server sees it,
            await asyncio.sleep(0)  # and in this one it has
            return self._exchange.is_gone
        gone = self._when_gone()
        await asyncio.sleep(0)
        is_gone = gone.done() and not gone.cancelled() and gone.exception() is None
        await _cancel(gone)
        return is_gone

    def _when_gone(self) -> asyncio.Future[None]:
        if self._exchange is not None:
            return self._exchange.when_gone()
        return asyncio.ensure_future(self._wait_gone())

    async def _wait_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def give_up(self) -> None:
        """Nobody waits for the answer: the client is gone."""
        if self._exchange is not None:
            self._exchange.close()

    # The answer

    async def respond(self, response: Response) -> None:
        """Send the answer."""
        if response.on_lost is not None and await self.is_gone():
            await response.on_lost()
            raise Disconnected
        if response.content_type in (JSON, PROBLEM) and self._wants_msgpack():
            response.body = msgspec.msgpack.encode(msgspec.json.decode(response.body))
            response.content_type = MSGPACK
        headers = [
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % len(response.body)),
            (b"cache-control", response.cache),
            *self.more_headers,
            *response.headers,
            *self.security,
        ]
        await self._send(
            {"type": "http.response.start", "status": response.status, "headers": headers}
        )
        body = b"" if self.method == "HEAD" else response.body
        await self._send({"type": "http.response.body", "body": body})

    def _wants_msgpack(self) -> bool:
        """Whether the client accepts MessagePack, or sends it and does not ask for JSON."""
        accepted = self.header(b"accept") or ""
        if "msgpack" in accepted:
            return True
        return self.is_packed and "json" not in accepted

    async def stream(self, stream: Stream) -> None:
        """Send an answer piece by piece. It ends early if the client goes, or after `end`."""
        async with contextlib.aclosing(stream.chunks) as chunks:  # type: ignore[type-var]
            await self._send(
                {
                    "type": "http.response.start",
                    "status": stream.status,
                    "headers": [
                        (b"content-type", stream.content_type),
                        (b"cache-control", NO_STORE),
                        *self.security,
                        *self.more_headers,
                        *stream.headers,
                    ],
                }
            )
            if self.method != "HEAD":
                try:
                    async for chunk in chunks:
                        await self._send_chunk(chunk)
                except Problem as problem:
                    if problem is not self._problem:
                        raise
            await self._send({"type": "http.response.body", "body": b""})

    async def _send_chunk(self, chunk: bytes) -> None:
        if self._exchange is not None and self._exchange.is_lost:
            raise Disconnected  # asyncio logs writes to a lost connection
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end; its error, if any, belongs to nobody."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def decoded(name: bytes, value: bytes) -> str:
    """The value of a header in UTF-8. Raises Problem."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Problem(
            "bad-request",
            f"header {name.decode('latin-1'):.80}: expected UTF-8, got {value!r:.80}",
        ) from None


def _is_finite(value: Any) -> bool:
    """Whether a value has no number that JSON lacks."""
    values = [value]
    while values:
        each = values.pop()
        if type(each) is float and not math.isfinite(each):
            return False
        if type(each) is dict:
            values += each.values()
        elif type(each) is list:
            values += each
    return True


def _path_of(scope: Scope, prefix: str) -> str:
    """The path as it was sent, relative to the mount point."""
    raw = scope.get("raw_path")
    path: str = raw.decode("latin-1") if raw else scope["path"]
    path = path.partition("?")[0]
    if prefix and path.startswith(prefix + "/"):
        path = path[len(prefix) :]
    return path


def segments_of(path: str) -> list[str]:
    """
    The decoded segments of a path. Raises Problem.

    They are separated before they are decoded, so a topic's name may contain `/`, as `%2F`.
    """
    segments = path.split("/")[1:]
    if "%" not in path:
        return segments
    if _BAD_ESCAPE.search(path):
        raise Problem(
            "bad-request", "the path has a % without two hexadecimal digits; write % itself as %25"
        )
    try:
        return [unquote(segment, errors="strict") for segment in segments]
    except UnicodeDecodeError as error:
        raise Problem("bad-request", f"the path is not UTF-8 ({error.reason})") from None


def _pairs(text: bytes, most: int, what: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(text),
            errors="strict",
            max_num_fields=most,
        )
    except ValueError as error:  # also text that is not UTF-8
        raise Problem("bad-request", f"the {what} cannot be read: {error}") from None


def _query_of(query: bytes) -> dict[str, str]:
    if not query:
        return {}
    found: dict[str, str] = {}
    for name, value in _pairs(query, MAX_QUERY_FIELDS, "query"):
        if name in found:
            raise Problem("bad-request", f"query: {name:.80}: given twice; give it once")
        found[name] = value
    return found


def _too_large(limit: int) -> Problem:
    return Problem(
        "too-large",
        f"the request has more than {limit:,} bytes; send fewer messages in a request, or lines of"
        " application/x-ndjson",
    )
