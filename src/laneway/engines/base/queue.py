"""The hot path: the methods that producers and workers call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from laneway.engines.base.constants import HOUSEKEEPING_LIMIT
from laneway.message import Batch, Draft, Receipt, Settlement, SettlementAnswer


@runtime_checkable
class Queue(Protocol):
    """Accept, deliver and settle messages."""

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        """
        Store messages. Once this returns, they are as durable as `FullEngine.durability` promises.

        Arguments: `drafts`: checked and encoded messages of any topics, and signals.

        Returns a receipt for each draft, in their order. A draft above a backlog limit gets the
        outcome `"refused"` and a reason, even with `on_full="block"`: the caller waits and retries.

        Raises BadMessage, before anything is stored, if a body is above its topic's `max_body` or a
        delay is longer than the ttl; and EngineUnavailable, whose `applied` tells whether the
        messages may have been stored.
        """

    def forward(
        self, drafts: Sequence[Draft], *, spool: str, batch: str, now_us: int | None = None
    ) -> list[Receipt]:
        """
        Like `put`, for a spool: store a batch once, no matter how often or how late it is repeated.

        - `drafts`: at most `FORWARD_AT_ONCE` messages, each with an id.
        - `spool`: the spool's id.
        - `batch`: the batch's name. A spool repeats a batch until it has the answer, and only then
          forwards the next one.

        Each shard records which messages of the spool's last batch it has taken, in the transaction
        that stores them, and for `FORWARDED_US`. When repeated, these are `"duplicate"`, even if
        they have ended and their ids are forgotten. Refused messages are tried again. A repeat that
        the network delivers only after the spool's next batch is put again where ids are forgotten.

        After a refused message, the call refuses the later ones of its topic, to keep their order.
        """

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        """
        Return whether one `put` of these drafts stores all of them or none, even if the process is
        killed meanwhile.

        False if they belong to several shards, or if a topic's backlog limit may refuse some. Only
        topics and keys matter; bodies are not read.
        """

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        only: Sequence[str] | None = None,
        without: Sequence[str] | None = None,
        tiers: Sequence[str] | None = None,
        max_lease_us: int | None = None,
        priorities: tuple[int, int] | None = None,
        holder: str | None = None,
        now_us: int | None = None,
    ) -> Batch:
        """
        Lease up to `n` messages, in the fair order of their lanes, after the housekeeping of
        `tick`.

        - `n`: the maximum number of messages.
        - `pool`: the pool whose topics to serve.
        - `topics`: names; only these topics are served, strictly in this order, without tiers.
        - `startable`: how many messages the caller can start immediately (default `n`). Topics with
          a rate, concurrency or gate deliver at most that many, so that no permit is held unused.
        - `record_start`: record the start of suspects now, for consumers that do not call `start`.
        - `only`: patterns; lanes of other topics are passed over, at most `MAX_PASSED_OVER` in one
          call. After such a call lanes are also found by their names, so that many topics of other
          workers delay nothing. Buckets are always served. Needs `Capabilities.only`.
        - `without`: patterns whose topics are passed over in the same way, buckets by their own
          pattern. If patterns of `only` and `without` match a topic, the most specific one decides;
          if they are equal, that of `without`. Needs `Capabilities.reserves`, like `tiers`.
        - `tiers`: names; only the topics of these tiers are served.
        - `max_lease_us`: the leases end after at most this many microseconds, whatever their
          policies' `lease`. Workers extend their leases, so this limits how long a message waits
          after its worker died.
        - `priorities`: the lowest and the highest priority of the messages. Others stay in their
          lanes. Lanes without such messages are passed over, as with `only`.
        - `holder`: who holds the leases, for `MessageView.holder`; workers report it in
          their heartbeats (`WorkerFacts.held`) instead.

        Returns the leases, and when to lease again. `Batch.passed_over` reports that some lanes
        were passed over; `Batch.goes_on`, that a call with the same `only`, `without`, `tiers` and
        `priorities` would search more lanes.
        """

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        """
        Record that these suspects are about to run. Workers call it before they run a message whose
        `Lease.suspect` is set.

        A lease that expires after its start was recorded counts as an attempt, so a message that
        kills its worker becomes a dead letter.

        Arguments: `leases`: (handle, fence) pairs.

        Returns False for each lease that has ended; its message must not run.
        """

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        """
        End leases.

        - `settlements`: what to do with each lease.
        - `publish`: by position in `settlements`, messages to put in the same transaction, if that
          settlement is a successful ack or `"dead"`. Those without an id get `<message
          id>:<position>`, sticky, so repeating the call cannot publish them twice.

        Returns an answer for each settlement, in their order. `"lost"` and `"gone"` mean that
        nothing was changed.

        Raises BadMessage or BacklogFull if a message in `publish` cannot be put; its settlement is
        then not made. An engine with several shards, or one that splits long calls, may have made
        other settlements of the call: if they are repeated, they are `"lost"`.
        """

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        """
        Extend leases until at least now + `by_us`; a later deadline is kept.

        Arguments: `leases`: (handle, fence) pairs; `by_us`: how long, in microseconds from now.

        Returns False for each lease that has ended.
        """

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        """
        Do bounded housekeeping: make due messages ready, end expired leases, expire messages, apply
        policy changes to lanes.

        Arguments: `budget`: the maximum number of messages or lanes of each kind.

        Returns the time of the next event (microseconds), or None if nothing is scheduled.
        """


@runtime_checkable
class SyncsLater(Protocol):
    """An optional addition to `Queue` for engines whose calls wait for a disk."""

    def syncing_later(self) -> AbstractContextManager[None]:
        """
        Inside this block, calls of this thread return before their changes are on disk. The end of
        the block waits for the disk once for all of them.

        Raises EngineUnavailable at the block's end, with `applied` None: the changes may or may not
        be on disk.
        """
