"""
The terminal as a live view needs it: single keys without Enter, told when its size changes, and
left as it was found.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from types import TracebackType

Event = Literal["quit", "resized", "time"]

QUIT_KEYS = b"qQ\x03\x04"
"""q, and what Ctrl-C and Ctrl-D send where the terminal does not act on them itself."""


class Terminal:
    """
    Standard input, read key by key while inside; however that ends, also by SIGTERM, the terminal
    is as before.

    Without a terminal on standard input only the time passes.
    """

    def __init__(self) -> None:
        self._keys: int | None = (
            sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        )
        self._attributes: list[Any] | None = None
        self._before: dict[int, Any] = {}
        self._rang, self._bell, self._woken_before = -1, -1, -1

    def __enter__(self) -> Terminal:
        # Signals write into a pipe, so that the waiting select sees them: one that reaches another
        # thread would not interrupt it.
        self._rang, self._bell = os.pipe()
        os.set_blocking(self._rang, False)
        os.set_blocking(self._bell, False)
        self._woken_before = signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        self._before = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
        }
        if self._keys is not None:
            self._attributes = termios.tcgetattr(self._keys)
            tty.setcbreak(self._keys)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._attributes is not None and self._keys is not None:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._attributes)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._rang)
        os.close(self._bell)

    def wait(self, seconds: float) -> Event:
        """The next thing that happens, at the latest the end of so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            watched = [self._rang] if self._keys is None else [self._rang, self._keys]
            ready, _, _ = select.select(watched, [], [], left)
            if self._rang in ready:
                os.read(self._rang, 4096)
                return "resized"
            if self._keys in ready and self._pressed_quit():
                return "quit"
        return "time"

    def _pressed_quit(self) -> bool:
        assert self._keys is not None
        try:
            keys = os.read(self._keys, 64)
        except OSError:  # the terminal is gone
            return True
        if not keys:
            return True
        return not keys.startswith(b"\x1b") and any(
            key in QUIT_KEYS for key in keys
        )  # an arrow key is no q


def _end(number: int, _: object) -> None:
    """As the signal would have ended us, but by way of every `finally`."""
    sys.exit(128 + number)
