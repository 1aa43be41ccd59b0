"""`laneway top`: live in a terminal, once elsewhere."""

from __future__ import annotations

import re
import signal
import termios
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway
from laneway.cli.terminal import characters
from tests.cli.pty_support import InTerminal

if TYPE_CHECKING:
    from tests.cli.conftest import Command

LEAVE_ALTERNATE_SCREEN = "\x1b[?1049l"

BETWEEN = """
import os, select, signal, sys, time
os.login_tty(0)
came = []
plain = select.select
def slow(*arguments):
    found = plain(*arguments)
    if 0 in found[0]:
        print("a key came", flush=True)
        while not came:
            time.sleep(0.01)
    return found
select.select = slow
if sys.argv[1] == "terminal":
    from laneway.cli.terminal import Terminal
    input = Terminal()
else:
    from laneway.cli.development.keyboard import Keyboard
    input = Keyboard()
with input:
    signal.signal(signal.SIGINT, lambda *_: came.append(1))
    print("begun", flush=True)
    while not came:
        input.wait(600)
"""
"""Reads a key only when Ctrl-C has come, too."""


@pytest.fixture
def filled(laneway: Command) -> Command:
    laneway("publish", "push.acme", "--lines", stdin="1\n" * 50)
    laneway("publish", "push.few", "1")
    return laneway


def test_json_is_one_snapshot(filled: Command) -> None:
    """With --json the same figures as one document, the top topics in their order."""
    found = filled.json("top", "--every", "0.1")
    assert [topic["topic"] for topic in found["topics"]] == ["push.acme", "push.few"]
    assert found["overview"]["waiting"] == 51
    assert [(tier["tier"], tier["runnable"]) for tier in found["overview"]["tiers"]] == [("mid", 2)]
    assert found["per_second"] == {
        "published": 0.0,
        "delivered": 0.0,
        "done": 0.0,
        "retried": 0.0,
        "died": 0.0,
    }
    assert filled.json("top", "--every", "0.1", "--limit", "1")["topics"][0]["waiting"] == 50


def test_a_pipe_gets_it_once_and_whole(filled: Command) -> None:
    """Where the output is no terminal it is printed once, long names whole."""
    filled("publish", "push." + "long" * 20, "1")
    text = filled("top", "--every", "0.1").stdout
    assert "push." + "long" * 20 in text
    filled("publish", "push." + "x" * 250, "1")
    text = filled("top", "--once").stdout
    row = next(line for line in text.splitlines() if "xxx" in line)
    assert re.match(r"push\.x{20,}… +1 ", row), "it takes no place from the figures"
    assert row.rstrip().endswith("runnable")
    assert "throttled" in text
    assert text.count("top by backlog") == 1
    assert "\x1b" not in text


def test_one_topic_is_counted_as_one(laneway: Command) -> None:
    laneway("publish", "push.acme", "1")
    assert "· 1 active topic\n" in laneway("top", "--once").stdout


@pytest.mark.parametrize("ending", ["q", "\x03", "\x04"])
def test_q_ends_it_at_once_and_the_terminal_is_as_before(filled: Command, ending: str) -> None:
    """
    Keys act without Enter, whatever the time between looks; other keys do not end it. Ctrl-C and
    Ctrl-D are as good.
    """
    with InTerminal("--url", filled.url, "top", "--every", "600") as terminal:
        terminal.read_until("push.acme")
        assert not terminal.attributes()[3] & termios.ICANON
        terminal.press(b"x\x1b[A")
        terminal.press(ending.encode())
        assert terminal.end() == 0
        assert terminal.attributes() == terminal.before
        assert LEAVE_ALTERNATE_SCREEN in terminal.output


@pytest.mark.parametrize("module", ["terminal", "development.keyboard"])
def test_an_interrupt_between_a_key_and_its_read(module: str) -> None:
    """Ctrl-C right after another key does not leave the program waiting for a third one."""
    with InTerminal(module, run=BETWEEN) as terminal:
        terminal.read_until("begun")
        terminal.press(b"x")
        terminal.read_until("a key came")
        terminal.press(b"\x03")
        assert terminal.end() == 0


def test_a_key_right_after_an_arrow_key(filled: Command) -> None:
    """Keys that are read at once with an escape sequence count, too; the sequence does not."""
    assert characters(b"\x1b[Aq\x1bOB\x1b[1;5Cx\x1bq\x1b") == b"qx"
    with InTerminal("--url", filled.url, "top", "--every", "600") as terminal:
        terminal.read_until("push.acme")
        terminal.press(b"\x1b[Aq")
        assert terminal.end() == 0


def test_a_new_size_is_drawn_at_once(filled: Command) -> None:
    """
    A resized terminal is drawn at once, without waiting for the next update, also when it is tiny.
    """
    with InTerminal("--url", filled.url, "top", "--every", "600") as terminal:
        terminal.read_until("push.acme")
        terminal.resize(24, 80)
        terminal.read_until("runnable")
        terminal.resize(5, 20)
        terminal.read_until("sqlite")
        terminal.resize(50, 200)
        terminal.read_until("push.few")
        terminal.press(b"q")
        assert terminal.end() == 0
        assert terminal.attributes() == terminal.before


def test_what_happens_is_shown(filled: Command) -> None:
    """The view follows what is published."""
    with InTerminal("--url", filled.url, "top", "--every", "0.1") as terminal:
        terminal.read_until("waiting 51")
        with Laneway(filled.url) as app:
            app.publish("push.new")
        terminal.read_until("waiting 52")
        terminal.press(b"q")
        assert terminal.end() == 0


def test_sigterm_restores_the_terminal(filled: Command) -> None:
    """
    Ended from outside it leaves the terminal in order too, and says by its exit code what ended it.
    """
    with InTerminal("--url", filled.url, "top") as terminal:
        terminal.read_until("push.acme")
        terminal.signal(signal.SIGTERM)
        assert terminal.end() == 128 + signal.SIGTERM
        assert terminal.attributes() == terminal.before
        assert LEAVE_ALTERNATE_SCREEN in terminal.output
