"""The commands and calls of docs/push.md run, and answer what the page says."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway import Laneway, Tier
from laneway.cli.main import main
from laneway.push.table import SETTINGS
from tests.gateway.conftest import serving
from tests.push.conftest import key, receiver, running
from tests.push.receiver import Receiver

__all__ = ["key", "receiver", "running"]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "push.md").read_text()
PROSE = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
COMMANDS = [
    (command.replace("\\\n", ""), shown.splitlines())
    for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for command, shown in re.findall(
        r"^(?:\$ )?((?:laneway|curl|export) (?:.*\\\n)*.*)\n((?:(?!\$ |laneway |curl ).*\n)*)",
        block,
        re.MULTILINE,
    )
]
CALLS = re.findall(r"`(app\.\w+\([^`]+\)(?:\.\w+\([^`]*\))?)`", PROSE)
METHODS = re.findall(r"`(\.\w+\([^`]*\))`", PROSE)
STORE = "sqlite:///shop.db"
WAIT_SECONDS = 60.0


@pytest.fixture
def sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Starts `laneway push …`; each runs until the end of the test, which SIGTERM is for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANEWAY_PUSH_ALLOW", "127.0.0.0/8")
    program = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert program is not None
    Path("shop.py").write_text(program[1])
    senders: list[subprocess.Popen[str]] = []

    def start(command: str) -> None:
        words = [sys.executable, "-m", *shlex.split(command)]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        senders.append(process)
        assert process.stderr is not None
        assert any("is ready" in line for line in process.stderr)

    yield start
    for each in senders:
        each.send_signal(signal.SIGTERM)
    for each in senders:
        each.communicate(timeout=WAIT_SECONDS)
        assert each.returncode == 0


def test_commands(
    sender: Callable[[str], None], receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command succeeds, in the page's order."""
    lines = [
        {"topic": "push.acme", "url": receiver.url("/200")},
        {"topic": "push.bolt", "url": "ftp:"},
    ]
    Path("endpoints.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for command, shown in COMMANDS:
        real = re.sub(r"https://[\w.]+\.example/\w+", receiver.url("/200"), command)
        real = real.replace("--timeout 5s", "--timeout 60s")  # of a receiver on a busy machine
        if command.startswith("export"):
            name, _, value = command.removeprefix("export ").partition("=")
            inner = re.search(r"\$\(laneway (.*)\)", value)
            monkeypatch.setenv(name, _laneway(inner[1]).strip() if inner else value)
        elif command.startswith("laneway push"):
            sender(real)
        elif command.startswith("curl"):
            with serving(STORE) as (api, _):
                answer = subprocess.run(
                    ["bash", "-c", real.replace("localhost:7878", f"127.0.0.1:{api.port}")],
                    capture_output=True,
                    text=True,
                    check=True,
                    timeout=WAIT_SECONDS,
                )
            assert '"topic":"push.acme"' in answer.stdout
            _check(shown, answer.stdout)
        else:
            _check(shown, _laneway(real.removeprefix("laneway ")))
        if command.startswith("laneway publish"):
            _deliver(receiver)
    assert len(COMMANDS) > 15
    assert len(receiver.requests) >= 3


def _laneway(words: str) -> str:
    result = CliRunner().invoke(main, shlex.split(words, comments=True))
    is_finished = words.startswith("explain order-42") and "it was finished" in result.output
    assert result.exit_code == int(is_finished), (words, result.output)
    return result.output


def _check(shown: list[str], output: str) -> None:
    for line in shown:
        if not line.startswith("20"):  # an attempt of an example
            assert re.search(_pattern(line), output), (line, output)


def _pattern(line: str) -> str:
    """What a line of output must contain: the same words, other numbers."""
    text = re.escape(line.strip()).replace("…", ".*")
    return re.sub(r"\d+(\\\.\d+)?", r"[\\d.]+", re.sub(r"(\\ )+", r"\\s+", text))


def _deliver(receiver: Receiver) -> None:
    """Wait until the message of the page is in the log, so that it can be replayed."""
    deadline = time.monotonic() + WAIT_SECONDS
    with Laneway(STORE) as app:
        endpoint = app.endpoint("push.acme", log="all")
        while not endpoint.attempts(message_id="order-42").attempts:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert receiver.requests[0].headers["webhook-id"] == "order-42"
        app.publish("push.acme", {"order": 42}, id="order-42")  # this one with its message
        while not any(each.can_replay for each in endpoint.attempts().attempts):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_calls(receiver: Receiver, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls in the page's sentences, where "..." and "…" stand for arguments."""
    monkeypatch.setenv("LANEWAY_PUSH_ALLOW", "127.0.0.0/8")
    tiers = re.search(r"`tiers=({.*?})`", PROSE)
    assert tiers is not None
    with Laneway("sqlite://", tiers=eval(tiers[1], {"Tier": Tier})) as app:
        app.push("push.*")
        app.endpoint("push.acme", url=receiver.url("/200"), log="all")
        app.publish("push.acme", 1, id="order-42")
        app.run_worker(burst=True)
        assert len(CALLS) > 4
        assert len(METHODS) > 0
        for call in (*CALLS, *(f'app.endpoint("push.acme"){each}' for each in METHODS)):
            real = re.sub(r"https://[\w.]+\.example/\w+", receiver.url("/200"), call)
            real = re.sub(r"(, )?\.\.\.", "", real).replace("…", "0")
            eval(real, {"app": app})


def test_settings() -> None:
    """The table of settings is that of `app.endpoint`."""
    table = PAGE.partition("## Settings of an endpoint")[2].partition("\n## ")[0]
    names = {
        name
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert names == set(SETTINGS)
