"""Acks that are stored together."""

from __future__ import annotations

import logging
import threading

from laneway import Delivery, EngineUnavailable, Laneway, LeaseLost

log = logging.getLogger("laneway.kombu")

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
