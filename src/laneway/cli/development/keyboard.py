"""Single keys and signals of `laneway dev`, as events."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from laneway.cli.terminal import SingleKeys, characters

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Keyboard(SingleKeys):
    """
    The keys of `laneway dev`, and how often a signal came that stops the program.

    Keys are read only if standard input is a terminal, and this program is in its foreground.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                **dict.fromkeys(STOP_SIGNALS, self._count),
                signal.SIGCONT: lambda *_: self._begin(),
            },
            reads_keys=_is_foreground(),
        )
        self.stops = 0
        """How often SIGINT or SIGTERM came."""

    @property
    def is_there(self) -> bool:
        """Whether keys are read."""
        return self._keys is not None

    def wait(self, seconds: float) -> str:
        """The keys that were pressed; empty after `seconds`, a signal or `wake`."""
        _, pressed = self._read(seconds)
        if pressed == b"":  # the terminal is gone
            self._keys = None
            self.stops += 1
        return characters(pressed or b"").decode(errors="replace")

    def wake(self) -> None:
        """End `wait`, from any thread."""
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """
        Another part of the program uses the terminal in this block, as it was before; Ctrl-C ends
        that part only.
        """
        self._end()
        before = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
        signal.set_wakeup_fd(self._wakeup_before)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
            self._begin()

    def _count(self, *_: object) -> None:
        self.stops += 1


def _is_foreground() -> bool:
    """Whether standard input is a terminal that this program may read."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False
