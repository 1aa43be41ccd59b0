"""The recent counts of topics, as a file stores them; see `shared.recent`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.engines.shared.recent import KINDS, MOST, raised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Protocol

    class Transaction(Protocol):
        """What counting needs of a transaction."""

        now: int

        @property
        def all(self) -> Callable[..., Any]: ...
        @property
        def run(self) -> Callable[..., Any]: ...
        @property
        def run_many(self) -> Callable[..., Any]: ...


TRIM_AFTER = 250
"""New topics after which a process deletes those with the lowest scores."""

_as_list = msgspec.json.Encoder().encode


class RecentCounts:
    """What a process counts in one file. Only topics of which something is counted cost."""

    def __init__(self) -> None:
        self._new = 0
        """Topics that were added since the lowest ones were deleted."""

    def add(self, tx: Transaction, order: str, counts: Mapping[str, int]) -> None:
        """Count events of these topics."""
        kind = KINDS[order]
        known = scores(tx, order, list(counts))
        tx.run_many(
            "recent_write",
            [
                (kind.number, topic, raised(known.get(topic), count, tx.now, kind))
                for topic, count in counts.items()
            ],
        )
        self._new += len(counts) - len(known)
        if self._new >= TRIM_AFTER:
            self._new = 0
            for each in KINDS.values():
                tx.run("recent_trim", each.number, MOST)


def scores(tx: Transaction, order: str, topics: Sequence[str]) -> dict[str, float]:
    """The scores of these topics; those without one are left out."""
    return dict(tx.all("recent_read", KINDS[order].number, _as_list(topics)))
