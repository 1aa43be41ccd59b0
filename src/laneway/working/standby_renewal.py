"""
Keeps a worker's leases while no thread of the worker can run.

A handler in C code, or one slow regular expression, may hold the interpreter for longer than a
lease lasts. No thread of the worker extends leases then, and other workers would get all messages
that it holds. Each worker process therefore has a second one that handles nothing: `lease_standby`.

They share a piece of memory (layout: `lease_standby`). The engine thread writes each lease into it
before its handler can begin, and the time of each of its passes. While passes are recent, the
second process only looks at that time, a few times in a heartbeat timeout. If there was none for
1/3 of the shortest lease, it opens the store and extends the leases itself, every 1/3, until

- the worker has a pass again; it then reads until when its leases were extended (`renewed`), or
- `MAX_STALL` heartbeat timeouts have passed without one, as the handler may never end, or
- the worker has ended, or was stopped by a signal.

Example, with leases of 9 s: a pass at 0 s, and a handler holds the interpreter from 0.1 to 11 s.
All leases last until 6 s at least. The second process extends them to 12 s at 3 s, to 15 s at 6 s
and to 18 s at 9 s. At 11 s the worker continues, and settles as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from laneway.engines import opened_with
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared import forking
from laneway.units import SECOND
from laneway.working.lease_standby import (
    COUNT,
    FIELD_BYTES,
    FIELDS,
    HEAD_FIELDS,
    PASS_NS,
    RENEWED_NS,
    SHORTEST_US,
)
from laneway.working.worker_delivery import WorkerDelivery

log = logging.getLogger("laneway.worker")

MAX_STALL = 10
"""Heartbeat timeouts after which the leases of a worker without a pass are left to end."""

SPARE_LEASES = 8_192
"""Room in the memory for leases that have ended; once it is used, they are removed."""


class StandbyRenewal:
    """The worker's side: the memory, and the second process from `start` to `close`."""

    def __init__(self, url: str, settings: Settings, heartbeat_timeout: float, room: int) -> None:
        """
        `url`, `settings`: of the worker's store. `room`: how many leases the worker holds at most.
        """
        self._timeout_us = round(heartbeat_timeout * SECOND)
        self._opening = pickle.dumps((url, settings))
        self._capacity = room + SPARE_LEASES
        self._process: subprocess.Popen[bytes] | None = None
        self._fields: memoryview[int] | None = None
        self._lock = threading.Lock()
        """Held while leases are written: the engine thread and the event loop do that."""

    @staticmethod
    def of(engine: FullEngine, heartbeat_timeout: float, room: int) -> StandbyRenewal | None:
        """For the leases of an engine, or None if no other process can extend them."""
        opening = opened_with(engine) if engine.capabilities.processes else None
        if opening is None:
            return None
        url, settings = opening
        own = Settings(namespace=settings.namespace, create=False)
        return StandbyRenewal(url, own, heartbeat_timeout, room)

    def start(self) -> None:
        """Start the second process; without one, leases are kept by the engine thread alone."""
        work = pickle.dumps((list(sys.path), self._timeout_us, MAX_STALL, self._opening))
        try:
            self._start(work)
        except (OSError, ValueError) as error:
            log.warning(
                "the process that renews leases cannot be started (%s); handlers must not hold the"
                " interpreter for longer than the heartbeat timeout",
                error,
            )

    def _start(self, work: bytes) -> None:
        size = (HEAD_FIELDS + self._capacity * FIELDS) * FIELD_BYTES
        with _memory_file(size) as file:
            command = [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # noqa: SLF001
                "-P",
                str(Path(__file__).with_name("lease_standby.py")),
                str(file),
            ]
            fields = memoryview(mmap.mmap(file, size)).cast("q")
            with forking.undivided():
                process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[file])  # noqa: S603  # this interpreter
        self._process = process
        assert process.stdin is not None
        process.stdin.write(len(work).to_bytes(8, "big") + work)
        process.stdin.flush()
        self._use(fields)

    def _use(self, fields: memoryview[int]) -> None:
        fields[PASS_NS] = time.monotonic_ns()
        self._empty(fields)
        self._fields = fields

    def close(self) -> None:
        """End the second process."""
        self._fields = None
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(OSError):
                process.communicate()

    def passed(self, held: Mapping[int, object]) -> None:
        """The engine thread runs; `held` are the leases of the worker now."""
        fields = self._fields
        if fields is None:
            return
        fields[PASS_NS] = time.monotonic_ns()
        if fields[COUNT] and not held:
            with self._lock:
                if not held:
                    self._empty(fields)

    def add(
        self, deliveries: Iterable[WorkerDelivery], held: Mapping[int, WorkerDelivery | None]
    ) -> None:
        """These were leased just now, and are in `held` already."""
        fields = self._fields
        if fields is None:
            return
        with self._lock, contextlib.suppress(OverflowError):  # from a foreign engine's numbers
            added = _entries(deliveries)
            if fields[COUNT] * FIELDS + len(added) > self._capacity * FIELDS:
                added = _entries(each for each in list(held.values()) if each is not None)
                del added[self._capacity * FIELDS :]
                self._empty(fields)
            first = HEAD_FIELDS + fields[COUNT] * FIELDS
            fields[first : first + len(added)] = added
            fields[COUNT] += len(added) // FIELDS
            fields[SHORTEST_US] = min([fields[SHORTEST_US], *added[2::FIELDS]])

    def _empty(self, fields: memoryview[int]) -> None:
        fields[COUNT] = 0
        fields[SHORTEST_US] = self._timeout_us

    def renewed(self) -> float:
        """
        Until when the second process has extended all leases of this worker (monotonic seconds);
        0: it has not, since this was asked.
        """
        fields = self._fields
        if fields is None or not fields[RENEWED_NS]:
            return 0.0
        until, fields[RENEWED_NS] = fields[RENEWED_NS], 0
        return until / 1e9


def _entries(deliveries: Iterable[WorkerDelivery]) -> array[int]:
    entries: array[int] = array("q")
    for each in deliveries:
        entries.extend((each.lease.handle, each.lease.fence, each.length_us))
    return entries


@contextlib.contextmanager
def _memory_file(size: int) -> Iterator[int]:
    """A file of zeros in memory, or where the system has none, on disk; closed after the block."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("laneway-leases")
    else:
        with tempfile.TemporaryFile() as named:
            file = os.dup(named.fileno())
    try:
        os.write(file, bytes(size))  # all of it, so that a full disk is noticed here
        yield file
    finally:
        os.close(file)
