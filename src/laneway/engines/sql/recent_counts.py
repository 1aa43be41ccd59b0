"""The recent counts of topics, as a store has them; see `shared.recent`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from laneway.engines.shared.recent import KINDS, MOST, least_score, raised
from laneway.engines.sql.store import Session

if TYPE_CHECKING:

    class Transaction(Session, Protocol):
        """What counting needs of a transaction."""

        now: int


TRIM_AFTER = 250
"""
New topics after which those with the lowest scores are deleted, on average: by chance, because what
a process counts is forgotten when another one writes.
"""

MOST_KNOWN = 10_000
"""Scores that are remembered."""


class RecentCounts:
    """
    What a process counts in one store. Only topics of which something is counted cost. It is valid
    as long as a `LaneCache`: no other process has written since the scores were read.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, float]] = {order: {} for order in KINDS}
        """By order: the scores that were read or written."""

    def add(self, tx: Transaction, order: str, counts: Mapping[str, int]) -> None:
        """Count events of these topics."""
        kind, known = KINDS[order], self._known[order]
        if len(known) >= MOST_KNOWN:
            known.clear()
        unknown = [topic for topic in counts if topic not in known]
        if unknown:
            known |= scores(tx, order, unknown)
        new = sum(topic not in known for topic in unknown)
        for topic, count in counts.items():
            known[topic] = raised(known.get(topic), count, tx.now, kind)
        tx.run_rows("recent_write", [(kind.number, topic, known[topic]) for topic in counts])
        if new and random.randrange(TRIM_AFTER) < new:
            tx.run("recent_trim", kind.number, MOST)
            known.clear()


def forget(tx: Transaction) -> None:
    """Delete the counts that are 0 by now, of topics where nothing has happened for long."""
    for kind in KINDS.values():
        tx.run("recent_forget", kind.number, least_score(tx.now, kind))


def scores(tx: Transaction, order: str, topics: Sequence[str]) -> dict[str, float]:
    """The scores of these topics; those without one are left out."""
    return dict(tx.all("recent_read", KINDS[order].number, tx.array(topics)))
