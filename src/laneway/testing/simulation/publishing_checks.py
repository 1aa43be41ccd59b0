"""
What a simulation checks about publishing: each check sees every call that the engine has answered.

- `Dedupe`: an id is accepted once, until its window ends.
- `Expiry`: a message is delivered before the end of its ttl or not at all.
- `Backlogs`: a limit is neither exceeded by a publish nor too low.
- `Merges`: what joined a message is delivered with it, after the window.
- `Forwarding`: a spool's batch is accepted once.

All but the last know nothing of what operators do: `topics` are those that no operator touches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

from laneway.message import Draft, Lease, Receipt
from laneway.policy import Resolved
from laneway.testing.simulation.checks import BACK_US, Check, Messages
from laneway.testing.simulation.store import Call, Store
from laneway.units import SECOND

OPEN = ("waiting", "leased")
"""States of a message that has not ended, see `Queue.lookup`."""


class _OfTopics(Check):
    """A check of some topics."""

    def __init__(self, store: Store, messages: Messages, topics: Collection[str]) -> None:
        super().__init__(store)
        self.messages, self.topics = messages, frozenset(topics)

    def puts(self, call: Call) -> Iterator[tuple[Draft, Receipt]]:
        """What the call publishes to these topics, and the answers."""
        for draft, receipt in zip(call.arguments[0], call.answer, strict=True):
            if draft.topic in self.topics:
                yield draft, receipt

    def leases(self, call: Call) -> Iterator[Lease]:
        """The leases of these topics in the answer of `lease`."""
        return (lease for lease in call.answer.leases if lease.topic in self.topics)


class Dedupe(_OfTopics):
    """
    No id is accepted again while its message is known, nor within `dedupe` after its ack; and only
    what was accepted has duplicates.
    """

    def __init__(self, store: Store, messages: Messages, topics: Collection[str]) -> None:
        super().__init__(store, messages, topics)
        self._known: set[tuple[str, str]] = set()
        self._acked: dict[tuple[str, str], tuple[int, int]] = {}
        """Between which times of the engine an id's message was acked."""

    def saw_put(self, call: Call) -> None:
        for draft, receipt in self.puts(call):
            where, window = (draft.topic, receipt.id), self._window(draft.topic)
            least, most = self._acked.get(where, (None, None))
            if receipt.outcome == "accepted" and least is not None and call.now < least + window:
                raise self.broken(
                    f"{receipt.id} of {draft.topic} was accepted again"
                    f" {(call.now - least) / SECOND:g} s after its ack"
                )
            if receipt.outcome in ("accepted", "merged"):
                self._known.add(where)
                self._acked.pop(where, None)
            if receipt.outcome != "duplicate":
                continue
            if where not in self._known:
                raise self.broken(f"{receipt.id} of {draft.topic} is a duplicate of nothing")
            is_spool = call.operation == "forward"  # which repeats its last batch
            if not is_spool and most is not None and call.least > most + window + BACK_US:
                raise self.broken(
                    f"{receipt.id} of {draft.topic} is still known"
                    f" {(call.least - most) / SECOND:g} s after its ack"
                )

    saw_forward = saw_put

    def _window(self, topic: str) -> int:
        return self.store.policy_of(topic).dedupe or 0

    def saw_lease(self, call: Call) -> None:
        for lease in self.leases(call):
            self._acked.pop((lease.topic, lease.id), None)

    def saw_settle(self, call: Call) -> None:
        for settlement, answer in zip(call.arguments[0], call.answer, strict=True):
            held = self.messages.by_fence.get(settlement.fence)
            if answer == "acked" and held is not None and held.lease.topic in self.topics:
                self._acked[held.lease.topic, held.lease.id] = call.least, call.now


class Expiry(_OfTopics):
    """
    No message is delivered after the end of its ttl, which it does not outlive, and none ends
    before. `messages` has seen the call.
    """

    def __init__(self, store: Store, messages: Messages, topics: Collection[str]) -> None:
        super().__init__(store, messages, topics)
        self._ends: dict[tuple[str, str], tuple[int, int]] = {}

    def saw_put(self, call: Call) -> None:
        for draft, receipt in self.puts(call):
            ttl = self.store.policy_of(draft.topic).ttl_us(draft.ttl_us)
            if receipt.outcome == "accepted" and ttl is not None:
                ends = call.least + ttl, call.now + ttl
                self._ends[draft.topic, receipt.id] = ends
                look = partial(self._check_before, draft.topic, receipt.id, ends)
                self.store.clock.at(ends[0] - self.store.skew_us - SECOND // 2, look)

    saw_forward = saw_put

    def _check_before(self, topic: str, message_id: str, ends: tuple[int, int]) -> None:
        """Shortly before the end it is still there, unless it was handled."""
        fate = self.messages.fates[topic, message_id]
        if self._ends[topic, message_id] != ends or fate.end is not None:
            return
        state = self.store.state_of(topic, message_id)
        if state not in OPEN and self.store.now < ends[0]:
            left = (ends[0] - self.store.now) / SECOND
            raise self.broken(f"{message_id} of {topic} is {state}, {left:g} s before its end")
        self._check_later(topic, message_id, ends)

    def _check_later(self, topic: str, message_id: str, ends: tuple[int, int]) -> None:
        look = partial(self._check_after, topic, message_id, ends)
        self.store.clock.at(ends[1] + BACK_US - self.store.skew_us, look)

    def _check_after(self, topic: str, message_id: str, ends: tuple[int, int]) -> None:
        """Some time after the end it does not wait."""
        if self._ends[topic, message_id] != ends or self.messages.fates[topic, message_id].end:
            return
        if ends[1] + BACK_US > min(self.store.now, self.messages.leased_at):
            self.store.clock.after(1, partial(self._check_later, topic, message_id, ends))
        elif self.store.state_of(topic, message_id) == "waiting":
            late = (self.store.now - ends[1]) / SECOND
            raise self.broken(f"{message_id} of {topic} still waits, {late:g} s after its ttl")

    def saw_lease(self, call: Call) -> None:
        for lease in self.leases(call):
            _, end = self._ends.get((lease.topic, lease.id), (0, call.least + 1))
            if end <= call.least:  # each shard has a time of its own
                raise self.broken(
                    f"{lease.id} of {lease.topic} was delivered {(call.least - end) / SECOND:g} s"
                    " after its ttl"
                )


class Backlogs(_OfTopics):
    """No publish exceeds a `max_backlog`, and none is refused while there is room."""

    def saw_put(self, call: Call) -> None:
        outcomes: dict[str, set[str]] = defaultdict(set)
        for draft, receipt in self.puts(call):
            outcomes[draft.topic].add(receipt.outcome)
        for topic, found in outcomes.items():
            most = self.store.policy_of(topic).max_backlog
            if most is None:
                continue
            waiting = self._waiting(topic)
            if "accepted" in found and waiting > most:
                raise self.broken(f"{waiting} messages wait in {topic}, whose limit is {most}")
            if "refused" in found and waiting < most:
                raise self.broken(f"{topic} refused a message, but only {waiting} of {most} wait")

    saw_forward = saw_put

    def _waiting(self, topic: str) -> int:
        fates = self.messages.fates
        ids = [each for (name, each), fate in fates.items() if name == topic and not fate.end]
        states = self.store.states_of(topic, ids)
        return sum(state == "waiting" for state in states.values())


@dataclass(slots=True)
class _Joined:
    """What a message carries. `due`: when its window ends at the earliest."""

    bodies: list[bytes]
    first: int
    due: int
    delivered: list[bytes] = field(default_factory=list)


class Merges(_OfTopics):
    """
    A message is delivered with what joined it, not before its window has ended, and nothing that
    was published is left out. Each body is published once.
    """

    def __init__(self, store: Store, messages: Messages, topics: Collection[str]) -> None:
        super().__init__(store, messages, topics)
        self._joined: dict[tuple[str, str], _Joined] = {}
        self._newest: dict[tuple[str, str], bytes] = {}
        self._delivered: dict[str, set[bytes]] = defaultdict(set)

    def saw_put(self, call: Call) -> None:
        for draft, receipt in self.puts(call):
            policy = self.store.policy_of(draft.topic)
            if policy.merge is None:
                continue
            if receipt.outcome == "refused":
                raise self.broken(f"{receipt.id} of {draft.topic} merges, and was refused")
            if receipt.outcome == "accepted":
                due = call.least + (policy.window or 0)
                joined = _Joined([draft.body], call.least, due)
                self._joined[draft.topic, receipt.id] = joined
            elif receipt.outcome == "merged":
                self._join(call, policy, draft, receipt.joined or "")
            if receipt.outcome in ("accepted", "merged"):
                self._newest[draft.topic, draft.key or ""] = draft.body

    saw_forward = saw_put

    def _join(self, call: Call, policy: Resolved, draft: Draft, message_id: str) -> None:
        joined = self._joined.get((draft.topic, message_id))
        if joined is None:
            raise self.broken(f"a message of {draft.topic} joined {message_id}, which is unknown")
        joined.bodies.append(draft.body)
        if policy.debounce and policy.window and call.now < joined.due:  # it is not due yet
            longest = policy.max_wait or 10 * policy.window
            later = min(joined.first + longest, call.least + policy.window)
            joined.due = max(joined.due, later)

    def saw_lease(self, call: Call) -> None:
        for lease in self.leases(call):
            policy = self.store.policy_of(lease.topic)
            if policy.merge is None:
                continue
            joined = self._joined[lease.topic, lease.id]
            where = f"{lease.id} of {lease.topic}"
            bodies = lease.bodies if lease.bodies is not None else [lease.body]
            if lease.deliveries == 1:
                self._check_first(call, policy, lease, joined)
            elif policy.merge == "first" and bodies != joined.delivered:
                raise self.broken(f"{where}: {bodies!r} instead of {joined.delivered!r}")
            elif policy.merge == "all" and bodies[: len(joined.delivered)] != joined.delivered:
                raise self.broken(f"{where}: {bodies!r}, and before {joined.delivered!r}")
            joined.delivered = bodies
            self._delivered[lease.topic].update(bodies)

    def _check_first(self, call: Call, policy: Resolved, lease: Lease, joined: _Joined) -> None:
        where = f"{lease.id} of {lease.topic}"
        if call.now < joined.due:
            left = (joined.due - call.now) / SECOND
            raise self.broken(f"{where} was delivered {left:g} s before its window's end")
        expected = {
            "first": joined.bodies[:1],
            "last": [self._newest[lease.topic, lease.key or ""]],
            "all": joined.bodies,
        }[policy.merge or "first"]
        bodies = lease.bodies if lease.bodies is not None else [lease.body]
        if bodies != expected:
            raise self.broken(f"{where} was delivered with {bodies!r} instead of {expected!r}")

    def end(self) -> None:
        for (topic, message_id), joined in self._joined.items():
            if self.store.policy_of(topic).merge == "all":
                missing = set(joined.bodies) - self._delivered[topic]
                if missing:
                    raise self.broken(f"{message_id} of {topic}: {missing!r} was never delivered")
        for (topic, key), body in self._newest.items():
            is_last = self.store.policy_of(topic).merge == "last"
            if is_last and body not in self._delivered[topic]:
                raise self.broken(f"{topic}: {body!r}, the last of {key}, was never delivered")


class Forwarding(Check):
    """
    A spool's batch is accepted once, no matter how often it is repeated. That holds until its next
    batch arrives: the store remembers only the last one.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._batch: dict[str, str] = {}
        self._accepted: dict[str, set[tuple[str, str]]] = {}

    def saw_forward(self, call: Call) -> None:
        spool, batch = call.options["spool"], call.options["batch"]
        if self._batch.get(spool) != batch:
            self._batch[spool], self._accepted[spool] = batch, set()
        for draft, receipt in zip(call.arguments[0], call.answer, strict=True):
            if receipt.outcome != "accepted":
                continue
            where = draft.topic, receipt.id
            if where in self._accepted[spool]:
                raise self.broken(f"{receipt.id} of {draft.topic} was accepted twice from {spool}")
            self._accepted[spool].add(where)
