"""Administration: the methods that the application object and the command line call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from laneway.engines.base.views import (
    BY_OPERATOR,
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
        """Read the current tiers of the namespace by layer."""

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        """
        Add, change and remove tiers in a layer. Every process uses them from its next lease.

        Arguments: `changes`: tiers by name; None removes the tier.

        Raises BadPolicy if a tier would be removed that is the default or that a policy names.
        """

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        """
        Remove the operator's setting of one tier, or of all tiers (None), so that the code's
        applies again.

        Returns False if the operator set nothing. Raises BadPolicy as `tier_set` does.
        """

    # Policies

    def policies(self) -> PolicyTable:
        """
        Read the policies of all patterns into a `PolicyTable` that belongs to the caller.

        Its `rows` contain patterns only, because millions of topics may have their own policies;
        `resolve` reads that of the given topic.
        """

    def policy_set(
        self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None
    ) -> dict[str, Any]:
        """
        Set policy fields of a pattern or topic.

        The policy of a single topic is in force when this returns. Lanes that a pattern covers are
        adapted by a bounded sweep, which later `tick` and `lease` calls continue.

        Arguments: `fields`: values by name, as `laneway.policy.FIELDS` defines them; None removes a
        field.

        Returns all fields that the pattern now sets in this layer.

        Raises BadPolicy for an invalid field or an undefined gate; TopicInUse if `partitions` or
        `buckets` would change for a topic that is not empty.
        """

    def policy_set_many(
        self,
        layer: str,
        changes: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        as_stored: bool = False,
        now_us: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Set policy fields of many patterns and topics in one batch; about 1,000 per call is a good
        size.

        The policy of a single topic costs the same for any number of policies, and no process
        reloads anything for it. Changes without an effect cost nothing.

        Arguments: `layer`: `"operator"`, `"code"`, or `"program:NAME"` for a program's
        declarations; `changes`: (pattern or topic, fields) pairs. Patterns are checked together, in
        their state after all changes. `as_stored`: the fields come from another store, where later
        changes of patterns may have made them contradict each other; that is not refused.

        Returns, for each change, all fields that are now set in this layer.

        Raises the errors of `policy_set`, and BadPolicy for a field that another program declares
        with another value. An invalid field or an undefined gate changes nothing.
        """

    def policy_own(self, topic: str) -> Layers:
        """Read the fields that are set for exactly this topic, by layer."""

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        """
        List topics that have their own policy, page by page, in the engine's order.

        Arguments: `after`: the position that the previous page returned; `limit`: the
        approximate number of topics in a page.

        Returns (topic, layers) pairs, and the position of the next page, or None after the last
        page. Each topic is listed once; a topic whose policy is set meanwhile may be missing.
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

        Returns False, and changes nothing, if the record has changed.
        """

    # Gates

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        """Define or change a gate. An operator's definition overrides the code's."""

    def gate_reset(self, name: str, *, now_us: int | None = None) -> bool:
        """
        Clear the permits that a gate owes: its full burst is available again.

        Its leases are kept. Returns False if the gate is not defined.
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
        Replace a topic group's weight, rate and concurrency in a layer. Each operator setting
        overrides the code's.
        """

    def topic_group_list(self) -> list[dict[str, Any]]:
        """
        List the topic groups that have settings, by name.

        Returns a dict for each, as in `gate_list`, with `weight`.
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
        grow with the number of topics. Up to 1,000 lanes are all compared. If more exist, the first
        250 of that order (or 5 × `limit`) are compared; with a pattern, those among the first 1,000
        that it covers. For topics in buckets, the first 250 by name are compared.

        With `"backlog"`, topics that only have leases come last, and topics in buckets are left
        out.

        With `"in-rate"` and `"failures"`, a shard knows the 1,000 topics with the highest recent
        counts (see `shared.recent`), but none in buckets. With `"dead"`, it knows all.

        Arguments: `pattern`: a pattern of topics, or of subscriptions (`orders.*#audit`: those of
        the first 1,000 topics of `orders.*`, not with the order `"name"`); `limit`: the maximum
        number of topics; `after`: the last name of the previous page (only with the order
        `"name"`).

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

        Arguments: `state`: only messages in this state; leased ones are ordered by `since`.
        """

    def lane_rates(self, limit: int, *, now_us: int | None = None) -> list[LaneRate]:
        """
        Read the delivery rates of a sample of lanes, to compare them. The cost depends only on
        `limit`.

        The sample contains the lanes with the largest backlogs and, if few are large, any others.

        Arguments: `limit`: the approximate number of lanes to read; lanes that cannot deliver now
        are left out of the answer.
        """

    def delayed_counts(
        self, topic: str, until_us: Sequence[int], *, now_us: int | None = None
    ) -> list[int]:
        """
        Count the delayed messages of a topic by due time.

        If a lane has more than `MAX_DELAYED_COUNTED`, an engine may count only that many: those of
        the highest priority that are due first.

        Arguments: `until_us`: the ends of the intervals in ascending order, in microseconds.

        Returns the number of messages due in each interval, and as an additional last number those
        that are due later.
        """

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        """
        Remove all waiting messages, including parked and delayed ones, except end notices
        (`ENDED`). Leases stay valid.

        Returns the number of removed messages.
        """

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        """
        Remove everything from a topic: messages, leases, dead letters, known ids and counters. End
        notices (`ENDED`) stay, and so does their lane.

        From then on, settling one of its leases returns `"gone"`.

        Returns the number of removed messages.
        """

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """
        Read the (scan cursor, done cursor) of each priority of a topic; priority 0 is always
        included. If a lane has more than 500 priorities, only the highest ones are certain to be
        included.

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
        Read a waiting, leased or dead message. Returns None if it does not exist.

        Arguments: `topic`: required for ids that the publisher chose. A generated id locates its
        message.
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
        Make a delayed message ready now, or make a waiting message a dead letter.

        The ready message becomes the last one of its priority, and waits for the limits of its
        topic. `Results.cancel` removes a message.

        Arguments: `topic`: as in `find`; `to`: `"ready"` or `"dead"`; `reason`: the dead letter's
        reason.
        """

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        """
        Let a topic back off, as if its destination were unavailable: nothing is delivered for
        `by_us` microseconds, then one message at a time until one is acked. 0 ends the back-off.

        It applies to existing lanes; a topic in which nothing waits or is leased may have none. A
        bucket backs off as a whole.

        Returns the number of lanes.
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
        from now. To redrive many at a rate, make several calls; each is one transaction.

        Arguments: `topic`, `ids`: which dead letters, or None for all; `limit`: the maximum number.

        Returns the number of messages put back.
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
        Delete dead letters, the oldest first. The arguments are those of `dead_redrive`.

        Returns the number of deleted dead letters.
        """

    # The namespace

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        """
        Read the store's clock, which never goes back, in microseconds since 1970.

        Arguments: `topic`: read the clock of the shard that holds its messages.
        """

    def overview(self, *, now_us: int | None = None) -> Overview:
        """Read the totals of the namespace."""

    def store_parts(self) -> list[StorePart]:
        """
        Report the used and free space of the namespace's files or servers. The cost does not depend
        on their content.
        """

    def doctor(self, *, repair: bool = False) -> list[Check]:
        """
        Check the store, including whether its indexes and counters agree with its messages.

        Arguments: `repair`: correct inconsistencies.

        Returns the findings, including the good ones.
        """

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        """
        Check like `doctor` without repairs, in small steps during normal work. Each step blocks
        other callers no longer than a small read; the pauses are as long as the reads.

        Arguments: `pause`: called with the seconds to wait, even within a step. If it returns True,
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
