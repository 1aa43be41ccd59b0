"""Every program of the pages runs as it is written, and every command of theirs exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))

PROGRAMS = [
    pytest.param(found[1], id=f"{page.stem}-{page.read_text()[: found.start()].count(chr(10)) + 1}")
    for page in PAGES
    for found in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(program: str, tmp_path: Path) -> None:
    """In an empty folder; those that are tests are run by pytest."""
    is_tests = "pytest.fixture" in program
    (tmp_path / "test_program.py").write_text(program)
    command = (
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "rate", "test_program.py"]
        if is_tests
        else ["-W", "error", "test_program.py"]
    )
    told = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) > 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options_exist(page: Path) -> None:
    """
    `laneway …` in a line of its own or in backquotes: the command is there, and so are its options.
    """
    for line in re.findall(
        r"(?:`|^\$ |=\S*/)(laneway [a-z][^`\n]*)", page.read_text(), re.MULTILINE
    ):
        _, name, *rest = line.split()
        assert name in COMMANDS, f"{page.name}: {line}"
        group = [
            word for word in rest[:1] if re.fullmatch("[a-z]+", word) and name in {"dead", "policy"}
        ]
        told = subprocess.run(
            [sys.executable, "-m", "laneway", name, *group, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert told.returncode == 0, f"{page.name}: {line}: {told.stderr}"
        for option in re.findall(r"--[a-z-]+", " ".join(rest)):
            assert option in told.stdout, f"{page.name}: {line}: there is no {option}"
