"""The options of a worker, and its summary of what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import msgspec

from laneway import arguments, config, units
from laneway.engines.base import HEARTBEAT_TIMEOUT
from laneway.printable import without_passwords

MAX_CONCURRENCY = 100_000
"""How many handlers one worker may run concurrently; more is refused as a mistake."""

MIN_HEARTBEAT_TIMEOUT = 0.1
"""The shortest such time in seconds; a busy machine would miss it all the time."""

MAX_PROCESSES = 1_000
"""How many processes one supervisor may run; more is refused as a mistake."""


class EmbeddedOptions(TypedDict, total=False):
    """
    Options of `app.worker` and `app.arun_worker`.

    - `concurrency`: the maximum number of handlers that run concurrently (100).
    - `burst`: end when nothing is left to run now. It waits for rates and limits, not for delays.
    - `pool`: the pool to serve ("default").
    - `topics`: serve only these topics, strictly in this order, or None for all topics of the pool.
    - `grace`: how long running handlers may continue when the worker stops (30 s).
    - `traceback`: log the traceback of each failed attempt, and not only of the last one, or
      None to do so only if standard error is a terminal.
    - `health_port`: answer /live and /ready over HTTP on this port; 0: any free port.
    - `health_address`: the address of that port ("127.0.0.1").
    - `max_messages`: end after this number of deliveries, or None for no limit.
    - `heartbeat_timeout`: after this many seconds without a heartbeat the worker counts as dead,
      and other workers get its messages (9 s). It sends a heartbeat three times as often.
    """

    concurrency: int
    burst: bool
    pool: str
    topics: Sequence[str] | None
    grace: units.Duration
    traceback: bool | None
    health_port: int | None
    health_address: str
    max_messages: int | None
    heartbeat_timeout: units.Duration


class WorkerOptions(EmbeddedOptions, total=False):
    """
    Options of `app.run_worker`: those of EmbeddedOptions, and two more.

    - `processes`: how many workers run, each in a process of its own (1).
    - `reload`: restart when the code changes, for development.
    """

    processes: int
    reload: bool


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of a worker; see WorkerOptions."""

    concurrency: int = 100
    burst: bool = False
    pool: str = "default"
    topics: list[str] | None = None
    grace: float = 30.0
    processes: int = 1
    reload: bool = False
    traceback: bool | None = None
    health_port: int | None = None
    health_address: str = "127.0.0.1"
    max_messages: int | None = None
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    store: tuple[str | None, str | None] = (None, None)
    """The URL and the namespace that replace those in the code; None for the code's."""

    def __repr__(self) -> str:
        return without_passwords(msgspec.Struct.__repr__(self))  # a store's URL is in it

    @staticmethod
    def checked(
        call: str, options: dict[str, Any], known: frozenset[str] = WorkerOptions.__optional_keys__
    ) -> Options:
        """
        Check the keyword arguments of a call.

        `call`: the function's name for errors. `known`: the options that it takes.
        Raises UsageError, which names the option and what was expected.
        """
        config.refuse_unknown(call, options.keys() - known, known)
        checks: dict[str, Callable[[Any], Any]] = {
            "concurrency": lambda value: arguments.whole(
                call, "concurrency", value, most=MAX_CONCURRENCY
            ),
            "burst": bool,
            "pool": lambda value: arguments.pool(call, value),
            "topics": lambda value: arguments.topics(call, value),
            "grace": lambda value: arguments.seconds(call, "grace", value),
            "processes": lambda value: arguments.whole(
                call, "processes", value, most=MAX_PROCESSES
            ),
            "reload": bool,
            "health_port": lambda value: (
                None
                if value is None
                else arguments.whole(call, "health_port", value, least=0, most=65_535)
            ),
            "health_address": lambda value: arguments.name(call, "health_address", value),
            "traceback": lambda value: None if value is None else bool(value),
            "heartbeat_timeout": lambda value: arguments.seconds(
                call, "heartbeat_timeout", value, least=MIN_HEARTBEAT_TIMEOUT
            ),
            "max_messages": lambda value: (
                None if value is None else arguments.whole(call, "max_messages", value)
            ),
        }
        checked: dict[str, Any] = {name: checks[name](value) for name, value in options.items()}
        return Options(**checked)


class Summary(msgspec.Struct):
    """
    How many deliveries ended in each way, in one worker or in all workers of a supervisor.

    - `acked`: the handler returned. `retried`: the message will be delivered again.
    - `died`: it became a dead letter. `released`: its lease was released without an attempt.
    - `lost`: the lease had ended before it was settled.
    """

    acked: int = 0
    retried: int = 0
    died: int = 0
    released: int = 0
    lost: int = 0

    @property
    def handled(self) -> int:
        """How many deliveries were acked, retried or died."""
        return self.acked + self.retried + self.died

    @property
    def ended(self) -> int:
        """How many leases ended."""
        return self.handled + self.released + self.lost

    def add(self, other: Summary) -> None:
        """Add the counts of another worker."""
        for field in self.__struct_fields__:
            setattr(self, field, getattr(self, field) + getattr(other, field))

    def in_words(self) -> str:
        """As text for the last line of a log."""
        parts = [f"{self.acked:,} done"]
        for count, what in (
            (self.retried, "to be retried"),
            (self.died, "dead"),
            (self.released, "released"),
            (self.lost, "leases lost"),
        ):
            if count:
                parts.append(f"{count:,} {what}")
        return ", ".join(parts)
