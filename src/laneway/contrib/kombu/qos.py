"""What a channel has delivered and the consumer has not settled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from laneway import Delivery, EngineUnavailable, Laneway, LeaseLost
from laneway.contrib.kombu.pump import BUFFER

STORE_SECONDS = 0.005
"""An ack is stored after one to two of these periods. A worker that is killed loses it."""

AWAY_SECONDS = 0.5
"""Seconds between attempts while the store is unavailable."""


class Acks:
    """
    Acks of a channel until they are stored, by `store` or by a thread after a moment.

    While the store is unavailable they wait; their leases are renewed until they are stored.
    """

    def __init__(self, app: Laneway) -> None:
        self._app = app
        self._waiting: list[Delivery] = []
        self._changed = threading.Condition()
        self._stored = 0
        """How often acks were taken from those that wait."""
        self._thread: threading.Thread | None = None
        self._is_idle = self._is_closed = self._is_away = False

    def add(self, delivery: Delivery) -> int:
        """Add an ack. Returns how many the caller may store: 0 while the store is unavailable."""
        with self._changed:
            self._waiting.append(delivery)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify()
            elif self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="laneway-acks", daemon=True)
                self._thread.start()
            return 0 if self._is_away else len(self._waiting)

    def store(self) -> bool:
        """Store the acks that wait. Returns whether the store was available."""
        with self._changed:
            deliveries, self._waiting = self._waiting, []
            self._stored += 1
        try:
            self._app.ack_many(deliveries)
        except LeaseLost as error:
            log.warning("%s", "; ".join([str(error), *getattr(error, "__notes__", [])]))
        except EngineUnavailable as error:
            log.warning("%d acks cannot be stored, retrying: %s", len(deliveries), error)
            with self._changed:
                self._waiting = deliveries + self._waiting
            self._is_away = True
            return False
        self._is_away = False
        return True

    def close(self) -> None:
        """Store what waits, and end the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self.store()

    def _run(self) -> None:
        """Store what has waited for one period."""
        pause = STORE_SECONDS
        while not self._is_closed:
            with self._changed:
                stored = self._stored
                self._changed.wait_for(lambda: self._is_closed, pause)
                is_due = self._waiting and self._stored == stored
                self._is_idle = not self._waiting
                self._changed.wait_for(lambda: self._is_closed or not self._is_idle)
            pause = STORE_SECONDS
            if is_due and not self.store():
                pause = AWAY_SECONDS


log = logging.getLogger("laneway.kombu")

PARTS = 4
"""Acks are stored when they are a quarter of the prefetch count."""


class QoS:
    """
    The unsettled messages of a channel by delivery tag, and its prefetch count; the interface is
    that of `kombu.transport.virtual.QoS`. Any thread may settle.
    """

    restore_at_shutdown = False

    def __init__(
        self, app: Laneway, on_change: Callable[[], object], count_leases: Callable[[], int]
    ) -> None:
        """
        `on_change`: called when the number of messages or the prefetch count has changed;
        `count_leases`: the number of messages that are leased, with those that are acked.
        """
        self._on_change = on_change
        self._count_leases = count_leases
        self._prefetch_count = 0
        self._held: dict[int, Delivery] = {}
        self._acks = Acks(app)

    @property
    def prefetch_count(self) -> int:
        """How many messages may be unsettled; 0: any number."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int | None) -> None:
        self._prefetch_count = count or 0
        self._on_change()

    def __len__(self) -> int:
        return len(self._held)

    def can_consume(self) -> bool:
        """Whether another message may be delivered."""
        return not self._prefetch_count or len(self._held) < self._prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """How many more messages may be delivered, or None for any number."""
        return max(0, self._prefetch_count - len(self._held)) if self._prefetch_count else None

    def append(self, delivery: Delivery) -> None:
        """Hold a message until it is settled."""
        self._held[delivery.fence] = delivery
        if not self._prefetch_count:
            self._on_change()

    def get(self, tag: int) -> Delivery:
        """The message with a tag. Raises KeyError."""
        return self._held[tag]

    def ack(self, tag: int) -> None:
        """
        Finish a message. Acks are stored together: when they are a quarter of the prefetch count,
        when nothing else is leased, or after a moment.
        """
        delivery = self._held.pop(tag, None)
        if delivery is None:
            return
        count = self._acks.add(delivery)
        if count * PARTS >= (self._prefetch_count or BUFFER) or count >= self._count_leases():
            self._acks.store()
        if not self._prefetch_count:
            self._on_change()

    def reject(self, tag: int, requeue: bool = False) -> None:
        """Return a message to its queue, or make it a dead letter."""
        self._settle(tag, Delivery.release if requeue else Delivery.dead)

    def refuse(self, tag: int, reason: str) -> None:
        """Make a message a dead letter with a reason."""
        self._settle(tag, lambda delivery: delivery.dead(reason))

    def restore_unacked(self) -> None:
        """Return all messages to their queues."""
        for tag in list(self._held):
            self.reject(tag, requeue=True)

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Nothing to do: the end of a channel releases what it holds."""

    def restore_visible(self, *_: object, **__: object) -> None:
        """Nothing to do: leases that run out are ready again without it."""

    def close(self) -> None:
        """Store all acks, and each later one immediately."""
        self._acks.close()

    def _settle(self, tag: int, settle: Callable[[Delivery], object]) -> None:
        delivery = self._held.pop(tag, None)
        if delivery is None:
            return
        try:
            settle(delivery)
        except LeaseLost as error:
            log.warning("%s", error)
        finally:
            if not self._prefetch_count:
                self._on_change()
