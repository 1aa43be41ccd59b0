"""
What a simulation checks: each check sees every call that the engine has answered.

- `Messages`: nothing accepted is lost; leases, fences and ends are those of one holder at a time.
- `Limits`: rates, concurrencies and limits per key.
- `Order`: the order of serial keys.

A check that fails raises `Broken`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from laneway import headers as control
from laneway.engines.base import SIGNALS_HEADER
from laneway.engines.shared.gates import rate_places
from laneway.message import Draft, Lease, Receipt, Settlement
from laneway.policy import Gate, default_burst, gate_names, matches
from laneway.testing.simulation.store import Call, Store
from laneway.topic_groups import group_of
from laneway.units import SECOND

BACK_US = 10 * SECOND
"""How long after its end a lease may still be unnoticed."""

SHARDED = 1.1
"""Factor of rates and bursts that several shards may reach."""

ROUNDED = 0.01
"""Permits by which a bucket may differ by rounding."""


class Broken(AssertionError):
    """A promise was broken."""


class Check:
    """Sees every call; methods are called by the operation's name, if there is one."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def saw(self, call: Call) -> None:
        """Look at a call."""
        method = getattr(self, "saw_" + call.operation, None)
        if method is not None:
            method(call)

    def end(self) -> None:
        """Look at everything, after all actors have ended and nothing goes wrong any more."""

    def broken(self, what: str) -> Broken:
        """The error for a broken promise."""
        return Broken(f"{type(self).__name__}, at {self.store.clock.seconds:.6f} s: {what}")


@dataclass(slots=True, eq=False)
class Held:
    """A lease that the engine has given. Times are those of the engine."""

    lease: Lease
    at: int
    deadline: int
    is_open: bool = True
    begun: bool = True
    at_most_once: bool = False
    latest: int = 0
    """When it has run out in any case: the time of the last extension is not known exactly."""


@dataclass(slots=True)
class Fate:
    """What became of a message. `expires`: when it may be gone, at the earliest."""

    accepted: int
    expires: int | None = None
    end: str | None = None
    held: Held | None = None
    deliveries: int = 0


class Messages(Check):
    """
    Nothing that was accepted is lost, nothing ends twice, and only the newest lease counts.

    `fates`: by topic and id. A lease that has ended is noticed within `BACK_US`.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.fates: dict[tuple[str, str], Fate] = {}
        self.by_fence: dict[int, Held] = {}
        self.waits: dict[str, list[float]] = defaultdict(list)
        """By topic, the seconds from a message's due time to its first delivery."""
        self.counts: Counter[tuple[str, str]] = Counter()
        """By topic and what happened."""
        self.leased_at = 0
        """When somebody leased last, from all shards: the engine takes back leases then."""
        self.lossy: set[str] = set()
        """Topics whose policy merges or drops messages, or did."""

    # Policies

    def saw_policy_set(self, call: Call) -> None:
        """What merged or was dropped under this policy is gone, whatever the policy is later."""
        del call
        for topic in {topic for topic, _ in self.fates}:
            self._look_at_policy(topic)

    saw_policy_reset = saw_policy_set

    def _look_at_policy(self, topic: str) -> None:
        policy, (base, _, name) = self.store.policy_of(topic), topic.partition("#")
        subscriptions = self.store.policy_of(base).subscriptions if name else ()
        expires = any(each.name == name and each.expires_us is not None for each in subscriptions)
        if policy.merge is not None or policy.on_full == "drop_oldest" or expires:
            self.lossy.add(topic)

    # Accepting

    def saw_put(self, call: Call) -> None:
        for draft, receipt in zip(call.arguments[0], call.answer, strict=True):
            self.counts[draft.topic, receipt.outcome] += 1
            if draft.signal is None and receipt.outcome != "refused":
                self._accept(call, draft, receipt)

    saw_forward = saw_put

    def _accept(self, call: Call, draft: Draft, receipt: Receipt) -> None:
        policy, topic = self.store.policy_of(draft.topic), draft.topic
        if policy.own_backlog and receipt.outcome == "accepted":
            old = self.fates.get((topic, receipt.id))
            is_new = (
                old is None
                or old.end is not None
                or self._may_be_gone(topic, old, call.now)
                or self.store.state_of(topic, receipt.id) == "dead"
            )
            if not is_new:
                raise self.broken(f"{receipt.id} of {topic} was accepted twice")
            self._begin(call, draft, topic, receipt.id)
        for each in policy.subscriptions:
            copy = f"{topic}#{each.name}"
            old = self.fates.get((copy, receipt.id))
            # A copy may be a duplicate, and it may be put where the message itself merges.
            is_new = old is None and not each.where and receipt.outcome == "accepted"
            is_again = (old is None or old.end is not None) and self._is_open(copy, receipt.id)
            if is_new or is_again:
                self._begin(call, draft, copy, receipt.id)

    def _begin(self, call: Call, draft: Draft, topic: str, message_id: str) -> None:
        ttl = self.store.policy_of(topic).ttl_us(draft.ttl_us)
        expires = None if ttl is None else call.least + ttl
        due = max(call.now, draft.at_us or 0) + draft.delay_us
        self.fates[topic, message_id] = Fate(due, expires)
        self._look_at_policy(topic)

    def _is_open(self, topic: str, message_id: str) -> bool:
        return self.store.state_of(topic, message_id) in ("waiting", "leased")

    def _may_be_gone(self, topic: str, fate: Fate, now: int) -> bool:
        """Whether it may have expired, been dropped, or been merged when another one returned."""
        has_expired = fate.expires is not None and now >= fate.expires
        return has_expired or topic in self.lossy

    # Leases

    def saw_lease(self, call: Call) -> None:
        if self.store.shards == 1 or len(call.answer.leases) < call.arguments[0]:
            self.leased_at = call.least
        most = call.options.get("max_lease_us")
        for lease in call.answer.leases:
            if most is not None and lease.deadline_us > call.now + most:
                raise self.broken(f"{lease.id} was leased for more than {most / SECOND:g} s")
            self._deliver(call.now, lease)

    def _deliver(self, now: int, lease: Lease) -> None:
        where = f"{lease.id} of {lease.topic}"
        fate = self.fates.setdefault((lease.topic, lease.id), Fate(lease.published_us))
        before = fate.held
        if fate.end is not None:
            raise self.broken(f"{where} was delivered after its end ({fate.end})")
        if before is not None and lease.fence <= before.lease.fence:
            raise self.broken(f"{where}: its fence went from {before.lease.fence} to {lease.fence}")
        if before is not None and before.is_open and before.deadline > now:
            left = (before.deadline - now) / SECOND
            raise self.broken(f"{where} was delivered again while its lease had {left:g} s left")
        if before is not None:
            before.is_open = False
        elif fate.deliveries == 0:
            self.waits[lease.topic].append((now - fate.accepted) / SECOND)
        fate.deliveries += 1
        self.counts[lease.topic, "delivered"] += 1
        fate.held = self.by_fence[lease.fence] = Held(lease, now, lease.deadline_us)
        if self.store.policy_of(lease.topic).delivery == "at_most_once":
            fate.held.at_most_once, fate.end = True, "delivered at most once"
        self._check_later(fate.held)

    def _check_later(self, held: Held) -> None:
        at = max(held.deadline, held.latest) + BACK_US - self.store.skew_us
        self.store.clock.at(at, partial(self._check_return, held))

    def _check_return(self, held: Held) -> None:
        """Some time after its end a lease is no longer the message's."""
        lease = held.lease
        if not held.is_open:
            self.by_fence.pop(lease.fence, None)
        elif max(held.deadline, held.latest) + BACK_US > min(self.store.now, self.leased_at):
            self.store.clock.after(1, partial(self._check_later, held))
        elif self.store.policy_of(lease.topic).merge is not None:
            pass  # it may have joined another message, whose lease the store names for it
        elif self.store.state_of(lease.topic, lease.id) == "leased":
            raise self.broken(
                f"{lease.id} of {lease.topic} is still leased"
                f" {(self.store.now - held.deadline) / SECOND:g} s after its lease ran out"
            )

    def saw_extend(self, call: Call) -> None:
        pairs, by_us = call.arguments
        for (_, fence), is_held in zip(pairs, call.answer, strict=True):
            held = self.by_fence.get(fence)
            self._check_answer(call.now, held, is_held=is_held, what="extended")
            if held is not None and is_held:
                held.deadline = max(held.deadline, call.least + by_us)
                held.latest = max(held.latest, call.now + by_us)

    def saw_settle(self, call: Call) -> None:
        for number, (settlement, answer) in enumerate(
            zip(call.arguments[0], call.answer, strict=True)
        ):
            held = self.by_fence.get(settlement.fence)
            is_held = answer not in ("lost", "gone")
            self._check_answer(call.now, held, is_held=is_held, what="settled")
            if is_held and held is not None:
                self._settle(held, settlement, answer)
                # The generated id of a message is used with at most once.
                if answer in ("acked", "died") and not held.at_most_once:
                    self._follow(call, number, held.lease.id)

    def _follow(self, call: Call, number: int, message_id: str) -> None:
        """What a settlement publishes is accepted with it, or was before."""
        for n, draft in enumerate((call.options.get("publish") or {}).get(number, ())):
            name = draft.id or f"{message_id}:{n}"
            policy = self.store.policy_of(draft.topic)
            topics = [draft.topic] if policy.own_backlog else []
            topics += [
                f"{draft.topic}#{each.name}" for each in policy.subscriptions if not each.where
            ]
            for topic in topics:
                old = self.fates.get((topic, name))
                if old is None or (old.end is not None and self._is_open(topic, name)):
                    self._begin(call, draft, topic, name)

    def _settle(self, held: Held, settlement: Settlement, answer: str) -> None:
        held.is_open, held.begun = False, settlement.begun
        topic = held.lease.topic
        self.counts[topic, answer] += 1
        fate = self.fates[topic, held.lease.id]
        if answer in ("acked", "died") and fate.held is held:  # else its id was published again
            fate.end = answer

    def _check_answer(self, now: int, held: Held | None, *, is_held: bool, what: str) -> None:
        """A lease is valid until it ends, and never again."""
        if held is None:
            if is_held:
                raise self.broken(f"a lease was {what} that had ended long before")
            return
        where = f"the lease {held.lease.fence} of {held.lease.id} of {held.lease.topic}"
        if is_held and not held.is_open:
            raise self.broken(f"{where} was {what} after its end")
        if not is_held and held.is_open and held.deadline > now:
            raise self.broken(f"{where} could not be {what}, with time left")
        if not is_held:
            held.is_open = False

    # Administration

    def saw_cancel(self, call: Call) -> None:
        topic = call.options.get("topic", call.arguments[1] if call.arguments[1:] else None)
        fate = self.fates.get((topic or "", call.arguments[0]))
        if fate is not None and call.answer in ("cancelled", "aborted"):
            self._end(fate, "cancelled")

    def saw_topic_delete(self, call: Call) -> None:
        """Its leases have ended, of messages that had ended before too."""
        for held in self.by_fence.values():
            if held.lease.topic == call.arguments[0]:
                held.is_open = False
        self.saw_topic_purge(call)

    def saw_topic_purge(self, call: Call) -> None:
        topic = call.arguments[0]
        for (each, message_id), fate in self.fates.items():
            is_open = each == topic and fate.end is None
            if is_open and self.store.state_of(topic, message_id) in ("unknown", "finished"):
                self._end(fate, "purged")

    @staticmethod
    def _end(fate: Fate, end: str) -> None:
        fate.end = end
        if fate.held is not None:
            fate.held.is_open = False

    def saw_message_move(self, call: Call) -> None:
        if call.answer == "moved" and call.options["to"] == "dead":
            fate = self.fates.get((call.arguments[1], call.arguments[0]))
            if fate is not None:
                fate.end = "died"

    def saw_dead_redrive(self, call: Call) -> None:
        for (topic, message_id), fate in self.fates.items():
            if fate.end == "died" and self.store.state_of(topic, message_id) == "waiting":
                fate.end = None
                ttl = self.store.policy_of(topic).ttl_us(None)
                fate.expires = None if ttl is None else call.least + ttl

    def saw_dead_drop(self, call: Call) -> None:
        """Some had died without a settlement: their leases ran out, or their ttl."""
        left = call.answer
        for (topic, message_id), fate in self.fates.items():
            may_be = left and fate.end is None and call.arguments[0] in (None, topic)
            if may_be and self.store.state_of(topic, message_id) == "unknown":
                fate.end, left = "dropped", left - 1

    # At the end

    def end(self) -> None:
        for (topic, message_id), fate in self.fates.items():
            if fate.end:
                continue
            state = self.store.state_of(topic, message_id)
            if state in ("unknown", "finished"):
                if self._may_be_gone(topic, fate, self.store.now):
                    continue
                raise self.broken(f"{message_id} of {topic} was accepted, and is lost ({state})")
            if state != "dead":
                why = self.store.engine.explain(message_id, topic, now_us=self.store.now)
                raise self.broken(f"{message_id} of {topic} is still {state}: {why}")


class Bucket:
    """
    A rate with its burst: `take` returns how many permits are too many.

    `slack`: factor of both that is allowed. `largest`: what a message costs at most at one of
    `places` that have a part of the burst each; each may be overdrawn by one of them.
    """

    def __init__(
        self, rate: float, burst: float, slack: float = 1.0, places: int = 1, largest: int = 1
    ) -> None:
        self._rate = rate * slack
        self._burst = max(burst, places * largest if largest > 1 else 0) * slack
        self._used, self._at = 0.0, 0

    def take(self, now: int, cost: int) -> float:
        """A message that costs more than the burst needs the whole burst."""
        self._used = max(0.0, self._used - self._rate * (now - self._at) / SECOND) + cost
        self._at = now
        return self._used - max(self._burst, cost) - ROUNDED


def shared_bucket(rate: float, burst: float, largest: int, shards: int) -> Bucket:
    """
    The bucket of a limit that shards share: each place may be overdrawn by one message.

    `largest`: what a message costs at most.
    """
    places = min(shards, rate_places(Gate(rate, burst)))
    return Bucket(rate, burst, SHARDED if shards > 1 else 1.0, places, largest)


@dataclass
class _Limit:
    held: list[Held] = field(default_factory=list)
    grants: list[tuple[Held, float, float, int]] = field(default_factory=list)
    """Leases with the rate, the burst and the cost that they had."""


class Limits(Check):
    """
    No concurrency is exceeded at any lease, and no rate by the leases whose handlers began.

    `messages` has the leases; it sees each call first.
    """

    def __init__(self, store: Store, messages: Messages) -> None:
        super().__init__(store)
        self.messages = messages
        self.shared: dict[str, Gate] = {}
        """The limits of gates and groups, by "gate NAME" and "group NAME"."""
        self.has_fixed_keys = True
        """Whether no policy changes how keys are limited; else they are not checked."""
        self._limits: dict[str, _Limit] = defaultdict(_Limit)

    def saw_gate_set(self, call: Call) -> None:
        self.shared[f"gate {call.arguments[0]}"] = call.arguments[1]

    def saw_topic_group_set(self, call: Call) -> None:
        self.shared[f"group {call.arguments[0]}"] = call.arguments[1]

    def saw_gate_reset(self, call: Call) -> None:
        self._limits[f"gate {call.arguments[0]}"].grants.clear()

    def saw_topic_delete(self, call: Call) -> None:
        """Its leases have ended, and its rates begin again."""
        topic = call.arguments[0]
        self._limits.pop(f"topic {topic}", None)
        for name in [each for each in self._limits if each.startswith(f"key {topic} ")]:
            del self._limits[name]

    def saw_lease(self, call: Call) -> None:
        for lease in call.answer.leases:
            held = self.messages.by_fence[lease.fence]
            for name, rate, burst, concurrency in self._limits_of(lease):
                limit = self._limits[name]
                cost = 1 if name.startswith("key ") else control.cost(lease.headers)
                if rate is not None and not self.store.is_stopped:
                    limit.grants.append((held, rate, burst or default_burst(rate), cost))
                if concurrency is not None:
                    self._use(name, limit, held, concurrency, call.now)

    def _use(self, name: str, limit: _Limit, held: Held, most: int, now: int) -> None:
        limit.held.append(held)
        if len(limit.held) > most:
            limit.held = [each for each in limit.held if each.is_open and each.deadline > now]
        if len(limit.held) > most:
            raise self.broken(f"{name} has {len(limit.held)} leases, and a concurrency of {most}")

    def _limits_of(
        self, lease: Lease
    ) -> Iterator[tuple[str, float | None, float | None, int | None]]:
        """Name, rate, burst and concurrency of everything that a lease uses."""
        policy = self.store.policy_of(lease.topic)
        concurrency = policy.max_concurrency if policy.adapts else policy.concurrency
        yield f"topic {lease.topic}", policy.rate, policy.burst, concurrency
        names = [f"gate {name}" for name in gate_names(policy.gate)]
        if (group := group_of(policy.group, lease.topic)) is not None:
            names.append(f"group {group}")
        for name in names:
            gate = self.shared.get(name, Gate())
            yield name, gate.rate, gate.burst, gate.concurrency
        if lease.key is not None and self.has_fixed_keys:
            most = 1 if policy.serial is not None else policy.key_concurrency
            rate = policy.key_rate if policy.serial is None else None
            yield f"key {lease.topic} {lease.key}", rate, None, most

    def end(self) -> None:
        for name, limit in self._limits.items():
            settings, bucket = (0.0, 0.0), Bucket(0.0, 0.0)
            largest = max((cost for _, _, _, cost in limit.grants), default=1)
            for held, rate, burst, cost in limit.grants:
                if not held.begun:
                    continue
                if settings != (rate, burst):
                    settings = rate, burst
                    bucket = shared_bucket(rate, burst, largest, self.store.shards)
                if (over := bucket.take(held.at, cost)) > 0:
                    at = (held.at - self.store.clock.start) / SECOND
                    raise self.broken(
                        f"{name} exceeded its rate of {rate:g}/s by {over:.2f} at {at:.6f} s"
                    )


class Order(Check):
    """
    Messages of a key with `serial="hold"` are delivered in the order in which they were accepted.

    Left out are those with a delay, a priority or `at_front`.
    """

    def __init__(self, store: Store, messages: Messages) -> None:
        super().__init__(store)
        self.messages = messages
        self._accepted: dict[tuple[str, str], list[str]] = defaultdict(list)

    def saw_put(self, call: Call) -> None:
        for draft, receipt in zip(call.arguments[0], call.answer, strict=True):
            if receipt.outcome != "accepted" or draft.key is None or draft.signal is not None:
                continue
            is_plain = not (draft.delay_us or draft.at_us or draft.priority or draft.at_front)
            waits = SIGNALS_HEADER in (draft.headers or {})
            if is_plain and not waits and self.store.policy_of(draft.topic).serial == "hold":
                order = self._accepted[draft.topic, draft.key]
                if receipt.id in order:  # published again after its end
                    order.remove(receipt.id)
                order.append(receipt.id)

    saw_forward = saw_put

    def saw_policy_set(self, call: Call) -> None:
        """Messages from before another policy have their own order."""
        self._forget(call.arguments[1])

    saw_policy_reset = saw_policy_set

    def saw_dead_redrive(self, call: Call) -> None:
        """What an operator moves comes last."""
        self._forget(call.arguments[0])

    def saw_message_move(self, call: Call) -> None:
        self._forget(call.arguments[1])

    def _forget(self, pattern: str | None) -> None:
        for topic, key in list(self._accepted):
            if pattern is None or matches(pattern, topic):
                del self._accepted[topic, key]

    def saw_lease(self, call: Call) -> None:
        for lease in call.answer.leases:
            waiting = self._accepted.get((lease.topic, lease.key or ""), [])
            while waiting and waiting[0] != lease.id and self._has_ended(lease.topic, waiting[0]):
                waiting.pop(0)
            if lease.id in waiting and waiting[0] != lease.id:
                raise self.broken(
                    f"{lease.id} of {lease.topic} was delivered before {waiting[0]} of its key"
                )

    def _has_ended(self, topic: str, message_id: str) -> bool:
        fate = self.messages.fates.get((topic, message_id))
        if fate is None or fate.end is not None:
            return True
        return self.store.state_of(topic, message_id) not in ("waiting", "leased")
