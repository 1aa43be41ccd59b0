"""Every program of the pages runs as it is written, and every command on them exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from laneway.cli.main import COMMANDS, main
from tests.docs.forks import Forks

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

PROGRAMS = [
    pytest.param(found[1], id=f"{page.stem}-{page.read_text()[: found.start()].count(chr(10)) + 1}")
    for page in PAGES
    if page.parent.name != "reference"  # signatures
    for found in re.finditer(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]
SERVED = [
    program
    for program in PROGRAMS
    if re.search(r"@\w+\.(handler|task)\b|\.schedule\(", str(program.values[0]))
]
"""Programs that a worker can serve."""


@pytest.fixture(scope="module")
def python() -> Iterator[Forks]:
    """An interpreter that has imported Laneway, and forks a process for each program."""
    with Forks() as forks:
        yield forks


@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if "serve_forever" not in str(each.values[0])]
)
def test_programs_run(program: str, tmp_path: Path, python: Forks) -> None:
    """A program runs in an empty folder. One that consists of tests is run by pytest."""
    (tmp_path / "test_program.py").write_text(program)
    if "pytest.fixture" in program:
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "gate_concurrency"]
        result = subprocess.run(
            [sys.executable, *command, "test_program.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
    else:
        code, output = python.run(tmp_path, ["python", "test_program.py"])
        assert code == 0, output


@pytest.mark.parametrize("program", SERVED)
def test_programs_can_be_imported(program: str, tmp_path: Path, python: Forks) -> None:
    """
    A worker imports a program with handlers: the import publishes nothing, runs no worker, creates
    no store and prints nothing.
    """
    (tmp_path / "test_program.py").write_text(program)
    assert python.run(tmp_path, ["import", "test_program.py"]) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["test_program.py"]


def test_there_are_programs() -> None:
    """The pages are found, and the patterns above match."""
    assert len(PROGRAMS) > 30
    assert len(SERVED) > 15


def command_of(words: list[str]) -> click.Command:
    """The command that the words name, however deep; an assertion error if there is none."""
    found: click.Command = main
    context = click.Context(main)
    for word in words:
        if not isinstance(found, click.Group):
            takes_words = any(isinstance(each, click.Argument) for each in found.params)
            assert takes_words or not word.isalpha(), f"{found.name} takes no {word!r}"
            break
        child = found.get_command(context, word)
        if child is None:
            is_name = found is main or word.isalpha()
            assert not is_name, f"{found.name} has no command {word!r}"
            break
        found = child
    return found


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
        command = command_of([name, *rest])
        there = {"--help"} | {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        for option in re.findall(r"(?<!\S)--[a-z-]+", " ".join(rest)):
            assert option in there, f"{page.name}: {line}: there is no {option}"
