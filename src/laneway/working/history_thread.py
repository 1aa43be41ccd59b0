"""The thread of a worker that takes samples for the history, and compares alarms with it."""

from __future__ import annotations

import logging
import random
import threading
import time

from laneway import storable
from laneway.engines.base import FullEngine
from laneway.errors import EngineUnavailable
from laneway.history import sampling
from laneway.history.alarms import Alarms
from laneway.history.records import SAMPLE_US
from laneway.units import SECOND

log = logging.getLogger("laneway.worker")

SPREAD_SECONDS = 2.0
"""
Workers look at different moments after an interval is over, so that one takes the sample and the
others find it there.
"""

END_SECONDS = 5.0


class HistoryThread(threading.Thread):
    """Looks once in each interval, from `start` to `end`."""

    def __init__(self, engine: FullEngine, alarms: Alarms) -> None:
        super().__init__(name="laneway-history", daemon=True)
        self._engine = engine
        self._alarms = alarms
        self._ending = threading.Event()
        self._clock_us = 0
        """The store's time, in microseconds, when `monotonic` was 0; 0: not known yet."""
        self._is_failing = False

    def end(self) -> None:
        """End the thread; waits for that."""
        self._ending.set()
        self.join(END_SECONDS)

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                self._look()
                self._alarms.check(self._engine)
            except Exception as error:  # noqa: BLE001  # the messages matter more
                is_away = isinstance(error, EngineUnavailable)
                if not self._is_failing:
                    log.log(
                        logging.DEBUG if is_away else logging.WARNING,
                        "taking a sample for the history failed; trying again every few seconds:"
                        " %s: %s",
                        storable.type_name(type(error)),
                        storable.of(error, storable.MAX_REASON),
                    )
                self._is_failing = True
            else:
                self._is_failing = False
            left_us = SAMPLE_US - self._now_us() % SAMPLE_US
            self._ending.wait(left_us / SECOND + random.uniform(0, SPREAD_SECONDS))

    def _look(self) -> None:
        """Take a sample, unless another process took it already."""
        if self._clock_us and not sampling.is_due(
            sampling.last_sample_us(self._engine), self._now_us()
        ):
            return
        self._clock_us = sampling.take(self._engine) - self._monotonic_us()

    def _now_us(self) -> int:
        return self._clock_us + self._monotonic_us()

    @staticmethod
    def _monotonic_us() -> int:
        return round(time.monotonic() * SECOND)
