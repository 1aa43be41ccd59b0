"""Reads the log files of the demo's other processes while they grow."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Handled(msgspec.Struct):
    """One line of a worker's log; times are seconds since 1970."""

    topic: str
    published: float
    started: float
    ended: float

    @staticmethod
    def read(line: str) -> Handled:
        topic, published, started, ended = line.split()
        return Handled(topic, float(published), float(started), float(ended))

    @property
    def wait(self) -> float:
        """Seconds from publish to the handler's start."""
        return self.started - self.published


class Growing:
    """The new lines of the files that match a pattern."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._read: dict[Path, int] = {}

    def lines(self) -> list[str]:
        """The complete lines since the last call."""
        found: list[str] = []
        for path in sorted(self._folder.glob(self._pattern)):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._read[path] = self._read.get(path, 0) + end
            found += data[:end].decode().splitlines()
        return found
