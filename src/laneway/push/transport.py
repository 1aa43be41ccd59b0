"""
HTTP requests by libcurl, on the event loop of the worker.

`Transport.start` begins a request, and its `finished` is called with the answer. One `CurlMulti`
runs all of them: its sockets are in an epoll of their own, which the event loop watches as one
file, so a request costs no task and no thread.

Every socket is opened by `Slot._open_socket`, which asks the guard about the address. Requests with
and without access to private addresses use different transports, since connections are kept and
used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import selectors
import socket
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pycurl

from laneway.push.address_guard import NOT_PUBLIC, Guard
from laneway.push.answers import Answer, ErrorClass

MAX_KEPT = 4_096
"""Bytes of an answer's body that are kept."""

MAX_BODY = 65_536
"""Bytes after which the connection is closed; the answer is complete then."""

MAX_HEADERS = 16
MAX_HEADER_BYTES = 16_384
MAX_HEADER_VALUE = 500
NEEDED = frozenset({"retry-after", "location", "webhook-retry"})
"""Headers that are kept in any case."""

MAX_CONNECTIONS, LEAST_CONNECTIONS = 1_024, 16
"""Idle connections that are kept, if a quarter of the files that may be open are as many."""

DIED = "connections were closed before an answer, at each of up to 5 tries"
"""For libcurl's text about connections of its pool that died one after the other."""

OUR_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Why no socket is opened that no receiver has caused."""

MAX_UNASKED = 65_536
"""The maximum number of bytes dropped in one read from an idle connection."""

IDLE_SECONDS = 30
NAMES_SECONDS = 600
"""How long libcurl has the addresses of a request: longer than any request takes."""

CLOCK_SECONDS = 0.001
"""A timer that ends this much too early is on time: libcurl counts milliseconds."""

MAX_SPARE = 256
"""Handles that wait for their next request."""

_TLS = {35, 51, 53, 54, 58, 59, 60, 64, 66, 77, 80, 82, 83, 90, 91, 98}
_CLASSES: dict[int, ErrorClass] = {
    1: "misconfigured",
    3: "misconfigured",
    5: "dns",
    6: "dns",
    7: "refused",
    28: "timeout",
    63: "too_large",
    100: "too_large",
    **dict.fromkeys(_TLS, "tls"),
}
"""Error classes by libcurl's code; every other code is a broken connection."""


class Settings(msgspec.Struct, kw_only=True, frozen=True):
    """
    What libcurl is told besides the address. Timeouts are milliseconds. `proxy`: of the sender; the
    guard does not judge its address if it is trusted.
    """

    method: str = "POST"
    timeout_ms: int
    connect_timeout_ms: int
    verify_tls: bool = True
    ca: str | None = None
    proxy: str | None = None
    is_proxy_trusted: bool = False
    http2: bool = True


class Destination(msgspec.Struct, kw_only=True, frozen=True):
    """
    Where requests go, and how. `name`, `name_port`: the host that has to be looked up, its proxy's
    if it has one; "": none has.
    """

    url: str
    host: str
    settings: Settings
    name: str = ""
    name_port: int = 0


class Request(msgspec.Struct, kw_only=True):
    """
    A request. `headers`: lines. `is_timed`: whether a success has its `milliseconds` too.
    `addresses`: of the destination's `name`, separated by commas; "": libcurl looks it up.
    """

    destination: Destination
    headers: list[bytes]
    body: bytes
    finished: Callable[[Answer], None]
    is_timed: bool = True
    addresses: str = ""


class Transport:
    """
    Sends requests on an event loop; everything runs in its thread. `guard`: None: every address may
    be reached.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard | None) -> None:
        self._loop = loop
        self._guard = guard
        self._multi = multi = pycurl.CurlMulti()
        multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch)
        multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)
        multi.setopt(pycurl.M_MAXCONNECTS, _max_connections())
        self._events = _Events()
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = self._is_closed = False
        self._wanted_at: float | None = None
        """When libcurl wants to be called, by the loop's clock, or None if it does not."""
        self._spare: list[Slot] = []
        self._active: dict[Any, Slot] = {}
        loop.add_reader(self._events.fileno(), self._ready)

    def start(self, request: Request) -> Slot:
        """Begin a request."""
        slot = self._spare.pop() if self._spare else Slot(self, self._guard)
        slot.prepare(request)
        self._active[slot.curl] = slot
        self._multi.add_handle(slot.curl)
        return slot

    def abort(self, slot: Slot) -> None:
        """Drop a request; its `finished` is not called."""
        if self._active.pop(slot.curl, None) is not None:
            self._multi.remove_handle(slot.curl)
            slot.close()

    def __len__(self) -> int:
        return len(self._active)

    def close(self) -> None:
        """Drop everything, and close the connections."""
        for slot in list(self._active.values()):
            self.abort(slot)
        self._is_closed = True
        self._loop.remove_reader(self._events.fileno())
        if self._timer is not None:
            self._timer.cancel()
        for slot in self._spare:
            slot.close()
        self._spare.clear()
        # It waits for names that are being resolved, which may take a hostile server's 30 s.
        threading.Thread(target=self._close_multi, name="laneway-push-end", daemon=True).start()

    def _close_multi(self) -> None:
        self._multi.close()
        self._events.close()

    def opened(self, files: list[int], *, is_http1: bool) -> None:
        """One of these sockets is of a connection that has had its first answer."""
        for file in files:
            self._events.is_http1[file] = is_http1

    # Called by libcurl

    def _watch(self, event: int, file: int, _multi: Any, _data: Any) -> None:
        self._events.watch(file, event)

    def _set_timer(self, milliseconds: int) -> None:
        # Each request sets it several times, so a timer that ends too early is left as it is.
        if milliseconds <= 0:
            self._wanted_at = None
            if milliseconds == 0 and not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._act)
            return
        self._wanted_at = wanted_at = self._loop.time() + milliseconds / 1000
        if self._timer is not None:
            if self._timer.when() <= wanted_at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(wanted_at, self._time_over)

    # Called by the event loop

    def _ready(self) -> None:
        action = self._multi.socket_action
        for file, events in self._events.ready():
            action(file, events)
        self._collect()

    def _time_over(self) -> None:
        self._timer = None
        wanted_at = self._wanted_at
        if wanted_at is not None and wanted_at > self._loop.time() + CLOCK_SECONDS:
            self._timer = self._loop.call_at(wanted_at, self._time_over)
        elif wanted_at is not None:
            self._wanted_at = None
            self._act()

    def _act(self) -> None:
        self._is_due = False
        if not self._is_closed:
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
            self._collect()

    def _collect(self) -> None:
        """Report the requests that have ended."""
        multi, active = self._multi, self._active
        left = 1
        ended: list[tuple[Slot, int, str]] = []
        while left:
            left, good, bad = multi.info_read()
            ended += [(active[curl], 0, "") for curl in good]
            ended += [(active[curl], code, text) for curl, code, text in bad]
        for slot, code, text in ended:
            multi.remove_handle(slot.curl)
            del active[slot.curl]
            answer, finished = slot.answer(code, text), slot.request.finished
            if len(self._spare) < MAX_SPARE:
                self._spare.append(slot)
            else:
                slot.close()
            finished(answer)


class Slot:
    """A handle of libcurl, for one request after the other."""

    __slots__ = (
        "_body",
        "_files",
        "_guard",
        "_header_bytes",
        "_headers",
        "_is_cut",
        "_settings",
        "_size",
        "_socket_error",
        "_url",
        "_was_blocked",
        "curl",
        "request",
        "transport",
    )

    def __init__(self, transport: Transport, guard: Guard | None) -> None:
        self.transport = transport
        self._guard = guard
        self.request: Request
        self._settings: Settings | None = None
        self._url = ""
        self._files: list[int] = []
        """The sockets that were opened for the request."""
        self.curl = curl = pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),
            (pycurl.FOLLOWLOCATION, 0),
            (pycurl.PROTOCOLS, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
            (pycurl.REDIR_PROTOCOLS, 0),
            (pycurl.SSLVERSION, pycurl.SSLVERSION_TLSv1_2),
            (pycurl.MAXAGE_CONN, IDLE_SECONDS),
            (pycurl.DNS_CACHE_TIMEOUT, NAMES_SECONDS),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.PATH_AS_IS, 1),
            (pycurl.POST, 1),
            (pycurl.NETRC, 0),
            (pycurl.WRITEFUNCTION, self._write),
            (pycurl.HEADERFUNCTION, self._read_header),
            (pycurl.OPENSOCKETFUNCTION, self._open_socket),
            (pycurl.SOCKOPTFUNCTION, self._has_opened),
        ):
            curl.setopt(option, value)

    def prepare(self, request: Request) -> None:
        """Set the handle up for a request."""
        self.request = request
        self._body: list[bytes] = []
        self._size = self._header_bytes = 0
        self._headers: dict[str, str] = {}
        self._is_cut = self._was_blocked = False
        if self._files:
            self._files = []
        self._socket_error: OSError | None = None
        curl, destination = self.curl, request.destination
        if destination.url != self._url:
            curl.setopt(pycurl.URL, destination.url)
            self._url = destination.url
        curl.setopt(pycurl.HTTPHEADER, request.headers)
        curl.setopt(pycurl.POSTFIELDS, request.body)
        if request.addresses:  # each time, so that libcurl has not forgotten it
            entry = f"+{destination.name}:{destination.name_port}:{request.addresses}"
            curl.setopt(pycurl.RESOLVE, [entry])
        settings = destination.settings
        if settings is not self._settings and settings != self._settings:
            self._configure(settings)
            self._settings = settings

    def _configure(self, settings: Settings) -> None:
        curl = self.curl
        curl.setopt(pycurl.TIMEOUT_MS, settings.timeout_ms)
        curl.setopt(pycurl.CUSTOMREQUEST, settings.method)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, settings.connect_timeout_ms)
        curl.setopt(pycurl.SSL_VERIFYPEER, int(settings.verify_tls))
        curl.setopt(pycurl.SSL_VERIFYHOST, 2 if settings.verify_tls else 0)
        if settings.ca is not None:
            curl.setopt(pycurl.CAINFO_BLOB, settings.ca)
        elif self._settings is not None and self._settings.ca is not None:
            curl.unsetopt(pycurl.CAINFO_BLOB)
        curl.setopt(pycurl.PROXY, settings.proxy or "")  # "" ignores HTTPS_PROXY
        version = pycurl.CURL_HTTP_VERSION_2TLS if settings.http2 else pycurl.CURL_HTTP_VERSION_1_1
        curl.setopt(pycurl.HTTP_VERSION, version)

    def close(self) -> None:
        self.curl.close()

    def answer(self, code: int, text: str) -> Answer:
        """How the request ended. `code`, `text`: libcurl's; 0: it has an answer."""
        curl = self.curl
        if self._files and code == 0:
            is_http1 = curl.getinfo(pycurl.INFO_HTTP_VERSION) < pycurl.CURL_HTTP_VERSION_2_0
            self.transport.opened(self._files, is_http1=is_http1)
        status = curl.getinfo(pycurl.RESPONSE_CODE)
        if code == 0 and 200 <= status < 300 and not self.request.is_timed:
            return Answer(status=status, headers=self._headers, body=b"".join(self._body))
        milliseconds = (
            curl.getinfo(pycurl.NAMELOOKUP_TIME_T) / 1000,
            curl.getinfo(pycurl.CONNECT_TIME_T) / 1000,
            curl.getinfo(pycurl.APPCONNECT_TIME_T) / 1000,
            curl.getinfo(pycurl.STARTTRANSFER_TIME_T) / 1000,
            curl.getinfo(pycurl.TOTAL_TIME_T) / 1000,
        )
        if code == 0 or (self._is_cut and status):
            return Answer(
                status=status,
                headers=self._headers,
                body=b"".join(self._body),
                milliseconds=milliseconds,
            )
        error: ErrorClass = _CLASSES.get(code, "reset")
        if code == pycurl.E_UNSUPPORTED_PROTOCOL and not text.startswith("Protocol "):
            error = "reset"  # what came is no HTTP, or has a status that is none
        detail = text if "Connection died" not in text else DIED
        if self._was_blocked and code == pycurl.E_COULDNT_CONNECT:
            error, detail = "blocked", NOT_PUBLIC
        elif self._socket_error is not None and code == pycurl.E_COULDNT_CONNECT:
            detail = f"no socket: {self._socket_error.strerror}"
            if self._socket_error.errno in OUR_ERRORS:
                return Answer(error="reset", detail=detail, is_ours=True)
        # The sender's own proxy does not answer
        settings = self.request.destination.settings
        is_ours = settings.is_proxy_trusted and code == pycurl.E_COULDNT_CONNECT
        return Answer(error=error, detail=detail[:300], milliseconds=milliseconds, is_ours=is_ours)

    # Called by libcurl

    def _open_socket(self, _purpose: int, address: Any) -> Any:
        family, kind, protocol, where = address
        try:
            destination, guard = self.request.destination, self._guard
            settings = destination.settings
            if guard is not None and not settings.is_proxy_trusted:
                if family not in (socket.AF_INET, socket.AF_INET6):
                    self._was_blocked = True
                    return pycurl.SOCKET_BAD
                host = where[0].decode() if isinstance(where[0], bytes) else where[0]
                scope = f"%{where[3]}" if len(where) > 3 and where[3] else ""
                name = destination.host if settings.proxy is None else ""
                if not guard.allows(host + scope, where[1], host=name):
                    self._was_blocked = True
                    return pycurl.SOCKET_BAD
            opened = _Opened(family, kind, protocol)
            os.close(os.dup(opened.fileno()))  # as pycurl does next, without reporting an error
            return opened
        except OSError as error:  # no more files, or a family that this machine does not have
            self._socket_error = error
            return pycurl.SOCKET_BAD
        except Exception:  # noqa: BLE001  # an address that cannot be read is not public
            self._was_blocked = True
            return pycurl.SOCKET_BAD

    def _has_opened(self, file: int, _purpose: int) -> int:
        self._files.append(file)
        return int(pycurl.SOCKOPT_OK)

    def _read_header(self, line: bytes) -> int | None:
        self._header_bytes += len(line)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._is_cut = True
            return -1
        if line.startswith(b"HTTP/"):
            self._headers = {}  # 100 Continue came before
            return None
        name, colon, value = line.partition(b":")
        if colon:
            key = name.decode("latin-1").strip().lower()
            if len(self._headers) < MAX_HEADERS or key in NEEDED:
                text = value.decode("latin-1").strip()
                self._headers[key[:100]] = text[:MAX_HEADER_VALUE]
        return None

    def _write(self, chunk: bytes) -> int | None:
        if self._size < MAX_KEPT:
            self._body.append(chunk[: MAX_KEPT - self._size])
        self._size += len(chunk)
        if self._size > MAX_BODY:
            self._is_cut = True
            return -1
        return None


class _Opened(socket.socket):
    """A socket whose duplicate libcurl uses; this one is closed immediately."""

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            self.close()


class _Events:
    """
    The sockets of a `CurlMulti`, as one file.

    libcurl stops watching a socket at the end of each request and watches it again for the next
    one. A socket is left in the epoll meanwhile, and removed when it is ready for what nobody
    waits for, as one that its peer has closed.

    What a receiver sends unasked to an idle connection of HTTP/1 would be the answer to the next
    request, perhaps of another endpoint. Such a connection is shut down, so that libcurl does not
    use it again.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._selector = None if self._epoll is not None else selectors.DefaultSelector()
        self._watched: dict[int, bool] = {}
        """By socket that may be registered: whether libcurl waits for it."""
        self.is_http1: dict[int, bool] = {}
        """By socket that has had an answer."""

    def fileno(self) -> int:
        if self._epoll is not None:
            return self._epoll.fileno()
        found: int = self._selector.fileno()  # type: ignore[union-attr]  # kqueue's has one
        return found

    def watch(self, file: int, event: int) -> None:
        """Watch a socket for what libcurl waits for: `POLL_IN`, `POLL_OUT`, or both."""
        if event == pycurl.POLL_REMOVE:
            if self._epoll is not None:
                self._watched[file] = False
            elif self._watched.pop(file, None) is not None:
                self._remove(file)
            return
        is_known = file in self._watched
        self._watched[file] = True
        if self._epoll is not None:
            _register(self._epoll, file, _EPOLL_MASKS[event], is_known=is_known)
        elif self._selector is not None:
            mask = _SELECTOR_MASKS[event]
            (self._selector.modify if is_known else self._selector.register)(file, mask)

    def _remove(self, file: int) -> None:
        try:
            if self._epoll is not None:
                self._epoll.unregister(file)
            elif self._selector is not None:
                self._selector.unregister(file)
        except (OSError, KeyError):  # libcurl has closed it already
            pass

    def ready(self) -> list[tuple[int, int]]:
        """The sockets that are ready, as libcurl names what they are ready for."""
        if self._epoll is not None:
            watched = self._watched
            ready = []
            for file, mask in self._epoll.poll(0):
                if watched.get(file):
                    ready.append((file, _action(mask)))
                else:
                    watched.pop(file, None)
                    self._remove(file)
                    if self.is_http1.pop(file, False):
                        _shut_down(file)
            return ready
        found = self._selector.select(0) if self._selector is not None else []
        return [
            (key.fd, (mask & 1) * pycurl.CSELECT_IN | (mask >> 1) * pycurl.CSELECT_OUT)
            for key, mask in found
        ]

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()
        elif self._selector is not None:
            self._selector.close()


def _shut_down(file: int) -> None:
    """Make a connection of libcurl unusable, and drop what it has received."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(file)) as connection:
        connection.setblocking(False)
        connection.shutdown(socket.SHUT_RDWR)
        connection.recv(MAX_UNASKED)


def _max_connections() -> int:
    """How many idle connections are kept; the rest of the process needs files, too."""
    try:
        import resource  # noqa: PLC0415  # not on Windows
    except ImportError:
        return MAX_CONNECTIONS
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(LEAST_CONNECTIONS, min(MAX_CONNECTIONS, most // 4))


_EPOLL_MASKS = (
    {
        pycurl.POLL_IN: select.EPOLLIN,
        pycurl.POLL_OUT: select.EPOLLOUT,
        pycurl.POLL_INOUT: select.EPOLLIN | select.EPOLLOUT,
    }
    if hasattr(select, "epoll")
    else {}
)
_SELECTOR_MASKS = {
    pycurl.POLL_IN: selectors.EVENT_READ,
    pycurl.POLL_OUT: selectors.EVENT_WRITE,
    pycurl.POLL_INOUT: selectors.EVENT_READ | selectors.EVENT_WRITE,
}


def _register(epoll: select.epoll, file: int, mask: int, *, is_known: bool) -> None:
    if is_known:
        with contextlib.suppress(FileNotFoundError):  # it was closed; another one has its number
            epoll.modify(file, mask)
            return
    epoll.register(file, mask)


@cache
def _action(mask: int) -> int:
    action: int = 0
    if mask & (select.EPOLLIN | select.EPOLLHUP):
        action |= pycurl.CSELECT_IN
    if mask & select.EPOLLOUT:
        action |= pycurl.CSELECT_OUT
    if mask & select.EPOLLERR:
        action |= pycurl.CSELECT_ERR
    return action
