"""`laneway worker` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from laneway import Laneway
app = Laneway("sqlite:///work.db")
thing = 3

@app.handler("push.*")
def push(message):
    print("handled", message.body, flush=True)
"""


def run(
    folder: Path, *arguments: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The command in the folder, its output caught."""
    environment = {name: value for name, value in os.environ.items() if name != "LANEWAY_URL"}
    command = [sys.executable, "-m", "laneway", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("target", ["shop:app", "shop.app", "shop"])
def test_a_burst(tmp_path: Path, target: str) -> None:
    """A burst handles what there is and ends; the current folder is looked in."""
    (tmp_path / "shop.py").write_text(APP)
    published = run(tmp_path, "--url", "sqlite:///work.db", "publish", "push.acme", "17")
    assert published.returncode == 0, published.stderr
    worked = run(tmp_path, "worker", target, "--burst", "-c", "2")
    assert worked.returncode == 0, worked.stderr
    assert "handled 17" in worked.stdout
    assert worked.stderr.count("1 done") == 1
    assert worked.stdout == "handled 17\n"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("nothing:app", 'no module "nothing"'),
        ("shop:nothing", "shop:app"),
        ("shop:thing", "int"),
        ("broken:app", "absent_library"),
        ("shop.py", "write shop:app"),
        ("./shop.py:app", "write shop:app"),
        ("policy:app", "rate"),
    ],
)
def test_what_was_not_found(tmp_path: Path, target: str, expected: str) -> None:
    """An application that cannot be found is one line that names it, and exit code 2."""
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "broken.py").write_text("import absent_library\n")
    (tmp_path / "policy.py").write_text(
        "from laneway import Laneway\napp = Laneway()\napp.policy('a', rate=-1)\n"
    )
    result = run(tmp_path, "worker", target)
    assert result.returncode == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [("def x(:\n", "SyntaxError"), ("import helper\n", "ZeroDivisionError: division by zero")],
)
def test_a_module_that_fails_shows_where(tmp_path: Path, source: str, expected: str) -> None:
    """The user's own lines and nothing of ours, then one line, and exit code 2."""
    (tmp_path / "shop.py").write_text(source)
    (tmp_path / "helper.py").write_text("1 / 0\n")
    result = run(tmp_path, "worker", "shop:app")
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"laneway: shop:app: importing shop failed: {expected}"
    )
    assert "shop.py" in result.stderr
    assert ("helper.py" in result.stderr) == (expected != "SyntaxError")
    assert "click" not in result.stderr
    assert "importlib" not in result.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("source", "expected", "code"),
    [("", "no handlers", 2), ('app.handler("*")(print)\n', "no/such does not exist", 3)],
)
def test_an_impossible_worker_is_refused_once(
    tmp_path: Path, processes: str, source: str, expected: str, code: int
) -> None:
    """One line and its exit code, however many processes were asked for."""
    (tmp_path / "shop.py").write_text(
        f'from laneway import Laneway\napp = Laneway("sqlite:///no/such/work.db")\n{source}'
    )
    result = run(tmp_path, "worker", "shop:app", "--processes", processes)
    assert result.returncode == code, result.stderr
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("worker", "shop:app", "--topics", ""), "topics"),
        (("worker", "shop:app", "--topics", "push.*"), "pattern"),
        (("worker", "shop:app", "--grace", "soon"), "grace"),
        (("worker", "shop:app", "--heartbeat-timeout", "0"), "heartbeat_timeout"),
        (("worker", "shop:app", "--processes", "0"), "--processes"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    """Impossible options, and those that would serve something else, are refused at the start."""
    (tmp_path / "shop.py").write_text(APP)
    result = run(tmp_path, *arguments, "--burst")
    assert result.returncode == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


FAILING = """
from laneway import DestinationUnavailable, Laneway, Reject, Retry
app = Laneway("sqlite:///work.db")
app.policy("*", backoff=0, retries=0)

@app.handler("*")
def work(message):
    match message.body:
        case "raise":
            raise LookupError("order 42 is unknown\\nand more")
        case "reject":
            raise Reject("no such customer")
"""


def worked(folder: Path, *arguments: str) -> list[str]:
    """The log of a burst over one message that fails, one that is refused and one that is fine."""
    (folder / "shop.py").write_text(FAILING)
    published = run(
        folder,
        "--url",
        "sqlite:///work.db",
        "publish",
        "push.acme",
        "--lines",
        "--json",
        stdin='"raise"\n"reject"\n"fine"\n',
    )
    assert published.returncode == 0, published.stderr
    ended = run(folder, "worker", "shop:app", "--burst", *arguments)
    assert ended.returncode == 0, ended.stderr
    assert "1 done, 0 to be retried, 2 dead" in ended.stdout
    return ended.stderr.splitlines()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_failures_are_logged_as_one_line_each(tmp_path: Path, processes: str) -> None:
    """
    What failed, where, and why; only that at --log-level warning, in every process of the worker. A
    dead letter's traceback follows.
    """
    lines = worked(tmp_path, "--log-level", "warning", "--processes", processes)
    failed, rejected = sorted(
        (line for line in lines if not line.startswith(" ")), key=lambda line: "rejected" in line
    )
    assert "in topic push.acme: attempt 1 failed: LookupError: order 42 is unknown (" in failed
    assert "shop.py:10); dead letter" in failed
    assert "ERROR" in failed
    assert "  Traceback (most recent call last):" in lines
    assert "WARNING" in rejected
    assert "in topic push.acme: rejected: no such customer" in rejected


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_log_for_machines(tmp_path: Path, processes: str) -> None:
    """With --log-json each line is an object that says what it is about, field by field."""
    lines = [
        json.loads(line)
        for line in worked(tmp_path, "--log-json", "--log-level", "debug", "--processes", processes)
    ]
    expected = {line["event"].partition(": ")[2]: line for line in lines if "message" in line}
    assert sorted(text.split()[0] for text in expected) == ["attempt", "rejected:", "succeeded"]
    (failed,) = (line for line in lines if line.get("error") == "LookupError")
    assert (failed["level"], failed["topic"], failed["attempt"], failed["logger"]) == (
        "error",
        "push.acme",
        1,
        "laneway.worker",
    )
    assert "order 42 is unknown" in failed["traceback"]
    assert all(line["time"].endswith("+00:00") for line in lines)
