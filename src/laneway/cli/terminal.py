"""
The terminal for a live view: reads single keys without Enter, notices a new size, and restores the
terminal's settings at the end.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any, Literal

Event = Literal["quit", "resized", "time"]

QUIT_KEYS = b"qQ\x03\x04"
"""q, and the codes of Ctrl-C and Ctrl-D where the terminal does not handle them itself."""

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?", re.DOTALL)
"""What an arrow key, a function key, or a key with Alt sends."""


def read_single_keys(file: int, when: int = termios.TCSAFLUSH) -> None:
    """
    Let keys be read without Enter. Ctrl-C does not discard the keys before it: a read that `select`
    has just announced would block until the next key, and Ctrl-C would wait for it.
    """
    tty.setcbreak(file, when)
    attributes = termios.tcgetattr(file)
    attributes[3] |= termios.NOFLSH
    termios.tcsetattr(file, termios.TCSANOW, attributes)


def characters(keys: bytes) -> bytes:
    """What was typed, without arrow keys and other escape sequences."""
    return _SEQUENCE.sub(b"", keys)


class Terminal:
    """
    Reads standard input key by key inside the `with` block. The terminal's settings are restored
    however the block ends, even by SIGTERM.

    If standard input is not a terminal, `wait` only waits.
    """

    def __init__(self) -> None:
        self._keys: int | None = (
            sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        )
        self._attributes: list[Any] | None = None
        self._before: dict[int, Any] = {}
        self._signal_read, self._signal_write, self._wakeup_before = -1, -1, -1

    def __enter__(self) -> Terminal:
        # Signals write into a pipe, because a signal that another thread receives would not
        # interrupt `select`.
        self._signal_read, self._signal_write = os.pipe()
        os.set_blocking(self._signal_read, False)
        os.set_blocking(self._signal_write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._signal_write, warn_on_full_buffer=False)
        self._before = {
            signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, _end),
        }
        if self._keys is not None:
            self._attributes = termios.tcgetattr(self._keys)
            read_single_keys(self._keys)
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
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._signal_read)
        os.close(self._signal_write)

    def wait(self, seconds: float) -> Event:
        """Wait for the next event, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            watched = [self._signal_read] if self._keys is None else [self._signal_read, self._keys]
            ready, _, _ = select.select(watched, [], [], left)
            if self._signal_read in ready:
                os.read(self._signal_read, 4096)
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
        return any(key in QUIT_KEYS for key in characters(keys))


def _end(number: int, _: object) -> None:
    """Exit with the signal's code, running every `finally`."""
    sys.exit(128 + number)
