"""
The pages that a reader follows step by step: their files and commands, with the output that they
show.

A Python block after a line that ends with "`shop.py`:" is that file. In a console block a line
that begins with `$` is a command, and the lines below it are its output, in any order: `…` stands
for anything, and a number for any number. `^C` interrupts the command when the lines above it have
been printed. `ID` is the last message id that was shown. A command that ends with `&` runs until
`kill %1`, and what it prints belongs to the commands after it. The pages of the tutorial are read
one after the other in one folder, so what a page leaves behind meets the next one.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.testing.servers import free_port
from tests.docs.forks import Forks

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIAL = [
    DOCS / "tutorial" / f"{name}.md"
    for name in ("first-queue", "two-customers", "dead-endpoint", "production")
]
GUIDES = sorted((DOCS / "guides").glob("*.md"))
STORIES = {"tutorial": TUTORIAL} | {guide.stem: [guide] for guide in GUIDES}
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ANY_ID = r"\b[0-9a-f]{4,9}-[0-9a-f]{12}\b"
STEP = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
MESSAGE_ID = re.compile(ANY_ID)
PORT = "8000"
"""The port of receivers on the pages."""


@pytest.fixture(scope="module")
def python() -> Iterator[Forks]:
    with Forks() as forks:
        yield forks


class Story:
    """Pages that are followed in a folder, one after the other."""

    def __init__(self, pages: list[Path], folder: Path, python: Forks) -> None:
        text = "\n".join(page.read_text() for page in pages)
        self.text = text.replace(PORT, str(free_port()))
        self.folder, self.python = folder, python
        self.output = folder.parent / f"{folder.name}.out"
        self.output.touch()
        self.environment: dict[str, str] = {}
        self.background: list[int] = []
        self.seen = ""

    def follow(self) -> None:
        for found in BLOCK.finditer(self.text):
            kind, block = found.groups()
            file = re.search(r"`([\w/]+\.py)`:\n\n\Z", self.text[: found.start()])
            if kind == "python" and file:
                (self.folder / file[1]).write_text(block)
            elif kind == "console":
                for command, expected in re.findall(
                    r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE
                ):
                    self.do(command, expected)

    def do(self, command: str, expected: str) -> None:
        """Run a command, and compare its output."""
        words = shlex.split(command, comments=True)
        if words[0] in ("pip", "mkdir", "python3", "cd", ".") or words[0].startswith(".venv"):
            return
        if words[0] == "export":
            self.environment |= dict(word.split("=", 1) for word in words[1:])
            return
        if words == ["kill", "%1"]:
            self.end()
            return
        found = MESSAGE_ID.findall(self.seen)
        words = [found[-1] if word == "ID" and found else word for word in words]
        begin = self.output.stat().st_size
        is_background = words[-1] == "&"
        words = words[:-1] if is_background else words
        process = self.python.start(self.folder, words, self.output, self.environment)
        if is_background:
            self.background.append(process)
        elif "\n^C\n" in expected:
            self.wait_for(begin, expected.partition("^C\n")[0] + "…\n", command)
            os.kill(process, signal.SIGINT)
            expected = expected.replace("^C\n", "")
        if not is_background and (code := self.python.wait(process)) != 0:
            pytest.fail(f"{command} ended with {code}:\n{self.shown(begin)}", pytrace=False)
        self.wait_for(begin, expected, command)

    def wait_for(self, begin: int, expected: str, command: str) -> None:
        """Wait until that is printed: by a process that runs, or one in the background."""
        for _ in range(400):
            self.seen = self.shown(begin)
            if not expected or matches(expected, self.seen):
                return
            time.sleep(0.05)
        pytest.fail(f"{command} printed:\n{self.seen}\ninstead of:\n{expected}", pytrace=False)

    def shown(self, begin: int) -> str:
        return self.output.read_bytes()[begin:].decode()

    def end(self) -> None:
        while self.background:
            process = self.background.pop()
            os.kill(process, signal.SIGTERM)
            self.python.wait(process)


def matches(expected: str, shown: str) -> bool:
    """Each line is shown, in any order, and no other one unless there is a line `…`."""
    rest = shown.splitlines()
    lines = expected.splitlines()
    for line in lines:
        if line.strip() != "…":
            found = next((each for each in rest if pattern(line).fullmatch(each)), None)
            if found is None:
                return False
            rest.remove(found)
    return not rest or any(line.strip() == "…" for line in lines)


WORDS = {
    ANY_ID: ANY_ID,
    r"\S+-\d+-[0-9a-f]{6}\b": r"\S+-\d+-[0-9a-f]{6}",  # a worker
    r"whsec_\S+": r"whsec_\S+",
    r"\d[\d,.:]* (?:ms|s|min)\b": r"\d[\d,.:]* (?:ms|s|min|h)",
    r"\d[\d,.:]*": r"\d[\d,.:]*",
    r" *… *": r".*",
    r" +": r" +",
}
"""What differs from run to run, and what stands for anything of this kind."""


def pattern(line: str) -> re.Pattern[str]:
    """A pattern for lines that differ from it in nothing but such words."""
    parts = re.split("|".join(f"({each})" for each in WORDS), line.strip())
    kinds = [*WORDS.values()]
    text = ""
    for position, part in enumerate(parts):
        column = position % (len(kinds) + 1)
        if part is not None:
            text += kinds[column - 1] if column else re.escape(part)
    return re.compile(rf"\s*{text}\s*")


@pytest.mark.parametrize("name", STORIES)
def test_a_page_can_be_followed(
    name: str, tmp_path: Path, python: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command works, in the order of the pages, and prints what they show."""
    story = Story(STORIES[name], tmp_path, python)
    try:
        story.follow()
    finally:
        story.end()


def test_every_page_of_the_tutorial_is_followed() -> None:
    """No page of the folder is missing in the list above."""
    assert sorted(TUTORIAL) == sorted((DOCS / "tutorial").glob("*.md"))
