"""`laneway init`, and the steps of the quickstart as a person types them."""

from __future__ import annotations

import os
import re
import sys
import urllib.request
from pathlib import Path

import click.testing
import pytest
import yaml  # type: ignore[import-untyped]

from laneway.cli.main import main
from tests.cli.pty_support import UNHURRIED, InTerminal

QUICKSTART = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"
STEPS = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", QUICKSTART.read_text(), re.MULTILINE)
KEYS = ("p", "o", "q")

SHELL = "import os; os.login_tty(0); os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"

# `laneway` and `pytest` of the interpreter that runs the tests
COMMANDS = {
    "laneway": f"-c '{UNHURRIED}'",
    "pytest": "-m pytest -p no:cacheprovider",
}


def init(*arguments: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(main, ["init", *arguments])


def test_the_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the page, typed into a shell, shows what the page says."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, call in COMMANDS.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (commands / name).chmod(0o755)
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > "{tmp_path}/page"\n')
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    monkeypatch.setenv("PS1", "$ ")
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    folder = tmp_path / "shop"
    folder.mkdir()
    assert [typed for typed, _ in STEPS][:2] == ["laneway init", "laneway dev app:app"]
    with InTerminal(run=SHELL, folder=folder) as terminal:
        terminal.wait_for("$")
        for typed, shown in STEPS:
            terminal.press(typed.encode() if typed in KEYS else f"{typed}\n".encode())
            terminal.wait_for(shown)
            if typed == "laneway dev app:app":
                terminal.wait_for("is ready")
            elif typed == "o":
                _read_page(tmp_path / "page")
        terminal.press(b"exit\n")
        assert terminal.end() == 0


def _read_page(file: Path) -> None:
    """Open the page that the browser was asked for."""
    from laneway.testing.servers import until

    until(lambda: file.exists() and file.read_text().strip(), "the browser")
    with urllib.request.urlopen(file.read_text().strip(), timeout=30) as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """If a file exists, it is named, and none is written."""
    folder = tmp_path / "new" / "my shop"
    first = init(str(folder))
    assert first.exit_code == 0
    assert f"cd '{folder}'" in first.output
    names = {path.name for path in folder.iterdir()}
    assert names == {"app.py", "test_app.py", "compose.yaml"}
    for path in folder.iterdir():
        path.write_text("mine")
    (folder / "test_app.py").unlink()
    second = init(str(folder))
    assert second.exit_code == 1
    assert "has app.py, compose.yaml; nothing was written" in second.output
    assert {path.read_text() for path in folder.iterdir()} == {"mine"}
    assert not (folder / "test_app.py").exists()


def test_wrong_folders(tmp_path: Path) -> None:
    """A folder that cannot be used is one line and exit code 2."""
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below", "valkey://:secret@host"):
        result = init(str(folder))
        assert result.exit_code == 2, result.output
        assert result.output.count("\n") == 1
        assert "secret" not in result.output
        assert str(folder)[:6] in result.output
        assert "folder" in result.output


def test_compose_file(tmp_path: Path) -> None:
    """The compose file's commands are commands of laneway."""
    init(str(tmp_path))
    services = yaml.safe_load((tmp_path / "compose.yaml").read_text())["services"]
    assert services["worker"]["deploy"]["replicas"] == 2
    assert "noeviction" in services["valkey"]["command"]
    for name in ("worker", "gateway"):
        [call] = re.findall(r"exec laneway ([^\"]+)", services[name]["command"])
        words = call.split()
        context = click.Context(main)
        command = main.get_command(context, words[0])
        assert command is not None
        command.make_context(words[0], words[1:], parent=context)
