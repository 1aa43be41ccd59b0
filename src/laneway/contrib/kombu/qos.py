"""What a channel has delivered and the consumer has not settled."""

from __future__ import annotations

import logging
from collections.abc import Callable

from laneway import Delivery, Laneway, LeaseLost
from laneway.contrib.kombu.acks import Acks
from laneway.contrib.kombu.pump import BUFFER

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
