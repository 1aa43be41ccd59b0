"""
`Consumer`: the one process that reads an exclusive or failover subscription.

It holds a term, like the holder of an election, and the term's number is its fence. The
subscription's messages are in their own pool, so that nothing else leases them. A consumer's leases
end with its term: its successor gets the messages in order.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Self

from laneway import arguments, subscriptions
from laneway.awaitable import async_variant
from laneway.cluster.renewal import TermRenewal, TermTimes
from laneway.cluster.term import Term, clock
from laneway.cluster.term_store import Candidate, Claim, EngineTerms
from laneway.delivery import Delivery, ack_many, deliveries_of, lease_lost
from laneway.engines.base import FullEngine
from laneway.errors import Refused, UsageError
from laneway.message import Batch, releases
from laneway.policy import is_pattern
from laneway.printable import process_name
from laneway.subscriptions import Kind
from laneway.units import SECOND, Duration

ELECTION = "consumer:"
"""The prefix of the names of elections in which consumers hold terms."""

LEAST_TERM, MOST_TERM = 0.5, 3600.0
"""Limits in seconds: any pause would lose a shorter term; a longer one would delay a successor."""


def lack(engine: FullEngine, topic: str) -> str | None:
    """A sentence if nobody consumes the exclusive or failover subscription of this topic."""
    state = EngineTerms(lambda: engine, ELECTION + topic).state()
    return None if state.holder is not None else f"no consumer holds {topic}"


def _kind_of_pattern(engine: FullEngine, pattern: str, name: str) -> Kind:
    """The kind of a pattern's subscription with a single consumer. Raises Refused, UsageError."""
    table, topic = engine.policies(), subscriptions.topic_of(pattern, name)
    consumption = table.consumption(pattern, name)
    if consumption is not None and consumption[1] == pattern:
        return consumption[0]
    if consumption is not None:
        above = subscriptions.topic_of(consumption[1], name)
        raise UsageError(f"subscription {topic}: {_one_consumer_of(above)}")
    if not any(
        subscriptions.FIELD + name in table.layers(pattern).get(layer, {})
        for layer in ("operator", "code")
    ):
        raise Refused(f"subscription {topic} does not exist; subscribe first")
    raise UsageError(
        f"subscription {topic}: it is shared, so it needs no consumer; use a handler with"
        f' subscription="{name}"'
    )


def _one_consumer_of(topic: str) -> str:
    pattern, name = subscriptions.split(topic)
    return (
        f"{topic} has one consumer for all its topics; use"
        f' app.subscriptions.consumer("{pattern}", "{name}")'
    )


class Consumer:
    """
    The consumer of one exclusive or failover subscription, of a topic or of all topics of a
    pattern (`app.subscriptions.consumer("orders.*", "audit")`). Use it in a `with` block, which
    holds the subscription:

        with app.topic("orders#audit").consumer() as consumer:
            while deliveries := consumer.lease(100, wait=60):
                ...
                consumer.ack_until(deliveries[-1])

    Entering the block raises Refused if another process holds an exclusive subscription; for a
    failover subscription, it waits for its turn. Each method raises TermLost once this process no
    longer holds the subscription; its leases have then ended.
    """

    def __init__(
        self,
        engine: Callable[[], FullEngine],
        threads: Executor,
        topic: str,
        *,
        term: Duration,
        wait: Duration | None,
        holder: str = "",
    ) -> None:
        """
        `holder`: the name that `explain` shows for the holder of its leases, or "" for this
        process.
        """
        self._engine = engine
        self._threads = threads
        self.topic = topic
        seconds = arguments.seconds("consumer", "term", term)
        if not LEAST_TERM <= seconds <= MOST_TERM:
            raise UsageError(
                f"consumer: expected term to be from {LEAST_TERM:g} s to 1 h, got {term!r}"
            )
        self._times = TermTimes(seconds, seconds)
        self._wait = arguments.seconds_or_none("consumer", "wait", wait)
        self._store = EngineTerms(engine, ELECTION + topic)
        self._candidate = Candidate(secrets.token_hex(6), process_name())
        self._holder = holder or f"application {process_name()} (consumer)"
        self._term: Term | None = None
        self._renewal: TermRenewal | None = None
        self._pool = ""
        self._topics = None if is_pattern(topic) else [topic]
        """The topics that it leases from its pool, or None for all."""
        self._lock = threading.Lock()
        self._outstanding: dict[int, Delivery] = {}
        """By fence, in the order of delivery."""

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self._threads

    # Holding the subscription

    def __enter__(self) -> Self:
        kind = self.kind()
        until = None if self._wait is None else clock() + self._wait
        while (holder := self.claim()) is not None:
            left = self._times.look if until is None else until - clock()
            if kind == "exclusive" or left <= 0:
                waited = "" if kind == "exclusive" else f" and {self._wait:g} s have passed"
                raise Refused(
                    f"subscription {self.topic}: {holder} consumes it{waited}; it is {kind}"
                )
            time.sleep(min(left, self._times.look))
        return self

    def claim(self) -> str | None:
        """
        Hold the subscription, unless another process does. Returns that process, or None if held.
        """
        asked = clock()
        claim = self._store.claim(self._candidate, self._times.term)
        if not isinstance(claim, Claim):
            return claim.holder or "another process"
        held_until = asked + claim.left - self._times.margin
        self._term = Term(
            ELECTION + self.topic, claim.number, held_until, was_handed_over=claim.was_handed_over
        )
        self._renewal = TermRenewal(self._store, self._term, self._times, self.extend)
        self._renewal.start()
        return None

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self._aenter()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def close(self) -> None:
        """
        Release unsettled messages, and let another consumer take over. Closing twice is allowed.
        """
        term, self._term = self._term, None
        if term is None or self._renewal is None:
            return
        self._renewal.close()
        is_held = term.finish()
        with self._lock:
            leases = [delivery.lease for delivery in self._outstanding.values()]
            self._outstanding.clear()
        try:
            if is_held and leases:
                self._engine().settle(releases(leases, begun=True))
        finally:
            self._store.end(term.number, handed_over=is_held)

    def kind(self) -> str:
        """The subscription's kind. Raises Refused, UsageError."""
        engine = self._engine()
        base, name = subscriptions.split(self.topic)
        if is_pattern(base):
            kind = _kind_of_pattern(engine, base, name)
            self._pool = subscriptions.consumer_pool(self.topic)
            return kind
        kinds = {each.name: each.kind for each in engine.policy_of(base).subscriptions}
        if name not in kinds:
            raise Refused(f"subscription {self.topic} does not exist; subscribe first")
        if kinds[name] == "shared":
            raise UsageError(
                f"subscription {self.topic}: it is shared, so it needs no consumer; use"
                f' app.lease(topics=["{self.topic}"]) or a handler'
            )
        policy = engine.policy_of(self.topic)
        if policy.consumed_by is not None:
            raise UsageError(f"subscription {self.topic}: {_one_consumer_of(policy.consumed_by)}")
        self._pool = policy.pool
        return kinds[name]

    def _held_term(self) -> Term:
        if self._term is None:
            raise UsageError(f"consumer of {self.topic}: use it inside a `with` block")
        self._term.check()
        return self._term

    @property
    def fence(self) -> int:
        """
        The number of this consumer's term: larger than that of every earlier consumer. Write it
        with each change to your own store, and let that store refuse smaller numbers.
        """
        return self._held_term().number

    @property
    def term(self) -> Term:
        """The term that this process holds. Raises TermLost."""
        return self._held_term()

    @property
    def look(self) -> float:
        """Seconds between a candidate's checks whether the subscription is free."""
        return self._times.look

    @property
    def pool(self) -> str:
        """The pool of its messages, once `kind` has been read."""
        return self._pool

    @property
    def is_held(self) -> bool:
        """Whether this process holds the subscription now, by its own clock."""
        return self._term is not None and self._term.is_held

    # Consuming

    def lease(self, n: int = 1, *, wait: Duration = 0.0) -> list[Delivery]:
        """
        Lease up to `n` messages; wait at most `wait` for the first one. The leases are renewed
        until they are settled or the consumer ends. Raises TermLost; Refused if the subscription
        was removed.
        """
        arguments.whole("lease", "n", n)
        until = clock() + arguments.seconds("lease", "wait", wait)
        engine, topics = self._engine(), self._topics
        while True:
            term = self._held_term()
            batch = engine.lease(
                n,
                pool=self._pool,
                topics=topics,
                record_start=True,
                max_lease_us=max(1, round((term.until - clock()) * SECOND)),
                holder=self._holder,
            )
            if batch.leases:
                return self._take(term, batch)
            self.kind()  # raises if the subscription was removed meanwhile
            left = until - clock()
            if left <= 0:
                return []
            if batch.next_wake_us is not None:
                left = min(left, max(0.0, (batch.next_wake_us - batch.now_us) / SECOND))
            engine.wait(min(left, self._times.look), pool=self._pool, topics=topics)

    def _take(self, term: Term, batch: Batch) -> list[Delivery]:
        engine = self._engine()
        if not term.is_held:
            engine.settle(releases(batch.leases))
            raise term.loss()
        deliveries = deliveries_of(
            engine, batch, self.threads, lambda delivery: self.forget([delivery])
        )
        with self._lock:
            self._outstanding.update((delivery.fence, delivery) for delivery in deliveries)
        return deliveries

    def ack_until(self, delivery: Delivery) -> int:
        """
        Ack this delivery and all earlier ones that this consumer has not settled, in one step; for
        topics on several shards, in one step on each. Returns their number. Raises LeaseLost if one
        of their leases had ended; the other messages are finished nevertheless.
        """
        self._held_term()
        with self._lock:
            if delivery.fence not in self._outstanding:
                raise lease_lost(delivery.lease, "lost")
            acked: list[Delivery] = []
            for each in self._outstanding.values():
                acked.append(each)
                if each.fence == delivery.fence:
                    break
        ack_many(self._engine(), acked)
        return len(acked)

    def forget(self, deliveries: list[Delivery]) -> None:
        """Forget these deliveries, which are settled."""
        with self._lock:
            for delivery in deliveries:
                self._outstanding.pop(delivery.fence, None)

    def unsettled(self) -> set[tuple[int, int]]:
        """The handles and fences of its unsettled leases."""
        with self._lock:
            return {(each.lease.handle, each.fence) for each in self._outstanding.values()}

    def extend(self) -> None:
        """Extend unsettled leases until the term's end."""
        term = self._term
        with self._lock:
            leases = [each.lease for each in self._outstanding.values()]
        if term is None or not term.is_held or not leases:
            return
        by_us = max(1, round((term.until - clock()) * SECOND))
        held = self._engine().extend([(each.handle, each.fence) for each in leases], by_us)
        with self._lock:
            for lease, is_held in zip(leases, held, strict=True):
                if not is_held:
                    self._outstanding.pop(lease.fence, None)

    _aenter = async_variant(__enter__)
    aclose = async_variant(close)
    alease = async_variant(lease)
    aack_until = async_variant(ack_until)

    def __repr__(self) -> str:
        return f"<Consumer of {self.topic}, {'held' if self.is_held else 'not held'}>"
