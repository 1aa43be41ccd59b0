"""`fairlead worker` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from fairlead import Fairlead
app = Fairlead("sqlite:///work.db")
thing = 3

@app.handler("push.*")
def push(message):
    print("handled", message.body, flush=True)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in the folder, its output caught."""
    environment = {name: value for name, value in os.environ.items() if name != "FAIRLEAD_URL"}
    command = [sys.executable, "-m", "fairlead", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("target", ["shop:app", "shop.app", "shop"])
def test_a_burst(tmp_path: Path, target: str) -> None:
    """A burst handles what there is and ends; the current folder is looked in."""
    (tmp_path / "shop.py").write_text(APP)
    published = run(tmp_path, "--url", "sqlite:///work.db", "publish", "push.acme", "17")
    assert published.returncode == 0, published.stderr
    worked = run(tmp_path, "worker", target, "--burst", "-c", "2")
    assert worked.returncode == 0, worked.stderr
    assert "handled 17" in worked.stdout
    assert "1 done" in worked.stdout


@pytest.mark.parametrize(
    ("target", "told"),
    [("nothing:app", 'no module "nothing"'), ("shop:nothing", "shop:app"), ("shop:thing", "int"), ("broken:app", "absent_library")],
)
def test_what_was_not_found(tmp_path: Path, target: str, told: str) -> None:
    """An application that cannot be found is one line that names it, and exit code 2."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "broken.py").write_text("import absent_library\n")
    result = run(tmp_path, "worker", target)
    assert result.returncode == 2
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
