"""What the senders of this process have counted, for metrics."""

from __future__ import annotations

from collections import Counter


class Counts:
    """
    Counts since the process began. `attempts`: by class of the answer, such as `"2xx"` or
    `"timeout"`. `skipped`: messages whose event their endpoint does not want. `opened`: how often a
    breaker opened. `dropped`: entries that the delivery log lost.
    """

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.skipped = 0
        self.opened = 0
        self.dropped = 0


COUNTS = Counts()

CLASSES = {status: f"{status}xx" for status in range(1, 10)}
