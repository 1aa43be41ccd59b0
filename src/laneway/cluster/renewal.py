"""
Keeps a term while its holder works: one thread renews it in the store, another one watches the
time, because a store that does not answer must not keep the holder from stopping.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

import msgspec

from laneway.cluster.term import Term, clock
from laneway.cluster.term_store import TermStore
from laneway.errors import LanewayError
from laneway.printable import without_passwords

log = logging.getLogger("laneway.election")

MARGIN = 0.1
"""
The part of a term by which the holder stops before the store's deadline. It covers the difference
between two clocks' speeds, and the time that stopping takes.
"""

LOOK_SECONDS = 1.0
"""The longest time between two renewals. A renewal tells a holder that it must step down."""

WATCH_SECONDS = 0.5
"""The longest time between two reads of the clock: waits do not advance while a machine sleeps."""


class TermTimes(msgspec.Struct, frozen=True):
    """
    The times of an election, in seconds.

    `term`: how long a term lasts in the store without a renewal. `bound`: the time for handing
    over. `stalled`: how long the holder may go without checking its term before it counts as hung,
    or None for no limit.
    """

    term: float
    bound: float
    stalled: float | None = None

    @property
    def margin(self) -> float:
        """How much earlier a term ends for its holder than in the store."""
        return self.term * MARGIN

    @property
    def look(self) -> float:
        """Seconds between a holder's renewals, and between a candidate's reads."""
        return min(self.term / 4, LOOK_SECONDS)


class TermRenewal:
    """Renews one term until it is ended or lost. `renewed`: called after each renewal."""

    def __init__(
        self,
        store: TermStore,
        term: Term,
        times: TermTimes,
        renewed: Callable[[], object] | None = None,
    ) -> None:
        self._store = store
        self._term = term
        self._times = times
        self._renewed = renewed
        self._is_over = threading.Event()
        self._change = threading.Event()
        self._is_ask_due = False
        self._failed = False

    def start(self) -> None:
        """Start the threads."""
        for target, what in ((self._renew, "renewal"), (self._watch, "clock")):
            threading.Thread(target=target, name=f"laneway-term-{what}", daemon=True).start()

    def step_down(self, reason: str) -> None:
        """Make the holder step down on its own, and report it to the store. From any thread."""
        if not self._term.is_ending:
            self._is_ask_due = True
        self._term.end_soon(reason, self._times.bound)
        self._change.set()

    def close(self) -> None:
        """Stop renewing."""
        self._is_over.set()
        self._change.set()

    # In threads of their own

    def _renew(self) -> None:
        while not self._is_over.is_set():
            self._change.wait(self._times.look * random.uniform(0.8, 1.0))
            self._change.clear()
            if self._is_over.is_set():
                return
            if self._term.lost:
                if self._has_given_up():
                    return
                continue
            try:
                self._renew_once()
                if self._renewed is not None:
                    self._renewed()
            except Exception as error:  # noqa: BLE001  # the other thread ends the term in time
                self._report_failure(error)

    def _renew_once(self) -> None:
        term, times = self._term, self._times
        if self._is_ask_due:
            self._store.ask(term.number)
            self._is_ask_due = False
        sent = clock()
        renewal = self._store.renew(term.number, times.term, times.bound)
        if self._is_over.is_set():
            return
        if renewal is None:
            term.lose("the store reports that it has ended")
            return
        self._failed = False
        term.renewed(sent + renewal.left - times.margin)
        if renewal.is_asked:
            term.end_soon("its holder was asked to step down", times.bound)

    def _report_failure(self, error: Exception) -> None:
        if self._failed or self._is_over.is_set():
            return
        self._failed = True
        left = max(self._term.until - clock(), 0)
        text = without_passwords(str(error) or type(error).__name__)
        log.warning(
            "election %s: term %d cannot be renewed (%s); it is lost in %.1f s unless the store"
            " answers",
            self._term.name,
            self._term.number,
            text,
            left,
            exc_info=None if isinstance(error, LanewayError) else error,
        )

    def _has_given_up(self) -> bool:
        """
        Report a lost term to the store, so that no candidate waits for its end. ZooKeeper keeps the
        term while this process lives, which a method that does not return may prolong.
        """
        try:
            self._store.end(self._term.number, handed_over=False)
        except Exception as error:  # noqa: BLE001  # the next time
            log.debug("election %s: ending the lost term failed: %r", self._term.name, error)
            return False
        return True

    def _watch(self) -> None:
        term, stalled = self._term, self._times.stalled
        while not (self._is_over.is_set() or term.lost):
            now = clock()
            left = term.until - now
            if left <= 0:
                term.lose(
                    f"its holder has not handed over within {self._times.bound:g} s"
                    if term.is_past_bound(now + self._times.margin)  # the store's is later
                    else "the store did not confirm it in time"
                )
                self._change.set()
                return
            if stalled is not None and now - term.looked > stalled:
                self.step_down(f"its holder has not checked its term for {stalled:g} s")
                stalled = None
            self._is_over.wait(min(left, WATCH_SECONDS))
