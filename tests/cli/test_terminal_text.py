"""What strangers wrote is shown in a terminal and does nothing there."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest

import laneway.cli
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import RAW, Draft, Settlement
from tests.cli.conftest import Command
from tests.cli.every import calls
from tests.cli.pty_support import InTerminal

HOSTILE = "\x1b]0;owned\x07[bold]\x9b2J\u202egnp\u2066\u2028x\x7f\x85\r\n~"
"""Sets the title, clears the screen, turns the writing around, begins a line of its own."""

OURS = re.compile(r"\x1b\[[0-9;]*m|\r\n|\r(?=[wd]1?\\x1b)")
"""
Colors, line ends, and a line of progress that is written over: all that the command itself sends,
but for live views.
"""

BAD = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]"
)

PROGRAM = """
from laneway import Laneway
app = Laneway({url!r})
app.policy("*", retries=1, backoff="0s")

@app.handler("*")
def handle(message):
    raise ValueError({text!r})
"""

DRIVER = """
import json, os, sys, traceback
os.login_tty(0)
from laneway.cli import main
for call in json.load(open(sys.argv[1])):
    sys.argv[1:] = call
    try:
        main(call)
    except SystemExit:
        pass
    sys.stdout.flush()
print("the end")
"""


@pytest.fixture
def hostile(tmp_path: Path) -> tuple[str, str]:
    """
    A store that a stranger has filled, past all checks at publish, and the id of a waiting message.
    """
    url = f"sqlite:///{tmp_path}/laneway.db"
    with contextlib.closing(open_engine(url, Settings())) as engine:
        body = json.dumps({"text": HOSTILE}, ensure_ascii=False).encode()
        topic = f"push.{HOSTILE}"
        engine.put([Draft(topic, body, id=f"d{HOSTILE}", key=HOSTILE, headers={HOSTILE: HOSTILE})])
        lease = engine.lease(1).leases[0]
        engine.settle(
            [
                Settlement(
                    lease.handle,
                    lease.fence,
                    "dead",
                    reason=HOSTILE,
                    error=f"Traceback\n  {HOSTILE}",
                )
            ]
        )
        engine.put(
            [
                Draft(topic, body, id=f"w{n}{HOSTILE}", key=HOSTILE, headers={HOSTILE: HOSTILE})
                for n in range(3)
            ]
        )
        engine.put([Draft(topic, HOSTILE.encode(), headers={"content-type": RAW})])
    return url, topic


def words(url: str, topic: str, folder: Path) -> dict[str, str]:
    (folder / "hostile_program.py").write_text(PROGRAM.format(url=url, text=HOSTILE))
    return {
        "url": url,
        "elsewhere": f"sqlite:///{folder}/other.db",
        "topic": topic,
        "dead": f"d{HOSTILE}",
        "id": f"w1{HOSTILE}",
        "hostile": HOSTILE,
        "name": "x",
        "program": "hostile_program:app",
    }


def test_no_command_sends_what_strangers_wrote(
    hostile: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    In a terminal every command, with names, ids, keys, bodies, headers, reasons, errors and
    arguments that are hostile.
    """
    monkeypatch.chdir(tmp_path)
    every = [["--url", hostile[0], *call] for call in calls(**words(*hostile, tmp_path))]
    every.sort(key=lambda call: "migrate" in call)  # that empties the store
    every += [
        ["--url", hostile[0], "dead", "list"],
        ["--url", hostile[0], "explain", "\udcff\udc9b"],
    ]
    (tmp_path / "calls.json").write_text(json.dumps(every))
    with InTerminal(str(tmp_path / "calls.json"), run=DRIVER) as terminal:
        terminal.read_until("the end", 100)
        terminal.end()
    shown = OURS.sub("\n", terminal.output)
    assert "\\x1b]0;owned\\x07[bold]\\x9b2J\\u202egnp\\u2066\\u2028x\\x7f\\x85\\x0d\\x0a~" in shown
    for line in shown.split("\n"):
        assert not BAD.search(line), line
        assert not line.startswith("~"), "a line of its own"


def test_the_live_view_does_not_either(hostile: tuple[str, str]) -> None:
    """`top` moves the cursor itself; of the names it shows nothing is obeyed."""
    with InTerminal("--url", hostile[0], "top", "--every", "600") as terminal:
        terminal.read_until("push.\\x1b]0;")
        terminal.press(b"q")
        terminal.end()
    for piece in ("\x1b]", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f", "\x85", "\x07"):
        assert piece not in terminal.output


def test_json_stays_json(hostile: tuple[str, str]) -> None:
    """
    Escaped as JSON does it, so that it means the same; also infinite numbers and bodies that are no
    JSON.
    """
    command = Command(hostile[0])
    for call in (("topics",), ("dead", "list"), ("top", "--every", "0.1")):
        text = command(*call, "--json").stdout
        assert not BAD.search(text.replace("\n", ""))
        assert any(HOSTILE in each for each in _texts(json.loads(text)))


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_every_line_goes_through_one_function() -> None:
    """No command writes past it."""
    folder = Path(laneway.cli.__file__).parent
    for path in folder.glob("*.py"):
        if path.name != "session.py":
            assert not re.search(r"click\.s?echo\(|[^.\w]print\(", path.read_text()), path.name
