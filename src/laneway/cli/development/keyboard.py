"""Single keys and signals of `laneway dev`, as events."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Keyboard:
    """
    Reads keys without Enter inside the `with` block, and counts signals that stop the program.

    Keys are read only if standard input is a terminal, and this program is in its foreground.
    """

    def __init__(self) -> None:
        self.stops = 0
        """How often SIGINT or SIGTERM came."""
        self._keys: int | None = None
        self._attributes: list[Any] | None = None
        self._before: dict[int, Any] = {}
        self._wake_read, self._wake_write, self._wakeup_before = -1, -1, -1

    @property
    def is_there(self) -> bool:
        """Whether keys are read."""
        return self._keys is not None

    def __enter__(self) -> Keyboard:
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._count)
        self._before[signal.SIGCONT] = signal.signal(signal.SIGCONT, lambda *_: self._begin())
        if _is_foreground():
            self._keys = sys.stdin.fileno()
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def wait(self, seconds: float) -> str:
        """The keys that were pressed; empty after `seconds`, a signal or `wake`."""
        watched = [self._wake_read] if self._keys is None else [self._wake_read, self._keys]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        if self._keys not in ready or self._keys is None:
            return ""
        try:
            pressed = os.read(self._keys, 64)
        except OSError:
            pressed = b""
        if not pressed:  # the terminal is gone
            self._keys = None
            self.stops += 1
            return ""
        from laneway.cli.terminal import characters

        return characters(pressed).decode(errors="replace")

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

    def _begin(self) -> None:
        if self._keys is not None:
            import termios

            from laneway.cli.terminal import read_single_keys

            if self._attributes is None:
                self._attributes = termios.tcgetattr(self._keys)
            # not flushed: keys that were pressed while another part ran count
            read_single_keys(self._keys, termios.TCSADRAIN)

    def _end(self) -> None:
        if self._keys is not None and self._attributes is not None:
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._attributes)


def _is_foreground() -> bool:
    """Whether standard input is a terminal that this program may read."""
    try:
        return sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False
