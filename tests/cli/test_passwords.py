"""No output of any command has the password of the store in it."""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway import Laneway, Request
from laneway.cli import main
from laneway.cli.session import Session
from laneway.engines.valkey import connection
from laneway.engines.valkey.address import parse
from laneway.errors import LanewayError
from laneway.testing.servers import Server, free_port
from laneway.working.log_format import JsonLines, TextLines
from laneway.working.options import Options
from tests.cli.every import calls

# a command's process ends with its sockets; here they are left to the garbage collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _collected() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


PASSWORD = "s3cret-pass"
WRONG = "wr0ng-pass"

PROGRAM = """
import os
from laneway import Laneway
app = Laneway({url!r})

@app.handler("push.*")
def handle(message):
    raise ValueError(f"handled with {{app!r}}")
"""


def run(
    monkeypatch: pytest.MonkeyPatch, url: str, call: list[str], *, environment: bool = False
) -> str:
    """All that a call shows."""
    arguments = call if environment else ["--url", url, *call]
    monkeypatch.setenv("LANEWAY_URL", url if environment else "")
    monkeypatch.setattr(sys, "argv", ["laneway", *arguments])
    result = CliRunner().invoke(main, arguments)
    raised = result.exc_info[1] if result.exc_info else None
    expected = (
        "".join(traceback.format_exception(raised))
        if raised is not None and not isinstance(raised, SystemExit)
        else ""
    )
    return result.output + (result.stderr if result.stderr_bytes else "") + expected


@pytest.fixture(scope="module")
def guarded():
    with Server(requirepass=PASSWORD) as server:
        yield server


@pytest.mark.parametrize("case", ["right", "wrong", "dead", "environment"])
def test_no_output_of_any_command_has_the_password(
    case: str,
    guarded: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """
    Standard output, standard error, exceptions, log lines: with the right password, a wrong one,
    and a dead server.
    """
    monkeypatch.setattr(connection, "PATIENCE_AT_START", 0.01)
    password = WRONG if case == "wrong" else PASSWORD
    port = free_port() if case == "dead" else guarded.port
    url = f"valkey://:{password}@127.0.0.1:{port}"
    dead = message = "none"
    if case in ("right", "environment"):
        with Laneway(url) as app:
            app.publish("push.a", {"order": 1}, id="d1")
            app.lease(1)[0].dead("gone")
            dead, message = "d1", app.publish("push.a", 1).id
    (tmp_path / "guarded_program.py").write_text(PROGRAM.format(url=url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guarded_program", raising=False)
    elsewhere = f"valkey://user:{password}@127.0.0.1:{free_port()}/1"
    words = {
        "url": url,
        "elsewhere": elsewhere,
        "topic": "push.a",
        "dead": dead,
        "id": message,
        "hostile": url,
        "name": "x",
        "program": "guarded_program:app",
    }
    for call in calls(**words):
        if "--processes" in call:
            continue  # tested in tests/working: its processes write to the real standard error
        shown = run(monkeypatch, url, call, environment=case == "environment")
        assert password not in shown, call
    assert password not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "valkey://:s3/cr3t@localhost",
        "valkey://:s3?cr3t@localhost",
        "valkey://:s3#cr3t@localhost",
        "valkey://:s3@cr3t@localhost:x",
        "valkey://u:s3@cr3t/w@localhost/0",
        "valkey://:cr3t",
        "valkey://u:cr3t@",
        ":cr3t@localhost",
        "valky://:cr3t@h",
        "valkey+sentinel://:cr3t@a:1,b:2/",
        "valkey+sentinel://a:1,b:2/m?sentinel_password=cr3t&x=1",
        "valkey://h?sentinel_password=a@cr3t&timeout=x",
        "valkey+cluster://:cr3t@a:b,c:d",
        "unix://:cr3t@",
        "sqlite://:cr3t@x",
        "valkey://:[cr3t@h",
        "valkey://:a b'cr3t@h:x",
        "redis://cr3t@h:0",
        "valkey://:%63cr3t@h:port",
    ],
)
def test_what_cannot_be_read_is_not_repeated(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """
    A URL with a password that is not written as it has to be: no error, also none beneath it, has a
    part of it.
    """
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LanewayError) as caught:
        Laneway(url).publish("a", 1)
    assert "cr3t" not in "".join(traceback.format_exception(caught.value))
    with contextlib.suppress(LanewayError):
        assert "cr3t" not in repr(parse(url))
    assert "cr3t" not in repr(Laneway(url))
    for call in (
        ["top"],
        ["doctor"],
        ["publish", "a", "1"],
        ["doctor", url],
        ["migrate", url, "sqlite:///x.db"],
        [url],
    ):
        assert "cr3t" not in run(monkeypatch, url, call), call


def test_no_repr_has_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of anything that knows the URL, printed by a program."""
    url = f"valkey://u:{PASSWORD}@127.0.0.1:1"
    app = Laneway(url)
    app.runtime.use_store(f"valkey://:{PASSWORD}@127.0.0.1:2", "apart")
    request = Request(id="1", task="t", topic="t", args=(), kwargs={}, store=(url, "default"))
    for each in (
        app,
        app.runtime.holder.choice,
        request,
        Options(store=app.runtime.store_options),
        Session(url, "default"),
        parse(url),
        app.topic("a"),
    ):
        assert PASSWORD not in repr(each)
        assert PASSWORD not in str(each)


def test_log_lines_have_no_password() -> None:
    """Neither the line nor its traceback, as text and as JSON."""
    try:
        raise ConnectionError(f"cannot reach valkey://u:{PASSWORD}@host")
    except ConnectionError:
        record = logging.LogRecord(
            "laneway", 20, "", 1, "away: %s", (f"redis://:{PASSWORD}@host",), sys.exc_info()
        )
    for style in (JsonLines(), TextLines("%(message)s")):
        line = style.format(record)
        assert PASSWORD not in line
        assert "redis://***@host" in line
