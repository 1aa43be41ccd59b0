"""`Leases`: messages that a program leases by hand, and that are renewed until it settles them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Self

import msgspec

from laneway import arguments, units
from laneway.delivery import (
    Delivery,
    Wanted,
    check_subscriptions,
    deliveries_of,
    lease_batch,
    release_many,
)
from laneway.engines.base import WorkListener
from laneway.engines.shared.waiting_listener import WaitingListener
from laneway.errors import EngineUnavailable
from laneway.message import Batch
from laneway.printable import process_name
from laneway.runtime.runtime import Runtime
from laneway.units import Duration

log = logging.getLogger("laneway.leases")

RENEWALS = 3
"""Renewals during the length of a lease, so that two of them may fail."""

AWAY_SECONDS = 0.5
"""Seconds between attempts to renew while the store is unavailable."""

SEARCH_SECONDS = 0.25
"""
Seconds between two searches while the store has only messages of other topics than the wanted ones.
"""


class Leases:
    """
    At most `limit` leases of this process, renewed by a thread until they are settled.

    `take` returns messages; settle them with their own methods, or with `ack_many` and
    `release_many`, from any thread. `close` releases those that were not settled. One thread calls
    `take`, and `close` after that; any thread may call the other methods.
    """

    def __init__(self, runtime: Runtime, wanted: Wanted, limit: int) -> None:
        self._runtime = runtime
        self._engine = runtime.engine
        self._wanted = self._next_wanted = wanted
        self._limit = arguments.whole("leases", "limit", limit)
        self._process = os.getpid()
        self._held: dict[int, Delivery] = {}
        self._changed = threading.Condition()
        self._is_woken = self._is_closed = self._is_listening = False
        self._is_interrupted = False
        """Whether to end a wait without ending the `take` that it belongs to."""
        self._listener: WorkListener | None = None
        self._search_at = 0.0
        """When to search again for wanted messages among others (monotonic seconds)."""
        self._look_at = 0.0
        """When to ask the store again without a notification (monotonic seconds)."""
        self._lease_us = wanted.lease_us or units.MAX_SECONDS * units.SECOND
        """The length of the shortest lease so far, and of a renewal."""
        self._renewed_us = self._lease_us
        """The value of `_lease_us` when the renewal's current pause began."""
        self._ended: list[Delivery] = []
        """Leases that the last renewal could not extend."""
        self._renewal: threading.Thread | None = None

    @property
    def limit(self) -> int:
        """
        The maximum number of leases that it holds. A new limit applies from the next `take` on.
        """
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        with self._changed:
            self._limit = arguments.whole("leases", "limit", limit)
            self._changed.notify_all()

    @property
    def room(self) -> int:
        """How many more messages may be leased now."""
        return self._limit - len(self._held)

    def __len__(self) -> int:
        """How many leases it holds."""
        return len(self._held)

    def take(self, n: int | None = None, *, wait: Duration = 0.0) -> list[Delivery]:
        """
        Lease up to `n` messages (default: up to the limit). Waits at most `wait` for room and for
        the first message; each settled message makes room.

        Returns an empty list after `wait` seconds or after `wake`. Raises EngineUnavailable,
        UsageError; Refused for a subscription that does not exist.
        """
        most = None if n is None else arguments.whole("take", "n", n)
        deadline = time.monotonic() + arguments.seconds("take", "wait", wait)
        taken: list[Delivery] = []
        try:
            while not taken and not self._take_wake():
                self._take_topics()
                room = self.room if most is None else min(most, self.room)
                if room <= 0:
                    self._stop_listening()
                elif found := self._lease(room):
                    taken = found
                    break
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                taken = self._wait(left, room)
        finally:
            taken += self._stop_listening()
        return taken

    def wake(self) -> None:
        """Make the current or next `take` return immediately with the messages that it has."""
        with self._changed:
            self._is_woken = True
            listener = self._listener
            self._changed.notify_all()
        if listener is not None:
            listener.wake()

    def serve(
        self, *, topics: Sequence[str] | None = None, only: Sequence[str] | None = None
    ) -> None:
        """
        Take messages of these topics or patterns from now on; a `take` that is waiting switches to
        them. Current leases are kept. Raises UsageError.
        """
        old = self._wanted
        wanted = Wanted.checked(old.pool, topics, None, only)
        with self._changed:
            self._next_wanted = msgspec.structs.replace(wanted, lease_us=old.lease_us)
            self._is_interrupted = True
            listener = self._listener
            self._changed.notify_all()
        if listener is not None:
            listener.wake()

    def close(self) -> None:
        """
        Release the messages that were not settled, and stop renewing. Does nothing in a forked
        child.
        """
        if self._process != os.getpid():
            return
        with self._changed:
            self._is_closed = self._is_woken = True
            self._changed.notify_all()
        if self._listener is not None:
            self._stop_listening()
            self._listener.close()
            self._listener = None
        held = list(self._held.values())
        with contextlib.suppress(EngineUnavailable):  # they run out
            release_many(self._engine, held, begun=False)
        if self._renewal is not None:
            self._renewal.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Taking

    def _take_topics(self) -> None:
        """Begin with the topics that `serve` has named."""
        with self._changed:
            self._is_interrupted = False
            wanted, self._wanted = self._wanted, self._next_wanted
            listener = self._listener
            if self._wanted is wanted or listener is None:
                return
            self._listener = None
        self._search_at = 0.0
        if self._is_listening:
            self._is_listening = False
            with contextlib.suppress(EngineUnavailable):
                if isinstance(found := listener.pause(), Batch):
                    release_many(self._engine, self._hold(found), begun=False)
        listener.close()

    def _take_wake(self) -> bool:
        with self._changed:
            woken, self._is_woken = self._is_woken, self._is_closed
        return woken

    def _lease(self, room: int) -> list[Delivery]:
        if time.monotonic() < self._search_at:
            return []
        batch = lease_batch(
            self._engine, self._wanted, room, f"application {process_name()} (app.leases)"
        )
        if not batch.leases:
            check_subscriptions(self._engine, self._wanted.names)
            self._note_nothing(batch)
        return self._hold(batch)

    def _note_nothing(self, batch: Batch) -> None:
        """Decide how long to wait at most until the store is asked again."""
        self._look_at = time.monotonic() + units.MAX_SECONDS
        if batch.next_wake_us is not None:
            seconds = (batch.next_wake_us - batch.now_us) / units.SECOND
            self._look_at = time.monotonic() + max(0.0, seconds)
        if batch.passed_over and self._wanted.names is None:
            # The store would notify this process immediately of messages of other topics.
            self._search_at = self._look_at = time.monotonic() + SEARCH_SECONDS
            if self._listener is not None and self._is_listening:
                self._listener.pass_on()

    def _hold(self, batch: Batch) -> list[Delivery]:
        deliveries = deliveries_of(self._engine, batch, self._runtime.threads, self._drop)
        if not deliveries:
            return []
        shortest = min(delivery.lease.deadline_us for delivery in deliveries) - batch.now_us
        with self._changed:
            self._held.update((delivery.fence, delivery) for delivery in deliveries)
            if 0 < shortest < self._lease_us:
                self._lease_us = shortest
                self._changed.notify_all()
            if self._renewal is None:
                self._renewal = threading.Thread(
                    target=self._renew, name="laneway-leases", daemon=True
                )
                self._renewal.start()
        return deliveries

    def _drop(self, delivery: Delivery) -> bool:
        """Stop holding a lease. Returns whether it was held."""
        with self._changed:
            was_held = self._held.pop(delivery.fence, None) is not None
            self._changed.notify_all()
        return was_held

    def _wait(self, seconds: float, room: int) -> list[Delivery]:
        """Wait for room or a message. Returns what the store leased to this process meanwhile."""
        now = time.monotonic()
        if room <= 0:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over() or self.room > 0, seconds)
            return []
        if now < self._search_at:
            with self._changed:
                left = min(seconds, self._search_at - now)
                self._changed.wait_for(self._is_over, left)
            return []
        listener = self._open_listener()
        startable = room if self._wanted.topics is None and self._wanted.only is None else 0
        self._is_listening = True
        found = listener.poll(max(0.0, min(seconds, self._look_at - now)), startable)
        return self._hold(found) if isinstance(found, Batch) else []

    def _is_over(self) -> bool:
        return self._is_woken or self._is_interrupted

    def _open_listener(self) -> WorkListener:
        listener = self._listener
        if listener is None:
            create = getattr(self._engine, "work_listener", None)
            pool, names = self._wanted.pool, self._wanted.names
            if create is None:  # an engine of somebody else
                listener = WaitingListener(self._engine, pool, names)
            else:
                listener = create(pool, names, max_lease_us=self._wanted.lease_us)
            with self._changed:
                self._listener = listener
                if self._is_over():
                    listener.wake()
        return listener

    def _stop_listening(self) -> list[Delivery]:
        if not self._is_listening or self._listener is None:
            return []
        self._is_listening = False
        found: Batch | bool = False
        with contextlib.suppress(EngineUnavailable):
            found = self._listener.pause()
        return self._hold(found) if isinstance(found, Batch) else []

    # Renewing

    def _renew(self) -> None:
        """Extend all leases until they are closed. Runs in a thread of its own."""
        pause: float | None = None
        while True:
            with self._changed:
                self._renewed_us = self._lease_us
                seconds = pause or self._lease_us / units.SECOND / RENEWALS
                self._changed.wait_for(self._is_renewal_due, seconds)
                if self._is_closed:
                    return
                held = list(self._held.values())
            pause = self._extend(held)

    def _is_renewal_due(self) -> bool:
        """Whether to stop waiting: closed, or a shorter lease was taken."""
        return self._is_closed or self._lease_us < self._renewed_us

    def _extend(self, held: Sequence[Delivery]) -> float | None:
        """Extend these leases. Returns how soon to try again if that was not possible."""
        pairs = [(delivery.lease.handle, delivery.fence) for delivery in held]
        began_ns = time.monotonic_ns()
        try:
            extended = self._engine.extend(pairs, self._lease_us) if pairs else []
        except EngineUnavailable as error:
            log.warning("%d leases cannot be renewed, retrying: %s", len(held), error)
            return AWAY_SECONDS
        ended = [delivery for delivery, done in zip(held, extended, strict=True) if not done]
        for delivery, done in zip(held, extended, strict=True):
            if done:
                delivery.extended(self._lease_us, began_ns)
        # Another thread may settle a lease meanwhile, which is then soon removed.
        lost = [delivery for delivery in ended if delivery in self._ended and self._drop(delivery)]
        self._ended = ended
        if lost:
            log.warning(
                "%d leases were lost; their messages are delivered again: %s",
                len(lost),
                ", ".join(delivery.id for delivery in lost[:10]),
            )
        return None
