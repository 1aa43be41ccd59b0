"""Coordination of a namespace's programs: which workers are alive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

PING = "?"
"""
A `ResultListener` that subscribes to this is notified by `Coordination.ping`. `poll` then returns
this prefix followed by the worker's id.
"""

MAX_WORKER_TEXT = 512
"""The longest text in `WorkerFacts`, in characters; longer ones are cut."""

MAX_WORKER_NAMES = 100
"""The maximum number each of pools, topics and patterns in `WorkerFacts`; others are left out."""

MAX_BUSY_TOPICS = 20
"""The maximum number of topics in `WorkerFacts.busy_topics`."""

MAX_BUSY_PATTERNS = 10
"""The maximum number of patterns in `WorkerFacts.slots`."""

MAX_HANDLERS = 50
"""The maximum number of handlers in `WorkerFacts.durations`; others count as `OTHER_HANDLERS`."""

OTHER_HANDLERS = "(other)"

WorkerState = Literal["running", "stopping", "dead"]
"""
The state of a worker: it takes messages; it only finishes running handlers; or its heartbeat is
overdue.
"""


class RunningMessage(msgspec.Struct, frozen=True):
    """A message whose handler is running. `since_us`: when the handler began, in microseconds."""

    topic: str
    id: str
    since_us: int


class WorkerFacts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What a worker reports about itself with each heartbeat.

    - `id`: unique among all workers.
    - `host`, `pid`: where it runs.
    - `program`, `version`: the application's; `laneway`: the version of Laneway.
    - `pools`: the pools that it serves.
    - `topics`: the only topics that it serves, in order, or None for all topics of the pools.
    - `patterns`: patterns that cover the topics of its handlers, or None for any topic.
    - `is_cut`: `pools`, `topics` or `patterns` had too many names, and some were left out.
    - `concurrency`: the maximum number of concurrent handlers; `busy`: how many run.
    - `busy_topics`: topics with running handlers, and the mean number of running handlers over the
      last heartbeats; the `MAX_BUSY_TOPICS` largest.
    - `slots`: by pattern of its handlers: how many run, and for how many seconds the longest one
      has run; the `MAX_BUSY_PATTERNS` largest.
    - `full`: by pattern of its handlers that have a `concurrency` of their own, and run as many
      calls: that number. If `patterns` is None and such a handler exists, also the patterns of its
      other handlers, with 0.
    - `durations`: by handler or task, since the worker began: the number of failed attempts, then
      the numbers of attempts by duration, in the classes of `WAIT_BOUNDS_US`, without trailing
      zeros. If several messages end together, one counts for all.
    - `keys`: names of the keys that it has for endpoint secrets, or None if it does not push.
    - `leased`: how many leases it holds. `held`: the handles of at most `MAX_WORKER_NAMES` of them,
      the oldest first.
    - `oldest`: the message whose handler has run longest, or None if no handler is running.
    - `loop_lag`: seconds that its event loop needed to respond; it grows while a handler blocks it.
    - `stopping`: it no longer leases messages.
    """

    id: str
    host: str = ""
    pid: int = 0
    program: str = ""
    version: str | None = None
    laneway: str = ""
    pools: list[str] = []
    topics: list[str] | None = None
    patterns: list[str] | None = None
    is_cut: bool = False
    concurrency: int = 0
    busy: int = 0
    busy_topics: dict[str, float] = {}
    slots: dict[str, tuple[int, float]] = {}
    full: dict[str, int] = {}
    durations: dict[str, list[int]] = {}
    keys: list[str] | None = None
    leased: int = 0
    held: list[int] = []
    oldest: RunningMessage | None = None
    loop_lag: float | None = None
    stopping: bool = False


class WorkerView(msgspec.Struct, kw_only=True):
    """
    A worker in the list. Times are microseconds, by the store's clock.

    - `facts`: the content of its last heartbeat.
    - `state`: by its last heartbeat and the store's clock.
    - `started_us`: its first heartbeat; `beat_us`: its last one.
    - `dead_us`: when it counts as dead without another heartbeat.
    """

    facts: WorkerFacts
    state: WorkerState
    started_us: int
    beat_us: int
    dead_us: int


@runtime_checkable
class Coordination(Protocol):
    """Which workers serve a namespace. The cost does not depend on the number of topics."""

    def beat(
        self, facts: WorkerFacts, *, dead_after_us: int, listed_us: int, now_us: int | None = None
    ) -> int:
        """
        Store a worker's heartbeat, which replaces the previous one. Sends no notification.

        A heartbeat need not survive a power cut, whatever the messages' durability.

        Arguments: `facts`: texts are cut to `MAX_WORKER_TEXT`, lists to `MAX_WORKER_NAMES`;
        `dead_after_us`: in how many microseconds the worker counts as dead without another
        heartbeat; `listed_us`: in how many microseconds it then leaves the list.

        Returns the engine's time in microseconds.
        """

    def leave(self, worker_id: str) -> None:
        """Remove a worker from the list because it has stopped normally."""

    def workers(
        self,
        *,
        limit: int = 1000,
        after: str = "",
        pool: str | None = None,
        now_us: int | None = None,
    ) -> list[WorkerView]:
        """
        List workers in the order of their ids, including dead ones.

        Arguments: `limit`: the maximum number; `after`: the last id of the previous page; `pool`:
        only workers that serve it.
        """

    def prefer(self, pool: str, shards: Collection[int]) -> None:
        """
        Visit these shards first when this engine object leases from the pool.

        Other shards are visited if these have no messages, and in one lease of ten in any case. An
        engine with one shard does nothing. Arguments: `shards`: all or none of them means no
        preference.
        """

    def ping(self, worker_ids: Sequence[str]) -> None:
        """
        Ask workers to send a heartbeat now.

        Best effort: a request may be lost, and a worker that is alive sends its heartbeat anyway.
        """
