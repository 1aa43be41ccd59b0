"""
Operations: changes of many messages that take longer than a request, with progress and an end.

An operation runs in a thread of the gateway that began it. Its record in the store has its
progress: each gateway of the namespace shows it and can stop it. It ends with its gateway; then
it is `lost`, and what it has done stays.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

import msgspec

from laneway import units
from laneway.engines.base import Check, DoctorStep, FullEngine, Records
from laneway.errors import LanewayError
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.printable import without_passwords
from laneway.runtime.runtime import Runtime

Pause = Callable[[float], object]
Steps = Callable[[FullEngine, Pause], Iterator[int | DoctorStep]]
"""
Does the work, and yields how many messages each step has changed, or how far a check is. It
pauses with the function, which answers True once it has to end.
"""

log = logging.getLogger("laneway.gateway")

RUNNING = 4
"""Most operations that run in one gateway."""

KEPT = 100
"""Most operations whose records are kept; the oldest ones that have ended go first."""

LOST_US = 30 * units.SECOND
"""An operation that wrote nothing for this time has ended with its gateway."""

BEAT_SECONDS = 1.0
"""How often an operation writes its record at least, while it pauses."""

KIND: Final = "gateway"
PREFIX = "operation "

State = Literal["running", "stopping", "done", "stopped", "failed", "lost"]


Kind = Literal["redrive", "drop", "replay", "doctor"]


class Operation(msgspec.Struct, omit_defaults=True, kw_only=True):
    """
    An operation's record. Times are microseconds since 1970.

    `token`: the id of the token that began it. `topic`: None for all.
    `total`: how many messages it had at its beginning, or None if they were
    not counted. `done`: how many it has changed; a check of the doctor: how many parts of the store
    it has looked at. `checks`: what it found.
    """

    kind: Kind
    who: str
    token: str | None = None
    topic: str | None = None
    fingerprint: str | None = None
    total: int | None = None
    done: int = 0
    state: State = "running"
    detail: str | None = None
    started_us: int
    written_us: int
    ended_us: int | None = None
    checks: list[Check] | None = None


_read = msgspec.json.Decoder(Operation).decode
_write = msgspec.json.Encoder().encode


def _now_us() -> int:
    return time.time_ns() // 1000


def _shown(operation: Operation) -> Operation:
    """The operation with the state that it has by now."""
    if operation.ended_us is None and _now_us() - operation.written_us > LOST_US:
        operation.state, operation.ended_us = "lost", operation.written_us
        operation.detail = f"its gateway ended before it did; {_advice(operation)}"
    return operation


def _advice(operation: Operation) -> str:
    if operation.kind == "doctor":
        return "begin it again"
    if operation.kind == "replay":  # what it has replayed is in the log as before
        return "begun again, it sends these messages again, too"
    return "begin it again for the rest"


def find(engine: Records, operation_id: str) -> Operation | None:
    """The operation with an id."""
    (record,) = engine.record_read(KIND, [PREFIX + operation_id])
    return None if record is None else _shown(_read(record))


def newest(engine: Records) -> list[tuple[str, Operation]]:
    """The (id, operation) pairs, the newest first."""
    pairs = engine.records(KIND, limit=2 * KEPT, after=PREFIX)
    return [
        (name.removeprefix(PREFIX), _shown(_read(record)))
        for name, record in reversed(pairs)
        if name.startswith(PREFIX)
    ]


def stop(engine: Records, operation_id: str) -> Operation | None:
    """Tell an operation to stop; it does after its present step. None if it does not exist."""

    def change(operation: Operation) -> None:
        if _shown(operation).state == "running":
            operation.state = "stopping"

    return _change(engine, operation_id, change)


def _change(
    engine: Records, operation_id: str, change: Callable[[Operation], None]
) -> Operation | None:
    while True:
        (record,) = engine.record_read(KIND, [PREFIX + operation_id])
        if record is None:
            return None
        operation = _read(record)
        change(operation)
        if engine.record_swap(KIND, PREFIX + operation_id, record, _write(operation)):
            return operation


class Operations:
    """The operations that run in one gateway. Any thread may call it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._threads = ThreadPoolExecutor(RUNNING, thread_name_prefix="laneway-operation")
        self._lock = threading.Lock()
        self._running = 0
        self._ends = threading.Event()

    @property
    def count(self) -> int:
        """How many run."""
        return self._running

    def begin(
        self,
        caller: Caller,
        kind: Kind,
        steps: Steps,
        *,
        topic: str | None = None,
        fingerprint: str | None = None,
        total: int | None = None,
    ) -> str:
        """Begin an operation, see `Operation`. Returns its id. Raises Problem if too many run."""
        now_us = _now_us()
        operation = Operation(
            kind=kind,
            who=caller.name,
            token=caller.token,
            topic=topic,
            fingerprint=fingerprint,
            total=total,
            started_us=now_us,
            written_us=now_us,
        )
        with self._lock:
            if self._ends.is_set():
                raise Problem("stopping", "the gateway is stopping; ask another one")
            if self._running >= RUNNING:
                raise Problem(
                    "rate-limited",
                    f"{RUNNING} operations run in this gateway already; wait for one of them",
                    headers=(("retry-after", "5"),),
                )
            self._running += 1
        operation_id = f"{now_us:014x}{secrets.token_hex(2)}"
        try:
            engine = self._runtime.engine
            engine.record_swap(KIND, PREFIX + operation_id, None, _write(operation))
            _sweep(engine)
            self._threads.submit(self._run, operation_id, steps)
        except BaseException:
            self._leave()
            raise
        return operation_id

    def stop(self) -> None:
        """Let those that run end after their present step."""
        self._ends.set()

    def close(self) -> None:
        """Wait until they have ended."""
        self.stop()
        self._threads.shutdown()

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1

    def _run(self, operation_id: str, steps: Steps) -> None:
        engine = self._runtime.engine
        try:
            state, detail = self._steps(engine, operation_id, steps)
        except LanewayError as error:
            state, detail = "failed", without_passwords(str(error))
        except Exception:
            log.exception("operation %s failed", operation_id)
            state, detail = "failed", "the gateway's log has the error"
        finally:
            self._leave()

        def end(operation: Operation) -> None:
            operation.state, operation.detail = state, detail
            operation.ended_us = operation.written_us = _now_us()

        try:
            _change(engine, operation_id, end)
        except LanewayError as error:
            log.warning("operation %s: its end (%s) is not stored: %s", operation_id, state, error)

    def _steps(
        self, engine: FullEngine, operation_id: str, steps: Steps
    ) -> tuple[State, str | None]:
        """Do the steps. Returns the state at the end, and why."""
        beat = _Beat(engine, operation_id, self._ends)
        for step in steps(engine, beat.pause):
            beat.written_at = time.monotonic()

            def note(operation: Operation, step: int | DoctorStep = step) -> None:
                if isinstance(step, DoctorStep):
                    operation.done, operation.total = step.done, step.total
                    operation.checks = list(step.checks) or None
                else:
                    operation.done += step
                operation.written_us = _now_us()

            changed = _change(engine, operation_id, note)
            if changed is None or changed.state == "stopping":
                return "stopped", None
            if self._ends.is_set():
                return "stopped", f"the gateway stopped; {_advice(changed)}"
        if beat.has_ended:
            return "stopped", None
        return "done", None


class _Beat:
    """Pauses of a long step: they show that the operation lives, and notice a stop."""

    def __init__(self, engine: FullEngine, operation_id: str, ends: threading.Event) -> None:
        self._engine, self._id, self._ends = engine, operation_id, ends
        self.written_at = time.monotonic()
        self.has_ended = False

    def pause(self, seconds: float) -> bool:
        """Wait, unless the gateway stops. Returns whether the operation has to end."""
        self.has_ended = self.has_ended or self._ends.wait(seconds)
        if not self.has_ended and time.monotonic() - self.written_at >= BEAT_SECONDS:
            self.written_at = time.monotonic()

            def beat(operation: Operation) -> None:
                operation.written_us = _now_us()

            changed = _change(self._engine, self._id, beat)
            self.has_ended = changed is None or changed.state == "stopping"
        return self.has_ended


def _sweep(engine: Records) -> None:
    """Remove the oldest records beyond `KEPT` of operations that have ended."""
    for operation_id, operation in newest(engine)[KEPT:]:
        if operation.ended_us is not None:
            name = PREFIX + operation_id
            (record,) = engine.record_read(KIND, [name])
            engine.record_swap(KIND, name, record, None)
