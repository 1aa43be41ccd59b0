"""How a store wakes workers that wait; a database adds how processes reach each other."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from laneway.engines.base import (
    HEARTBEAT_TIMEOUT,
    ArrivalListener,
    ResultListener,
    WorkListener,
)
from laneway.engines.shared.interrupt import Interrupt
from laneway.errors import LanewayError
from laneway.message import Lease, Settlement

LOOK_AGAIN = 1.0
"""Seconds after which a waiter looks by itself, in case a notification was lost."""

SENT_LEASE_SECONDS = HEARTBEAT_TIMEOUT
"""
The longest lease that is sent to a worker: as long as those that workers take by default, because
a worker that stands still for a moment must not lose it.
"""

LEAST_STARTABLE = 16
"""
How many slots of a worker are free at least while messages are leased to it without its asking: as
many as one inbox leases to it.
"""

log = logging.getLogger("laneway.engine")


class Wakeup(ABC):
    """
    Waits and notifications of one store. `look`: in how many seconds a pool may have something to
    lease; 0: now. The listeners in its lists are those of `listeners`.
    """

    names_shards: ClassVar[bool] = False  # whether each notification adds its shard to `changed`

    def __init__(self, look: Callable[[str, Sequence[str] | None], float]) -> None:
        self.look = look
        self.waiting: list[Any] = []
        self.listeners: list[Any] = []
        self.busy: list[Any] = []
        self.changed: set[int] = set()
        """The shards of notifications that no look, and no lease, has followed yet."""
        self.interrupted = 0
        self.look_again = LOOK_AGAIN
        """
        Seconds after which each waiter has looked again; for what is due sooner one is notified.
        """

    @abstractmethod
    def notify(
        self, pool: str, *, has_arrivals: bool = False, only_one: bool = False, shard: int = 0
    ) -> None:
        """
        Wake one waiter of the pool, and all that serve some topics only; if the first one does not
        exist and messages came, one arrival listener. `only_one`: nothing has become runnable,
        there is more than the caller takes.
        """

    def notify_results(self, ids: Sequence[str]) -> None:
        """Notify all result listeners that something was stored under these ids."""
        for listener in list(self.listeners):
            listener.notify(ids)

    def find_worker(self, pool: str) -> Any:
        """
        A waiting worker to which messages may be leased, or None. Call it, and `forget_workers`, in
        one thread at a time.
        """
        del pool

    def offer(self, worker: Any, lease: Lease | None) -> tuple[Any, ...]:
        """
        The values of a put for the worker that `find_worker` has found, from ?8 on. `lease`: what
        is known of it before the put; None: there is no worker.
        """
        del worker
        return (int(lease is not None),)

    def send_lease(self, worker: Any, lease: Lease, began: float) -> bool:
        """
        Send a lease to its worker. `began`: when its message was put (monotonic seconds). False:
        the worker will not receive it.
        """
        del worker, lease, began
        return False

    def forget_workers(self) -> None:  # noqa: B027  # few stores find any
        """Forget the workers that `find_worker` has found."""

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        """Sleep until notified, at most `timeout` s; True: there may be something to lease."""
        deadline, before = time.monotonic() + timeout, self.interrupted
        listener = self.work_listener(pool, topics, looks_always=True)
        try:
            with interrupt.waking(listener.wake):
                while self.interrupted == before and not interrupt.is_set:
                    left = deadline - time.monotonic()
                    if listener.poll(max(left, 0.0)):
                        return True
                    if left <= 0:
                        break
        finally:
            listener.close()
        return False

    @abstractmethod
    def work_listener(
        self,
        pool: str,
        topics: Sequence[str] | None,
        *,
        max_lease_us: int | None = None,
        looks_always: bool = False,
    ) -> WorkListener:
        """
        A listener that is notified of what can be leased in a pool. `looks_always`: its `poll`
        returns only if it has seen something to lease itself. `topics` as in `base.Wakeup`.
        """

    @abstractmethod
    def arrival_listener(self, pool: str) -> ArrivalListener:
        """A listener that is notified of arrivals in a pool."""

    @abstractmethod
    def result_listener(self) -> ResultListener:
        """A listener that is notified of stored outcomes and progress."""

    def interrupt(self) -> None:
        """End all waits of this process."""
        self.interrupted += 1
        for listener in list(self.waiting):
            listener.wake()


def take_back(settle: Callable[[Sequence[Settlement]], object], lease: Lease) -> None:
    """Release a message whose worker did not get its lease."""
    release = Settlement(lease.handle, lease.fence, "release", begun=False)
    try:
        settle([release])
    except LanewayError as error:  # the message was put; its lease ends by itself soon
        log.debug("message %s: its lease could not be taken back: %s", lease.id, error)


class Waits:
    """Those calls of an engine that its wakeup answers alone."""

    _wakeup: Wakeup

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        return self._wakeup.wait(timeout, pool, topics, interrupt or Interrupt())

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        return self._wakeup.arrival_listener(pool)

    def result_listener(self) -> ResultListener:
        return self._wakeup.result_listener()

    def interrupt(self) -> None:
        self._wakeup.interrupt()
