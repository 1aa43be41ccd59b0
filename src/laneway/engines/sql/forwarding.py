"""`Queue.forward`: put a spool's batch once, however often it is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laneway.engines.base import FORWARDED_US, SpoolBatch
from laneway.engines.shared.naming import FORWARDED_KEY_BYTES, forwarded_key
from laneway.engines.sql import putting
from laneway.engines.sql.transaction import Transaction
from laneway.message import Draft, Receipt


def forward(tx: Transaction, drafts: Sequence[Draft], spool: str, batch: str) -> list[Receipt]:
    """Put the messages of the batch that this store has not taken. Raises BadMessage."""
    before = tx.one("forwarded_read", spool)
    if before is None:
        tx.run("forwarded_forget", tx.now - FORWARDED_US)
    taken = _keys(before[1]) if before is not None and before[0] == batch else set()
    keys = [forwarded_key(draft) for draft in drafts]
    left = [n for n, key in enumerate(keys) if key not in taken]
    receipts = [Receipt(draft.id or "", draft.topic, "duplicate") for draft in drafts]
    if left:
        answers = putting.put(tx, [drafts[n] for n in left], keeps_order=True)
        for n, answer in zip(left, answers, strict=True):
            receipts[n] = answer
            if answer.outcome != "refused":
                taken.add(keys[n])
    tx.run("forwarded_write", spool, batch, b"".join(taken), tx.now)
    return receipts


def spool_batches(tx: Transaction) -> list[SpoolBatch]:
    """The last batch of each spool that this store has taken messages of."""
    return [
        SpoolBatch(spool, batch, frozenset(_keys(taken)), at)
        for spool, batch, taken, at in tx.all("forwarded_all")
    ]


def import_spool_batches(tx: Transaction, batches: Iterable[SpoolBatch]) -> None:
    """Remember what another store has taken, unless this store has taken a later batch."""
    for spool, batch, taken, at in batches:
        present = tx.one("forwarded_read", spool)
        if present is not None and present[0] == batch:
            keys = _keys(present[1]) | taken
            tx.run("forwarded_write", spool, batch, b"".join(keys), max(at, present[2]))
        elif present is None or present[2] < at:
            tx.run("forwarded_write", spool, batch, b"".join(taken), at)


def _keys(stored: bytes) -> set[bytes]:
    starts = range(0, len(stored), FORWARDED_KEY_BYTES)
    return {stored[start : start + FORWARDED_KEY_BYTES] for start in starts}
