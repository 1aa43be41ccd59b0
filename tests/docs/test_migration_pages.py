"""The steps of the pages about migrations work, as they are written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.testing.servers import Server, until

DOCS = Path(__file__).resolve().parents[2] / "docs"
REDIS = "redis://localhost:6379"
"""The server of the pages."""

MODULES = {"celery": "celery", "rq": "rq.cli", "laneway": "laneway"}
"""Commands that are modules."""


class Page:
    """The files and commands of a page, in a folder, with a server of the test."""

    def __init__(self, name: str, folder: Path, url: str) -> None:
        text = (DOCS / name).read_text().replace(REDIS, url)
        self.folder, self.url = folder, url
        flat = re.sub("^ +", "", text, flags=re.MULTILINE)
        self.steps = [
            [line[2:] for line in block.splitlines() if line.startswith("$ ")]
            for block in re.findall(r"```console\n(.*?)```", flat, re.DOTALL)
        ]
        for file, program in re.findall(r"```py\n# (\S+)\n(.*?)```", text, re.DOTALL):
            (folder / file).write_text(program)
        path = [str(folder), *map(os.path.abspath, sys.path)]
        self.environment = {"PYTHONPATH": os.pathsep.join(path), "RQ_REDIS_URL": url}
        self.background: list[subprocess.Popen[str]] = []

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command."""
        words = shlex.split(command.removesuffix("&"))
        own: dict[str, str] = {}
        while "=" in words[0]:
            own |= assignment(words.pop(0))
        if words[0] != "python":
            words[:1] = ["python", "-m", MODULES[words[0]]]
        return subprocess.Popen(
            [sys.executable, *words[1:]],
            cwd=self.folder,
            env=os.environ | self.environment | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str) -> str:
        """Run a command, or start it in the background; its output."""
        if command.startswith("export "):
            self.environment |= assignment(command.removeprefix("export "))
            return ""
        process = self.start(command)
        if command.endswith("&"):
            self.background.append(process)
            return ""
        output, _ = process.communicate(timeout=90)
        assert process.returncode == 0, f"{command}: {output}"
        return output

    def run_all(self, commands: list[str], awaited: str = "") -> list[str]:
        """
        Run the commands of a step; the lines of their output. Those in the background end when the
        file `awaited` exists.
        """
        try:
            output = "".join(map(self.run, commands))
            until((self.folder / awaited).exists, f"{awaited} exists")
            return output.splitlines()
        finally:
            for each in self.background:
                each.terminate()
            while self.background:
                self.background.pop().communicate(timeout=60)


def assignment(word: str) -> dict[str, str]:
    name, _, value = word.partition("=")
    return {name: value}


def greeted(lines: list[str]) -> list[str]:
    return [line.removeprefix("hello ") for line in lines if line.startswith("hello ")]


def test_from_rq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    An RQ program runs with workers of both kinds, Laneway's worker keeps a limit, and what waits
    returns to RQ. No job is lost, and none runs twice.
    """
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    with Server() as server:
        page = Page("from-rq.md", tmp_path, f"redis://localhost:{server.port}")
        _, plain, both, limits, back = page.steps
        assert greeted(page.run_all(plain)) == ["ann"]
        assert greeted(page.run_all(both)) == ["bob"]
        limited = page.run_all(limits)
        assert greeted(limited) == ["carl", "dora"]
        assert any(line.split()[:1] == ["mail"] for line in limited)
        returned = page.run_all([back[0].replace("mail", f"--url {page.url} mail"), *back[1:]])
        assert (returned[0], greeted(returned)) == ("mail: 1 jobs returned to RQ", ["emil"])


def test_from_celery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What waits in Redis, with an ETA and a chain, moves to Laneway and back; both brokers serve at
    the same time; beat continues, and results stay. No task is lost.
    """
    pytest.importorskip("celery")
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    every = "649"  # 25 sums, the one with a countdown, and the chain
    with Server() as server:
        page = Page("from-celery.md", tmp_path, f"redis://localhost:{server.port}")
        _, send, move, both, back = page.steps
        page.run_all(send)
        assert every in page.run_all(move, awaited="ticks")
        assert page.run_all(both).count(every) == 2
        assert every in page.run_all(back)
