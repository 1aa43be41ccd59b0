"""Leasing and settling by hand: `app.lease`, and the `Delivery` that it returns."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any, get_args

import msgspec

from laneway import arguments, codec, units
from laneway.awaitable import async_variant
from laneway.engines.base import FullEngine, Queue
from laneway.engines.shared.interrupt import Interrupt
from laneway.errors import BadMessage, LeaseLost, Refused, UsageError
from laneway.message import (
    Batch,
    Draft,
    Lease,
    Message,
    Overload,
    Settlement,
    SettlementAnswer,
    releases,
)
from laneway.policy import is_pattern
from laneway.printable import process_name
from laneway.runtime.runtime import Runtime
from laneway.subscriptions import is_copy, split
from laneway.units import Duration

LOOK_SECONDS = 0.5
"""Seconds between two searches of a lease call that waits for a priority or pattern."""


class Delivery:
    """
    One leased message. Settle it with `ack`, `retry`, `dead` or `release`; `extend` renews the
    lease.

    A message that is neither settled nor extended returns to its topic when the lease ends. Each
    method raises LeaseLost if that has happened; nothing is changed then.
    """

    __slots__ = ("_ahead_us", "_engine", "_message", "_on_end", "lease", "threads")

    def __init__(
        self,
        engine: Queue,
        lease: Lease,
        threads: Executor,
        ahead_us: int,
        on_end: Callable[[Delivery], object] | None = None,
    ) -> None:
        """
        `ahead_us`: the store's clock minus this process's monotonic clock, in microseconds.
        `on_end`: called when the lease is settled here, or is found to have ended.
        """
        self._engine = engine
        self._on_end = on_end
        self._message: Message | None = None
        self._ahead_us = ahead_us
        self.lease = lease
        self.threads = threads

    @property
    def message(self) -> Message:
        """
        The message with its decoded body. Raises BadMessage if the body does not match its headers.
        """
        if self._message is None:
            self._message = codec.message_of(self.lease)
        return self._message

    @property
    def body(self) -> Any:
        """The message's body; a list of bodies if the policy merges `"all"`."""
        return self.message.body

    @property
    def id(self) -> str:
        """The message's id."""
        return self.lease.id

    @property
    def topic(self) -> str:
        """The message's topic."""
        return self.lease.topic

    @property
    def attempt(self) -> int:
        """1 for the first attempt; only failures of the message itself count."""
        return self.lease.attempt

    @property
    def deliveries(self) -> int:
        """How often the message was delivered, this time included."""
        return self.lease.deliveries

    @property
    def fence(self) -> int:
        """
        The number of this lease. It grows with each delivery, so a store can refuse the writes of
        an older holder.
        """
        return self.lease.fence

    @property
    def deadline(self) -> float:
        """
        When the lease ends: Unix time in seconds, by the store's clock. `extend` moves it.
        """
        return self.lease.deadline_us / units.SECOND

    def ack(self, publish: Iterable[Message] = ()) -> None:
        """
        Finish the message. `publish`: messages to publish in the same transaction.

        Messages without an id get one that is derived from this message's id, so a repetition is a
        `duplicate`.
        """
        following = [codec.draft(message) for message in _messages(publish)]
        self._settle(Settlement(self.lease.handle, self.lease.fence, "ack"), following)

    def retry(
        self,
        delay: Duration | None = None,
        error: str | None = None,
        *,
        overload: Overload | None = None,
    ) -> None:
        """
        Retry after the delay (default: the policy's backoff). It counts as an attempt; after the
        last one the message is a dead letter.

        `error` is stored with the message, its first 4,000 characters. `overload`: how the
        destination showed that it is overloaded, `"timeout"` or `"answer"`; a topic with
        `concurrency="auto"` lowers its limit. Raises BadMessage for an invalid delay, and
        UsageError if the topic delivers at most once, because the message was finished at its
        delivery.
        """
        delay_us = None if delay is None else _microseconds("retry", delay)
        _check_text("retry", "error", error)
        self._settle(
            Settlement(
                self.lease.handle,
                self.lease.fence,
                "retry",
                delay_us=delay_us,
                error=error,
                overload=_overload("retry", overload),
            )
        )

    def dead(self, reason: str = "rejected by the consumer") -> None:
        """
        Make the message a dead letter with this reason; its first 1,000 characters are stored.
        """
        _check_text("dead", "reason", reason)
        self._settle(Settlement(self.lease.handle, self.lease.fence, "dead", reason=reason))

    def release(self, *, begun: bool = True, overload: Overload | None = None) -> None:
        """
        Return the message immediately without counting an attempt. `begun=False` returns its rate
        permit too.

        `overload`: as in `retry`.
        """
        self._settle(
            Settlement(
                self.lease.handle,
                self.lease.fence,
                "release",
                begun=begun,
                overload=_overload("release", overload),
            )
        )

    def extend(self, by: Duration) -> None:
        """Extend the lease until at least `by` from now."""
        by_us, lease = _microseconds("extend", by), self.lease
        began_ns = time.monotonic_ns()
        if not self._engine.extend([(lease.handle, lease.fence)], by_us)[0]:
            self.ended()
            raise lease_lost(lease, "lost")
        self.extended(by_us, began_ns)

    def extended(self, by_us: int, began_ns: int) -> None:
        """
        Note that the lease was extended by a call that began then, by the monotonic clock. The
        store may have counted from a later moment, so the lease ends there no earlier than here.
        """
        deadline_us = began_ns // 1_000 + self._ahead_us + by_us
        self.lease.deadline_us = max(self.lease.deadline_us, deadline_us)

    def ended(self) -> None:
        """Notify the owner of the leases that this one has ended."""
        if self._on_end is not None:
            self._on_end(self)

    aack = async_variant(ack)
    aretry = async_variant(retry)
    adead = async_variant(dead)
    arelease = async_variant(release)
    aextend = async_variant(extend)

    def _settle(self, settlement: Settlement, publish: Sequence[Draft] = ()) -> None:
        answer = self._engine.settle(
            [codec.checked(settlement)], publish={0: publish} if publish else None
        )[0]
        self.ended()
        if answer in ("lost", "gone"):
            raise lease_lost(self.lease, answer)
        if settlement.action == "retry" and answer == "released":
            raise UsageError(
                f"message {self.lease.id} in {self.lease.topic}: retry has no effect with"
                " at_most_once: the message was finished when it was delivered; use"
                ' delivery="at_least_once" for messages that may be retried'
            )

    def __repr__(self) -> str:
        return (
            f"<Delivery of {self.id} in {self.topic}, attempt {self.attempt}, fence {self.fence}>"
        )


class Wanted(msgspec.Struct, frozen=True):
    """
    Which messages a call leases. `topics`: only these, strictly in this order, or None for all
    topics of the pool. `priorities`: the smallest and the largest. `only`: patterns; only their
    topics, in fair order. `lease_us`: the longest lease.
    """

    pool: str = "default"
    topics: Sequence[str] | None = None
    priorities: tuple[int, int] | None = None
    only: Sequence[str] | None = None
    lease_us: int | None = None

    @property
    def names(self) -> Sequence[str] | None:
        """The only topics that it may lease from, or None if `topics` is not a list of names."""
        if self.only is not None and not any(map(is_pattern, self.only)):
            return self.only
        return self.topics

    @classmethod
    def checked(
        cls,
        pool: str,
        topics: Sequence[str] | None,
        priorities: tuple[int, int] | None = None,
        only: Sequence[str] | None = None,
        lease: Duration | None = None,
    ) -> Wanted:
        """Check the arguments. Raises UsageError."""
        arguments.pool("lease", pool)
        topics = arguments.topics("lease", topics)
        only = arguments.patterns("lease", "only", only)
        if topics is not None and only is not None:
            raise UsageError("lease: expected topics (strictly in their order) or only, got both")
        lease_us = None
        if lease is not None:
            lease_us = round(arguments.seconds("lease", "lease", lease, least=1) * units.SECOND)
        return cls(pool, topics, priorities, only, lease_us)


def priorities(least: int | None, largest: int | None) -> tuple[int, int] | None:
    """
    The checked priorities of a lease, from its `priority` and `max_priority`, or None if it takes
    any. Raises UsageError.
    """
    if least is None and largest is None:
        return None
    least = codec.MIN_PRIORITY if least is None else least
    arguments.whole("lease", "priority", least, least=codec.MIN_PRIORITY, most=codec.MAX_PRIORITY)
    largest = codec.MAX_PRIORITY if largest is None else largest
    arguments.whole("lease", "max_priority", largest, least=least, most=codec.MAX_PRIORITY)
    return least, largest


def lease(
    runtime: Runtime,
    wanted: Wanted,
    count: int,
    wait: Duration,
    interrupt: Interrupt | None = None,
) -> list[Delivery]:
    """
    Lease up to `count` messages. Waits for the first one at most `wait`, or until `interrupt`.
    Raises UsageError, EngineUnavailable; Refused for a subscription that does not exist.
    """
    arguments.whole("lease", "n", count)
    deadline = time.monotonic() + arguments.seconds("lease", "wait", wait)
    interrupt = interrupt if interrupt is not None else Interrupt()
    engine, pool, topics = runtime.engine, wanted.pool, wanted.names
    while not interrupt.is_set:
        batch = lease_batch(engine, wanted, count, f"application {process_name()} (app.lease)")
        check_subscriptions(engine, () if batch.leases else topics)
        left = deadline - time.monotonic()
        if batch.leases or left <= 0:
            return deliveries_of(engine, batch, runtime.threads)
        if batch.next_wake_us is not None:
            left = min(left, max(0.0, (batch.next_wake_us - batch.now_us) / units.SECOND))
        if wanted.priorities is not None or (wanted.only is not None and topics is None):
            # The store wakes a waiting caller for any message, even an unwanted one.
            _sleep(min(max(left, 0.0), LOOK_SECONDS), interrupt)
            continue
        engine.wait(left, pool=pool, topics=topics, interrupt=interrupt)
    return []


def lease_batch(engine: FullEngine, wanted: Wanted, count: int, holder: str) -> Batch:
    """
    Lease up to `count` messages, without waiting. `holder`: shown to people as the leases' holder.
    Raises EngineUnavailable.
    """
    while True:
        batch = engine.lease(
            count,
            pool=wanted.pool,
            topics=wanted.topics,
            record_start=True,
            only=wanted.only,
            max_lease_us=wanted.lease_us,
            priorities=wanted.priorities,
            holder=holder,
        )
        if batch.leases or not batch.goes_on:  # else not all lanes were searched
            return batch


def deliveries_of(
    engine: Queue,
    batch: Batch,
    threads: Executor,
    on_end: Callable[[Delivery], object] | None = None,
) -> list[Delivery]:
    """The deliveries of a batch that was just leased."""
    ahead_us = batch.now_us - time.monotonic_ns() // 1_000
    return [Delivery(engine, lease, threads, ahead_us, on_end) for lease in batch.leases]


def check_subscriptions(engine: FullEngine, topics: Iterable[str] | None) -> None:
    """Raise Refused if one of these topics is the address of a subscription that does not exist."""
    for topic in topics or ():
        base, name = split(topic) if is_copy(topic) else (topic, "")
        if name and all(each.name != name for each in engine.policy_of(base).subscriptions):
            raise Refused(f"subscription {topic} does not exist; subscribe first")


def _sleep(seconds: float, interrupt: Interrupt) -> None:
    """Sleep, or until the interrupt."""
    is_over = threading.Event()
    with interrupt.waking(is_over.set):
        if not interrupt.is_set:
            is_over.wait(seconds)


async def alease(runtime: Runtime, wanted: Wanted, count: int, wait: Duration) -> list[Delivery]:
    """Like `lease`, awaited. A cancelled call releases the messages that arrive for it."""
    interrupt = Interrupt()

    def lease_or_release() -> list[Delivery]:
        deliveries = lease(runtime, wanted, count, wait, interrupt)
        if interrupt.is_set:  # the caller's loop may have ended: release here
            release_many(runtime.engine, deliveries, begun=False)
            return []
        return deliveries

    def release_late(leasing: asyncio.Future[list[Delivery]]) -> None:
        if not leasing.cancelled() and leasing.exception() is None:
            release_many(runtime.engine, leasing.result(), begun=False)

    leasing = asyncio.get_running_loop().run_in_executor(runtime.threads, lease_or_release)
    try:
        return await asyncio.shield(leasing)
    except asyncio.CancelledError:
        interrupt.set()
        leasing.add_done_callback(release_late)
        raise


def ack_many(engine: Queue, deliveries: Iterable[Delivery]) -> None:
    """
    Ack many messages in one transaction. Raises LeaseLost if some leases had ended; the other
    messages are finished nevertheless.
    """
    checked = _deliveries("ack_many", deliveries)
    answers = _settle_many(
        engine, checked, [Settlement(each.lease.handle, each.fence) for each in checked]
    )
    lost = [
        (each.lease, answer)
        for each, answer in zip(checked, answers, strict=True)
        if answer in ("lost", "gone")
    ]
    if lost:
        error = lease_lost(*lost[0])
        if len(lost) > 1:
            error.add_note(
                f"{len(lost)} of {len(checked)} leases were lost:"
                f" {', '.join(each.id for each, _ in lost)}"
            )
        raise error


def release_many(engine: Queue, deliveries: Iterable[Delivery], *, begun: bool = True) -> None:
    """
    Return many messages in one transaction, like `Delivery.release`. Messages whose leases had
    ended have already returned.
    """
    checked = _deliveries("release_many", deliveries)
    _settle_many(engine, checked, releases((each.lease for each in checked), begun=begun))


def extend_many(engine: Queue, deliveries: Iterable[Delivery], by: Duration) -> list[Delivery]:
    """
    Extend many leases in one transaction, like `Delivery.extend`. Returns the deliveries whose
    leases had ended.
    """
    checked, by_us = _deliveries("extend_many", deliveries), _microseconds("extend_many", by)
    if not checked:
        return []
    began_ns = time.monotonic_ns()
    extended = engine.extend([(each.lease.handle, each.fence) for each in checked], by_us)
    lost = []
    for delivery, is_extended in zip(checked, extended, strict=True):
        if is_extended:
            delivery.extended(by_us, began_ns)
        else:
            delivery.ended()
            lost.append(delivery)
    return lost


def _settle_many(
    engine: Queue, deliveries: Sequence[Delivery], settlements: Sequence[Settlement]
) -> list[SettlementAnswer]:
    if not settlements:
        return []
    answers = engine.settle(settlements)
    for delivery in deliveries:
        delivery.ended()
    return answers


def _deliveries(call: str, given: Iterable[Delivery]) -> list[Delivery]:
    try:
        deliveries = list(given)
    except TypeError:
        single = call.removesuffix("_many")
        raise UsageError(
            f"{call}: expected deliveries, got {given!r:.200}; a single one has `{single}`"
        ) from None
    for delivery in deliveries:
        if not isinstance(delivery, Delivery):
            raise UsageError(f"{call}: expected deliveries, got {delivery!r:.200}")
    return deliveries


def lease_lost(lease: Lease, answer: str) -> LeaseLost:
    """The error of a settle after the lease had ended. `answer`: the engine's answer."""
    ended = (
        "the lease has ended: it was settled already, it expired, or the store has lost its data"
    )
    why = "its topic was deleted" if answer == "gone" else ended
    return LeaseLost(
        f"message {lease.id} in {lease.topic}: {why} (fence {lease.fence}); nothing was changed",
        lease.id,
        lease.fence,
    )


def _messages(publish: Iterable[Message]) -> list[Message]:
    try:
        messages = list(publish)
    except TypeError:
        messages = [publish]  # type: ignore[list-item]  # the loop raises
    for message in messages:
        if not isinstance(message, Message):
            raise UsageError(f"ack: expected publish to be Messages, got {message!r:.200}")
    return messages


def _check_text(call: str, what: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{call}: expected {what} to be text, got {value!r:.80}")


def _overload(call: str, overload: object) -> Overload | None:
    choices = get_args(Overload)
    return None if overload is None else arguments.choice(call, "overload", overload, choices)


def _microseconds(call: str, duration: Duration) -> int:
    try:
        number = units.microseconds(duration)
        if number < 0:
            raise ValueError(f"expected a duration of at least 0, got {duration!r:.80}")
    except (ValueError, OverflowError) as error:
        raise BadMessage(f"{call}: {error}") from error
    return number
