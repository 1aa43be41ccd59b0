"""What can be said to a worker, and what it says at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from laneway import arguments, config, units
from laneway.safetext import without_passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_CONCURRENCY = 100_000
MOST_PROCESSES = 1_000


class EmbeddedOptions(TypedDict, total=False):
    """
    Options of `app.worker` and `app.arun_worker`.

    `concurrency`: most handlers at once (100). `burst`: end when nothing is left to run now.
    `pool`, `topics`: what to serve; named topics strictly in their order. `grace`: how long running
    handlers may go on at the end (30 s). `traceback`: log the traceback of every failed attempt,
    not of the last one alone; default: where standard error is a terminal. `health_port`: answer
    /live and /ready over HTTP there, on `health_address` (127.0.0.1). `max_messages`: end after so
    many deliveries.
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


class WorkerOptions(EmbeddedOptions, total=False):
    """Options of `app.run_worker`: also several `processes`, and `reload` when the code changes."""

    processes: int
    reload: bool


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is to run."""

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
    """End after so many deliveries."""
    store: tuple[str | None, str | None] = (None, None)
    """URL and namespace, where the command line names others than the code."""

    def __repr__(self) -> str:
        return without_passwords(msgspec.Struct.__repr__(self))  # a store's URL is in it

    @staticmethod
    def checked(
        call: str, given: dict[str, Any], known: frozenset[str] = WorkerOptions.__optional_keys__
    ) -> Options:
        """
        Check what `run_worker` was given. Raises UsageError, which names the option and what was
        expected.
        """
        config.refuse_unknown(call, given.keys() - known, known)
        checks: dict[str, Callable[[Any], Any]] = {
            "concurrency": lambda value: arguments.whole(
                call, "concurrency", value, most=MOST_CONCURRENCY
            ),
            "burst": bool,
            "pool": lambda value: arguments.pool(call, value),
            "topics": lambda value: arguments.topics(call, value),
            "grace": lambda value: arguments.seconds(call, "grace", value),
            "processes": lambda value: arguments.whole(
                call, "processes", value, most=MOST_PROCESSES
            ),
            "reload": bool,
            "health_port": lambda value: (
                None
                if value is None
                else arguments.whole(call, "health_port", value, least=0, most=65_535)
            ),
            "health_address": lambda value: arguments.name(call, "health_address", value),
            "traceback": lambda value: None if value is None else bool(value),
            "max_messages": lambda value: (
                None if value is None else arguments.whole(call, "max_messages", value)
            ),
        }
        checked: dict[str, Any] = {name: checks[name](value) for name, value in given.items()}
        return Options(**checked)


class Summary(msgspec.Struct):
    """What a worker did, or several under a supervisor together: settlements by kind."""

    acked: int = 0
    retried: int = 0
    died: int = 0
    released: int = 0
    lost: int = 0

    @property
    def handled(self) -> int:
        """Deliveries that were run to an end."""
        return self.acked + self.retried + self.died

    def in_words(self) -> str:
        """As the last line of a log has it."""
        told = [f"{self.acked:,} done"]
        for count, what in (
            (self.retried, "to be retried"),
            (self.died, "dead"),
            (self.released, "given back"),
            (self.lost, "leases lost"),
        ):
            if count:
                told.append(f"{count:,} {what}")
        return ", ".join(told)
