"""A command in a terminal of its own, as a user sits before it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

UNHURRIED = """
import sys
from laneway.cli import main
from laneway.cli.development import program, session

program.STOP_KILL_SECONDS, session.END_SECONDS = 20.0, 25.0
main(sys.argv[1:])
"""
"""
`laneway` whose `dev` gives its parts 25 s to end instead of 2: a busy machine may need more. What
does not end by itself is killed then, and the exit code tells it.
"""

RUN = "import os, sys; os.login_tty(0); from laneway.cli import main; main(sys.argv[1:])"


class InTerminal:
    """`laneway …` with a pseudo-terminal as its input, output and controlling terminal."""

    def __init__(
        self,
        *arguments: str,
        rows: int = 40,
        columns: int = 120,
        run: str = RUN,
        folder: Path | None = None,
    ) -> None:
        self._master, self._slave = os.openpty()
        self.resize(rows, columns)
        self.before = self.attributes()
        self._process = subprocess.Popen(
            [sys.executable, "-c", run, *arguments],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**os.environ, "TERM": "xterm-256color"},
            cwd=folder,
        )
        self.output = ""
        self._position = 0

    def attributes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def read_until(self, text: str, seconds: float = 200.0) -> None:
        """Read on until the text has come since the last call."""
        seen = ""
        deadline = time.monotonic() + seconds
        while text not in seen:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come, but: {seen[-2000:]!r}"
            ready, _, _ = select.select([self._master], [], [], left)
            if ready:
                seen += os.read(self._master, 65536).decode(errors="replace")
        self.output += seen

    def wait_for(self, text: str) -> None:
        """Read until the text has come after the one of the last call."""
        if text not in self.output[self._position :]:
            rest = len(self.output) - len(text)  # it may have come in part
            self._position = max(self._position, rest)
            while text not in self.output[self._position :]:
                self.read_until(text[-1])
        self._position = self.output.index(text, self._position) + len(text)

    def wait_for_all(self, *texts: str) -> None:
        """Read until all of these have come after the text of the last call, in any order."""
        begin, ends = self._position, []
        for text in texts:
            self._position = begin
            self.wait_for(text)
            ends.append(self._position)
        self._position = max(ends)

    def end(self, seconds: float = 60.0) -> int:
        """Its exit code; reads what still comes, so that it is not held up."""
        deadline = time.monotonic() + seconds
        while self._process.poll() is None:
            assert time.monotonic() < deadline, "it did not end"
            if select.select([self._master], [], [], 0.02)[0]:
                self.output += os.read(self._master, 65536).decode(errors="replace")
        return self._process.wait()

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)
