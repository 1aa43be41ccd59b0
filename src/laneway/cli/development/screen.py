"""The lines that `laneway dev` writes; they wait while another program has the terminal."""

from __future__ import annotations

import sys
import threading
from collections import deque

import click

from laneway.printable import escaped, without_passwords

MAX_HELD = 1000
"""Lines that wait; of more, the last ones are kept."""


class Screen:
    """Writes lines on standard output, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: deque[str] | None = None

    def say(self, text: str, *, lines: bool = False, **style: bool | str) -> None:
        """Write one line, or several; control characters are escaped."""
        self._put(click.style(escaped(without_passwords(text), lines=lines), **style))  # type: ignore[arg-type]

    def error(self, text: str) -> None:
        """Write one line about a mistake or a failure."""
        self.say(text, fg="red")

    def write(self, text: str) -> None:
        """Write lines that are escaped already, such as a traceback."""
        if text:
            self._put(text.rstrip("\n"))

    def hold(self) -> None:
        """Keep the lines until `show`."""
        with self._lock:
            if self._held is None:
                self._held = deque(maxlen=MAX_HELD)

    def show(self) -> None:
        """Write the lines that waited."""
        with self._lock:
            held, self._held = self._held, None
            for each in held or ():
                click.echo(each)

    def _put(self, text: str) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(text)
            else:
                click.echo(text)
                sys.stdout.flush()
