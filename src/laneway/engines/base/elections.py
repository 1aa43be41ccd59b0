"""Records of elections: the holders of terms. `laneway.cluster` defines their content."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Elections(Protocol):
    """
    One record for each election, changed by compare and swap, and the clock for its times.

    The rules of terms are in `laneway.cluster.term_store`, the same for all engines: a caller reads
    the record and the time, decides, and swaps. The swap fails if the record changed in between.
    """

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        """Read an election's record (JSON, or None without one) and the engine's time."""

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        """
        Replace an election's record if it is still `before` (compare and swap).

        Arguments: `before`, `after`: JSON; None for no record. `durable`: whether the change is as
        durable as a message. Renewals need not be durable if a failure that undoes one, such as a
        power cut, also ends the holder.

        Returns False, and changes nothing, if the record has changed.
        """

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        """
        List the names of the elections that have a record, in order, from the one after `after`.
        """
