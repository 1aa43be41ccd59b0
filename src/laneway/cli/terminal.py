"""
The terminal for a live view, and for `laneway dev`: reads single keys without Enter, notices
signals, and restores the terminal's settings at the end.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

Event = Literal["quit", "resized", "time"]

QUIT_KEYS = b"qQ\x03\x04"
"""q, and the codes of Ctrl-C and Ctrl-D where the terminal does not handle them itself."""

_SEQUENCE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O?.)?", re.DOTALL)
"""What an arrow key, a function key, or a key with Alt sends."""


def read_single_keys(file: int, when: int) -> None:
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


class SingleKeys:
    """
    Reads standard input key by key, and notices signals, inside the `with` block. The terminal's
    settings and the signals' handlers are restored however the block ends.
    """

    _at_first = termios.TCSADRAIN
    """What happens to keys that were pressed before the block: they are read."""

    def __init__(
        self, handlers: Mapping[int, Callable[[int, Any], object]], *, reads_keys: bool
    ) -> None:
        self._handlers = handlers
        self._keys: int | None = sys.stdin.fileno() if reads_keys else None
        self._attributes: list[Any] | None = None
        self._before: dict[int, Any] = {}
        self._wake_read, self._wake_write, self._wakeup_before = -1, -1, -1

    def __enter__(self) -> Self:
        # Signals write into a pipe, because a signal that another thread receives would not
        # interrupt `select`.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number, handler in self._handlers.items():
            self._before[number] = signal.signal(number, handler)
        self._begin(self._at_first)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _read(self, seconds: float) -> tuple[bool, bytes | None]:
        """
        Whether a signal came within `seconds`, and the keys that were pressed: None for none, empty
        if the terminal is gone.
        """
        watched = [self._wake_read] if self._keys is None else [self._wake_read, self._keys]
        ready, _, _ = select.select(watched, [], [], seconds)
        is_woken = self._wake_read in ready
        if is_woken:
            os.read(self._wake_read, 4096)
        if self._keys is None or self._keys not in ready:
            return is_woken, None
        try:
            return is_woken, os.read(self._keys, 64)
        except OSError:
            return is_woken, b""

    def _begin(self, when: int = termios.TCSADRAIN) -> None:
        """Let keys be read without Enter."""
        if self._keys is not None:
            if self._attributes is None:
                self._attributes = termios.tcgetattr(self._keys)
            read_single_keys(self._keys, when)

    def _end(self) -> None:
        if self._keys is not None and self._attributes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._attributes)


class Terminal(SingleKeys):
    """
    The keys and signals of a live view. SIGTERM restores the terminal, too.

    If standard input is not a terminal, `wait` only waits.
    """

    _at_first = termios.TCSAFLUSH  # they were not meant for the view

    def __init__(self) -> None:
        super().__init__(
            {signal.SIGWINCH: lambda *_: None, signal.SIGTERM: _exit},
            reads_keys=sys.stdin is not None and sys.stdin.isatty(),
        )

    def wait(self, seconds: float) -> Event:
        """Wait for the next event, at most `seconds`."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            is_woken, keys = self._read(left)
            if keys is not None and (not keys or any(key in QUIT_KEYS for key in characters(keys))):
                return "quit"
            if is_woken:
                return "resized"
        return "time"


def _exit(number: int, _: object) -> None:
    """Exit with the signal's code, running every `finally`."""
    sys.exit(128 + number)
