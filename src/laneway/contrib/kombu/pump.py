"""A thread that leases the messages of a channel's queues."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from laneway import Delivery, EngineUnavailable, Laneway, Refused

log = logging.getLogger("laneway.kombu")

WAIT_SECONDS = 20.0
"""Seconds of one wait for a message; subscriptions are looked after at its end."""

AWAY_SECONDS = 0.5
"""Seconds between attempts while the store is unavailable."""

BUFFER = 10
"""How many messages to lease ahead of a consumer without a prefetch limit."""


class Pump:
    """
    Leases messages of some topics and hands them over, while there is room for them.

    `hand_over` is called with the deliveries, from the pump's thread. `renew` is called now and
    then, and with True when a subscription of the topics does not exist any more.
    """

    def __init__(
        self,
        app: Laneway,
        pool: str,
        lease: float,
        hand_over: Callable[[list[Delivery]], object],
        renew: Callable[[bool], object],
    ) -> None:
        self._leases = app.leases(BUFFER, pool=pool, lease=lease)
        self._hand_over = hand_over
        self._renew = renew
        self._serving = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def serve(self, topics: Sequence[str]) -> None:
        """Lease messages of these topics and patterns, in fair order, and of no others."""
        if not topics:
            self._serving.clear()
            self._leases.wake()
            return
        if len(topics) == 1 and not topics[0].endswith("*"):
            self._leases.serve(topics=topics)
        else:
            self._leases.serve(only=topics)
        self._serving.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="laneway-kombu", daemon=True)
            self._thread.start()

    def __len__(self) -> int:
        """How many messages it holds that are not settled."""
        return len(self._leases)

    def limit(self, most: int) -> None:
        """Hold at most this number of messages that are not settled."""
        self._leases.limit = most

    def close(self) -> None:
        """Stop, and release what is not settled."""
        self._is_closed = True
        self._serving.set()
        self._leases.wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._leases.close()

    def _run(self) -> None:
        while True:
            self._serving.wait()
            if self._is_closed:
                return
            try:
                self._renew(False)
                self._take()
            except EngineUnavailable as error:
                log.warning("the broker cannot be reached, retrying: %s", error)
                time.sleep(AWAY_SECONDS)

    def _take(self) -> None:
        try:
            deliveries = self._leases.take(wait=WAIT_SECONDS)
        except Refused:
            self._renew(True)
            return
        if deliveries:
            self._hand_over(deliveries)
