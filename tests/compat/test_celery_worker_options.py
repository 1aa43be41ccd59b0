"""The words behind `celery worker`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from laneway import UsageError
from laneway.cli import main as laneway_command
from laneway.compat.celery import Celery
from laneway.compat.celery.__main__ import main
from laneway.compat.celery.worker_options import WorkerOptions, read
from tests.tasks.conftest import working
from tests.working.support import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", WorkerOptions()),
        ("-c 4 -Q a,b -l info --burst", WorkerOptions(4, ["a", "b"], "INFO", burst=True)),
        ("-c4 -Qa,b -linfo", WorkerOptions(4, ["a", "b"], "INFO")),
        ("-c=4 --queues=a --loglevel=debug", WorkerOptions(4, ["a"], "DEBUG")),
        ("-A proj -P prefork -n one@%h -E --without-gossip", WorkerOptions()),
    ],
)
def test_options(words: str, expected: WorkerOptions) -> None:
    """A value is a word of its own, or follows the name."""
    assert read(words.split()) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-c", "--concurrency: its value is missing"),
        ("-c many", "expected a whole number above 0, got 'many'"),
        ("-c0", "expected a whole number above 0, got '0'"),
        ("-c ²", "expected a whole number above 0, got '²'"),
        ("-l loud", "expected a level such as INFO, got 'loud'"),
        ("--autoscale=3,1", "'--autoscale=3,1' is not supported"),
    ],
)
def test_wrong_options(words: str, expected: str) -> None:
    """The error names the option and its value."""
    with pytest.raises(UsageError, match=expected):
        read(words.split())


def test_a_worker_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """`worker_main` runs it with them, and else with the settings."""
    ran: list[dict[str, Any]] = []
    monkeypatch.setattr(Celery, "run_worker", lambda _, **options: ran.append(options))
    app = Celery("x", broker="sqlite://")
    app.conf.worker_concurrency = 7
    app.worker_main(["worker", "-Qa", "--burst"])
    app.worker_main(["worker", "-c2"])
    assert ran == [
        {"concurrency": 7, "queues": ["a"], "burst": True},
        {"concurrency": 2, "queues": None, "burst": False},
    ]


def test_the_commands_of_celery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-A tasks worker` runs tasks, `inspect ping` and `status` list the workers, else fail."""
    (tmp_path / "shop_tasks.py").write_text(
        "from laneway.compat.celery import Celery\n"
        f"app = Celery('shop_tasks', broker='sqlite:///{tmp_path}/q.db')\n"
        "@app.task\ndef add(x, y):\n    return x + y\n"
    )
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "celery.py").write_text("from shop_tasks import app")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["-A", "shop_tasks", "status"]) == 69
    assert "0 nodes online" in capsys.readouterr().out
    app = sys.modules["shop_tasks"].app
    result = sys.modules["shop_tasks"].add.delay(1, 2)
    assert main(["-A", "shop_tasks:app", "worker", "-l", "info", "-c", "2", "--burst"]) == 0
    assert result.get(1) == 3
    with working(app.laneway):
        until(app.laneway.workers)
        assert main(["-A", "shop_tasks", "inspect", "ping", "-t", "60"]) == 0
        assert ": OK" in capsys.readouterr().out
        assert main(["-A", "shop", "status", "-t", "60"]) == 0
        assert main(["-A", "shop_tasks", "status", "-d", "nobody"]) == 69
    assert main(["-A", "shop_tasks", "worker", "--autoscale=3,1"]) == 1
    assert "is not supported" in capsys.readouterr().err
    assert main(["-A", "shop_tasks:add", "status"]) == 1
    assert "no Celery application" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["-A tasks worker", "worker -A tasks"])
def test_the_option_of_celery_is_known(words: str) -> None:
    """The error of `laneway` names the argument to write."""
    result = CliRunner().invoke(laneway_command, words.split())
    assert result.exit_code == 2
    assert "write `laneway worker tasks:app`" in result.stderr
