"""
Addresses of hosts, looked up in threads of our own.

The system's resolver may take 20 s for a name whose servers do not answer, and cannot be stopped.
libcurl has about 20 threads for all names, so a few such names would hold up every endpoint. Here:

- The look-ups of one registrable domain have few threads, and names that failed have at most half
  of all, so new names are looked up despite any number of hanging ones.
- Addresses are looked up again after a minute, and used meanwhile. If no server answers, they are
  used for an hour.
- A name that was not found is not asked for again for 5 s, doubled up to 150 s: half of a breaker's
  longest back-off, so each of its probes asks again.

Nothing here decides which addresses may be reached: the guard checks each at its socket.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable

import msgspec

Lookup = Callable[[str], list[str]]
"""Returns the addresses of a host, in a thread. Raises OSError."""

log = logging.getLogger("laneway.push")

MAX_THREADS = 128
MAX_OF_DOMAIN = 4
"""Look-ups of one registrable domain at the same time; one for names that failed before."""

LOOKUP_SECONDS = 5.0
"""A look-up that takes longer has failed. If it ends after all, its answer counts."""

FRESH_SECONDS, USABLE_SECONDS = 60.0, 3_600.0
AGAIN_SECONDS, MAX_AGAIN_SECONDS = 5.0, 150.0
MAX_HOSTS = 20_000
MAX_ADDRESSES = 16
START_SECONDS = 1.0
"""How soon a thread is tried to start again."""

FINAL = frozenset({socket.EAI_NONAME, socket.EAI_FAIL, getattr(socket, "EAI_NODATA", 0)})
"""Errors by which a name's own servers say that it has no address."""


class Host(msgspec.Struct, eq=False):
    """
    What is known of a host. With neither `addresses` nor `problem`, it is being looked up.

    `addresses`: separated by commas. `problem`: why none were found. `failures`: failed look-ups in
    a row. `waiting`: called when the look-up ends or is late. `is_slow`: nobody waits for it with a
    slot. `asked_at`: when it was last asked for. Times are the loop's.
    """

    name: str
    addresses: str = ""
    problem: str = ""
    failures: int = 0
    is_slow: bool = False
    waiting: list[Callable[[], None]] = []
    asked_at: float = 0.0
    fresh_until: float = 0.0
    usable_until: float = 0.0
    next_at: float = 0.0
    """When it may be looked up again."""
    is_asked: bool = False
    """Whether it waits for a thread, or has one."""
    late: asyncio.TimerHandle | None = None
    """Until then its look-up is in time."""


class _Lane(msgspec.Struct, eq=False):
    """The names of a registrable domain that wait for a thread, and how many have one."""

    most: int
    queue: deque[Host] = msgspec.field(default_factory=deque)
    active: int = 0


class Resolver:
    """
    Looks hosts up; everything but the look-up itself runs in the event loop's thread.

    `lookup`: another one than the system's, for tests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lookup: Lookup | None = None) -> None:
        self._loop = loop
        self._lookup = lookup or look_up
        self._hosts: dict[str, Host] = {}
        self._lanes: dict[tuple[str, bool], _Lane] = {}
        self._ready: tuple[dict[tuple[str, bool], None], ...] = ({}, {})
        """Lanes that may begin a look-up, in their order; apart those of names that failed."""
        self._active = [0, 0]

    def find(self, name: str) -> Host:
        """What is known of a host; looks it up if it is time to."""
        host = self._hosts.get(name)
        if host is None:
            host = Host(name)
            if len(self._hosts) >= MAX_HOSTS:
                self._forget_some()
            if len(self._hosts) >= MAX_HOSTS:  # all wait for threads
                return host
            self._hosts[name] = host
        now = self._loop.time()
        if now >= host.fresh_until and not host.is_asked:
            if host.addresses and now >= host.usable_until:
                host.addresses = ""
            if now >= host.next_at:
                host.problem, host.is_asked, host.asked_at = "", True, now
                self._queue(host)
        return host

    def doubt(self, name: str) -> None:
        """Look a host up before its next request: its addresses were refused."""
        host = self._hosts.get(name)
        if host is not None and self._loop.time() >= host.next_at:
            host.addresses, host.fresh_until = "", 0.0

    def _forget_some(self) -> None:
        """Forget half of the hosts, the ones that were known first."""
        for name in list(self._hosts)[: MAX_HOSTS // 2]:
            if not self._hosts[name].is_asked:
                del self._hosts[name]

    def _queue(self, host: Host) -> None:
        key = (domain_of(host.name), host.failures > 0)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(1 if host.failures else MAX_OF_DOMAIN)
        lane.queue.append(host)
        self._start(key)

    def _start(self, key: tuple[str, bool] | None = None) -> None:
        """Begin as many look-ups as there are threads; `key`: a lane that may have become ready."""
        if key is not None:
            lane = self._lanes[key]
            if lane.queue and lane.active < lane.most:
                self._ready[key[1]][key] = None
        good, failed = self._ready
        while sum(self._active) < MAX_THREADS:
            if good:
                key = next(iter(good))
            elif failed and self._active[True] < MAX_THREADS // 2:
                key = next(iter(failed))
            else:
                return
            ready, lane = self._ready[key[1]], self._lanes[key]
            del ready[key]
            try:  # `Thread.start` would hold the loop until the thread runs: 5 ms on a busy machine
                _thread.start_new_thread(self._look_up, (lane.queue[0], key))
            except RuntimeError as error:  # the machine has no more threads
                log.warning("push: %s; names are resolved later", error)
                ready[key] = None
                self._loop.call_later(START_SECONDS, self._start)
                return
            host = lane.queue.popleft()
            lane.active += 1
            self._active[key[1]] += 1
            host.late = self._loop.call_later(LOOKUP_SECONDS, self._late, host)
            if lane.queue and lane.active < lane.most:
                ready[key] = None

    def _look_up(self, host: Host, key: tuple[str, bool]) -> None:
        """In a thread."""
        found: list[str] | OSError
        try:
            found = self._lookup(host.name)
        except OSError as error:
            found = error
        except Exception as fault:  # noqa: BLE001  # such as a name that cannot be encoded
            found = socket.gaierror(socket.EAI_NONAME, str(fault))
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._found, host, key, found)

    def _found(self, host: Host, key: tuple[str, bool], found: list[str] | OSError) -> None:
        self._active[key[1]] -= 1
        lane = self._lanes[key]
        lane.active -= 1
        if not lane.queue and not lane.active:
            del self._lanes[key]
            self._start()
        else:
            self._start(key)
        host.is_asked = False
        is_late = host.late is None
        if host.late is not None:
            host.late.cancel()
        now = self._loop.time()
        addresses = [] if isinstance(found, OSError) else _usable(found)
        if addresses:
            host.addresses, host.problem = ",".join(addresses), ""
            host.failures, host.is_slow = 0, False
            host.fresh_until, host.usable_until = now + FRESH_SECONDS, now + USABLE_SECONDS
            host.next_at = now + AGAIN_SECONDS
        elif not isinstance(found, OSError):
            self._failed(host, "the name has no address", is_final=True, is_counted=is_late)
        elif isinstance(found, socket.gaierror):
            problem, is_final = found.strerror or str(found), found.errno in FINAL
            self._failed(host, problem, is_final=is_final, is_counted=is_late)
        else:  # this machine's fault, such as no more files
            log.warning("push: names cannot be resolved: %s", found)
            host.next_at = now + START_SECONDS
        _call_waiting(host)

    def _late(self, host: Host) -> None:
        host.late = None
        self._failed(host, f"no answer within {LOOKUP_SECONDS:g} s", is_final=False)
        _call_waiting(host)

    def _failed(
        self, host: Host, problem: str, *, is_final: bool, is_counted: bool = False
    ) -> None:
        now = self._loop.time()
        if not is_counted:
            seconds = min(AGAIN_SECONDS * 2.0 ** min(host.failures, 16), MAX_AGAIN_SECONDS)
            host.failures, host.is_slow = host.failures + 1, True
            host.next_at = now + seconds
        if is_final or now >= host.usable_until:
            host.addresses, host.problem = "", problem


def _call_waiting(host: Host) -> None:
    waiting, host.waiting = host.waiting, []
    for call in waiting:
        call()


def look_up(name: str) -> list[str]:
    """The addresses of a host, by the system's resolver."""
    found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def _usable(addresses: list[str]) -> list[str]:
    """Addresses as libcurl takes them; none of an interface of this machine, which it cannot."""
    plain = dict.fromkeys(each for each in addresses if "%" not in each)
    return [f"[{each}]" if ":" in each else each for each in plain][:MAX_ADDRESSES]


def domain_of(name: str) -> str:
    """
    The registrable domain of a name, about: its last two labels, or three as in `acme.co.uk`.
    """
    labels = name.lower().rstrip(".").split(".")
    is_below = len(labels) > 2 and len(labels[-1]) == 2 and len(labels[-2]) <= 3
    return ".".join(labels[-3 if is_below else -2 :])
