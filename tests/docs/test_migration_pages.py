"""The steps of the pages about migrations work, as they are written."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.testing.servers import Server

DOCS = Path(__file__).resolve().parents[2] / "docs"
REDIS = "redis://localhost:6379"
"""The server of the pages."""

MODULES = {"rq": "rq.cli", "laneway": "laneway"}
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

    def run(self, command: str) -> str:
        """Run a command; its output."""
        words = shlex.split(command)
        if words[0] != "python":
            words[:1] = ["python", "-m", MODULES[words[0]]]
        ran = subprocess.run(
            [sys.executable, *words[1:]],
            cwd=self.folder,
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join([str(self.folder), *map(os.path.abspath, sys.path)]),
                "RQ_REDIS_URL": self.url,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def run_all(self, commands: list[str]) -> list[str]:
        """Run commands; the lines of their output."""
        return "".join(map(self.run, commands)).splitlines()


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
