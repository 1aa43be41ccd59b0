"""Administration: what the application object and the command line call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from laneway.engines.base.views import BY_OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laneway.engines.base.views import (
        Check,
        DoctorStep,
        Explanation,
        HeldState,
        IdState,
        LaneRate,
        MessageView,
        MoveAnswer,
        MoveTarget,
        Overview,
        StorePart,
        TopicOrder,
        TopicStats,
    )
    from laneway.policy import Gate, Layer, Layers, PolicyTable, Resolved
    from laneway.tiers import Tier, TierLayers, Tiers


@runtime_checkable
class Admin(Protocol):
    """Tiers, policies, gates, topics, messages, dead letters, and the namespace as a whole."""

    # Tiers

    @property
    def tiers(self) -> Tiers:
        """The tiers in force, as this engine object last read them."""

    def tier_layers(self) -> TierLayers:
        """Read the stored tiers of the namespace by layer, as they are now."""

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        """
        Add, change and remove tiers in a layer. Every process obeys at its next lease.

        Arguments: `changes`: tiers by name; None removes the tier.

        Raises BadPolicy if a tier would be removed that is the default or that a policy names.
        """

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        """
        Remove the operator's setting of one tier (None: of all), so that the code's holds again.

        Returns False if the operator set nothing. Raises BadPolicy as `tier_set` does.
        """

    # Policies

    def policies(self) -> PolicyTable:
        """
        Read the policies of all patterns into a `PolicyTable` that belongs to the caller.

        Its `rows` contain patterns only, because there may be millions of topics with a policy of
        their own; `resolve` reads that of the topic it is asked for.
        """

    def policy_set(
        self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None
    ) -> dict[str, Any]:
        """
        Set policy fields of a pattern or topic.

        The policy of one topic holds when this returns. Lanes that a pattern covers are adapted by
        a bounded sweep, which later `tick` and `lease` calls continue.

        Arguments: `fields`: values by name, as `laneway.policy.FIELDS` defines them; None removes a
        field.

        Returns all fields that the pattern now sets in this layer.

        Raises BadPolicy for a bad field or a gate that is not defined; TopicInUse if `partitions`
        or `buckets` would change for a topic that is not empty.
        """

    def policy_set_many(
        self,
        layer: str,
        changes: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        now_us: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Set policy fields of many patterns and topics in one batch; about 1,000 a call is a good
        size.

        The policy of one exact topic costs the same however many there are, and no process reloads
        anything for it. Changes that set what is set already cost nothing.

        Arguments: `layer`: `"operator"`, `"code"`, or `"program:NAME"` for what a program declares;
        `changes`: (pattern or topic, fields) pairs. Patterns are checked together, as they are
        after all changes.

        Returns, for each change, all fields that are now set in this layer.

        Raises the errors of `policy_set`, and BadPolicy for a field that another program declares
        with another value. For a bad field or an undefined gate nothing is changed.
        """

    def policy_own(self, topic: str) -> Layers:
        """Read the fields that are set for exactly this topic, by layer."""

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        """
        List topics that have a policy of their own, page by page, in the engine's order.

        Arguments: `after`: the position that the previous page returned; `limit`: the
        approximate number of topics in a page.

        Returns (topic, layers) pairs, and the position of the next page (None: this was the last).
        Each topic comes once; one whose policy is set meanwhile may be missing.
        """

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        """
        Remove all fields that a layer sets for a pattern or topic.

        Returns False if it sets none. Raises BadPolicy or TopicInUse as `policy_set` does.
        """

    def policy_of(self, topic: str) -> Resolved:
        """Resolve the policy that holds for a topic."""

    def programs(self) -> dict[str, bytes]:
        """Read the records (JSON of `laneway.programs`) of the programs that declared policies."""

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """
        Replace a program's record if it is still `before` (compare and swap).

        Arguments: `before`, `after`: JSON; None for no record.

        Returns False, and changes nothing, if the record is another one by now.
        """

    # Gates

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        """Define or change a gate. An operator's definition overrides the code's."""

    def gate_reset(self, name: str, *, now_us: int | None = None) -> bool:
        """
        Forget what a gate owes: its rate has the whole burst, and no cost holds it.

        Its leases stay. Returns False if the gate is not defined.
        """

    def gate_list(self) -> list[dict[str, Any]]:
        """
        List the gates by name.

        Returns a dict for each: `name`, `rate` (per second), `burst`, `concurrency`, `leased`,
        `next_permit_us`, and `waiting` (lanes at the gate; at most 1,000 are counted).
        """

    def topic_group_set(
        self, name: str, settings: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        """
        Set a topic group's weight, rate and concurrency in a layer, as a whole. Each setting of an
        operator overrides the code's.
        """

    def topic_group_list(self) -> list[dict[str, Any]]:
        """
        List the topic groups that have settings, by name.

        Returns a dict for each: as `gate_list`, and `weight`.
        """

    # Topics

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        """Read one topic. All numbers of an idle or unknown topic are 0."""

    def topic_list(
        self,
        *,
        order: TopicOrder = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
        now_us: int | None = None,
    ) -> list[TopicStats]:
        """
        List topics by name, or the top topics of another order.

        Top lists are read from indexes by size class (about 10 % apart), so their cost does not
        grow with the number of topics. Up to 1,000 lanes, all are compared. Among more, the first
        250 of that order are compared (or 5 × `limit`); with a pattern, those of the first 1,000
        that it covers. Among topics in buckets, the first 250 by name are compared.

        By `"backlog"`, topics that only have leases come last; those in buckets are left out.

        By `"in-rate"` and `"failures"`, a shard knows the 1,000 topics with the highest
        recent counts (see `shared.recent`), but none in buckets; by `"dead"`, it knows all.

        Arguments: `pattern`: of topics, or of subscriptions (`orders.*#audit`; those among the
        first 1,000 topics of `orders.*`, not by name); `limit`: the maximum number of topics;
        `after`: a name, the last one of the previous page (only with the order `"name"`).

        Raises UsageError for an unknown order.
        """

    def topic_peek(
        self,
        topic: str,
        *,
        limit: int = 10,
        state: HeldState | None = None,
        now_us: int | None = None,
    ) -> list[MessageView]:
        """
        Read the next messages of a topic in the order of delivery, then the parked ones, then the
        delayed ones by due time. Changes nothing.

        Arguments: `state`: only messages of this state; the leased ones by their `since`.
        """

    def lane_rates(self, limit: int, *, now_us: int | None = None) -> list[LaneRate]:
        """
        Read how fast a sample of lanes delivers, to compare them. What this costs depends on
        `limit` only.

        The sample has the lanes with the largest backlogs, and if few are large, any others.

        Arguments: `limit`: approximately how many lanes are read; those that cannot deliver now
        are left out of the answer.
        """

    def delayed_counts(
        self, topic: str, until_us: Sequence[int], *, now_us: int | None = None
    ) -> list[int]:
        """
        Count the delayed messages of a topic by when they are due.

        If a lane has more than `MAX_DELAYED_COUNTED`, an engine may count that many: those of
        the highest priority that are due first.

        Arguments: `until_us`: the ends of the intervals in ascending order, in microseconds.

        Returns how many are due before each end and not before the previous one; one more
        number, the last, counts those that are due later.
        """

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        """
        Remove all messages that wait, parked and delayed ones included. Leases stay valid.

        Returns how many were removed.
        """

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        """
        Remove everything from a topic: messages, leases, dead letters, known ids and counters.

        From then on, settling one of its leases returns `"gone"`.

        Returns the number of removed messages.
        """

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """
        Read the (scan cursor, done cursor) of each priority of a topic; priority 0 is always there.
        If a lane has more than 500 priorities, only the highest ones are certain to be included.

        All messages with sequence numbers up to the scan cursor were delivered at least once; all
        up to the done cursor are finished. If nothing is outstanding, both are the shard's last
        sequence number.
        """

    # Messages

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, IdState]:
        """Read the states of messages by id."""

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        """
        Read a message that waits, is leased or is dead, or None if it does not exist.

        Arguments: `topic`: needed for ids that the publisher chose. A generated id tells where
        its message is.
        """

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        """
        Explain what a message waits for, and when it will probably start.

        Arguments: `topic`: as in `find`.
        """

    def message_move(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        to: MoveTarget,
        reason: str = BY_OPERATOR,
        now_us: int | None = None,
    ) -> MoveAnswer:
        """
        Make a delayed message ready now, or make one that waits a dead letter.

        The ready message becomes the last one of its priority, and waits for the limits of its
        topic. `Results.cancel` removes a message.

        Arguments: `topic`: as in `find`; `to`: `"ready"` or `"dead"`; `reason`: the
        reason of a dead letter.
        """

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        """
        Let a topic back off, as if its destination were unavailable: nothing is delivered for
        `by_us` microseconds, then one message after the other until one is acked. 0 ends it.

        It holds for the lanes that exist; a topic in which nothing waits or is leased may have
        none. A bucket backs off as a whole.

        Returns how many lanes there are.
        """

    # Dead letters

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        """
        List dead letters, the oldest first.

        Arguments: `topic`: None for all topics; `after`: the number of the previous page's last.

        Returns (number, message) pairs.
        """

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        first_us: int = 0,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        """
        Put dead letters back into their topics, the oldest first, with a new sequence number and no
        attempts.

        The n-th of this call, counted from 0, is due `first_us` + n · `spacing_us` microseconds
        from now. A caller redrives many at a rate with several calls, each one transaction.

        Arguments: `topic`, `ids`: which ones, or None for all; `limit`: the maximum number.

        Returns how many were put back.
        """

    def dead_drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        now_us: int | None = None,
    ) -> int:
        """
        Delete dead letters, the oldest first. Arguments as in `dead_redrive`.

        Returns how many were deleted.
        """

    # The namespace

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        """
        Read the store's clock, which never goes back, in microseconds since 1970.

        Arguments: `topic`: read the clock of the shard that has its messages.
        """

    def overview(self, *, now_us: int | None = None) -> Overview:
        """Read the totals of the namespace."""

    def store_parts(self) -> list[StorePart]:
        """
        Report what the files or servers of the namespace use and have left. The cost does not
        depend on what they hold.
        """

    def doctor(self, *, repair: bool = False) -> list[Check]:
        """
        Check the store, including whether its indexes and counters agree with its messages.

        Arguments: `repair`: correct what does not agree.

        Returns the findings, including the good ones.
        """

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        """
        Check as `doctor` without repairs, in small steps during normal work: it holds no one up
        for longer than a small read does, and pauses as long as it reads.

        Arguments: `pause`: called with seconds to wait, even within a step. If it returns True,
        the check ends.

        Yields steps; the last one has the findings.
        """

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        """
        Read everything, for tests and `laneway doctor --dump`. The cost grows with the content.

        Returns a dict: `now_us`, `totals` (a dict), `topics` (`TopicStats` as dicts by name),
        `messages` (`MessageView` as dicts by sequence number), `gates` (as `gate_list`) and
        `policies` (rows of layer, pattern, fields).
        """
