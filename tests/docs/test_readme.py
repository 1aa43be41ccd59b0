"""What the README says is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(program: str) -> Iterator[str]:
    """The first word after `program`, wherever a console block or inline code starts with it."""
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
    for line in [
        *re.findall(r"^\$ (.*)$", blocks, re.MULTILINE),
        *re.findall(r"`([^`\n]+)`", README),
    ]:
        found = re.match(rf"{program} ([a-z-]+)", line)
        if found:
            yield found[1]


@pytest.mark.parametrize("name", sorted(set(commands("laneway")) - {"--help"}))
def test_commands_exist(name: str) -> None:
    """Each `laneway …` of the README is a command."""
    assert name in COMMANDS


@pytest.mark.parametrize("name", sorted(set(commands("make"))))
def test_targets_exist(name: str) -> None:
    """Each `make …` of the README is a target."""
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_program_runs(tmp_path: Path) -> None:
    """The first program runs as it is written."""
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert program is not None
    (tmp_path / "first.py").write_text(program[1])
    result = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "tell push.acme of order 17" in result.stdout


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page is a file."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
