"""The words behind `celery worker`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from laneway import Laneway, UsageError
from laneway.cli import main as laneway_command
from laneway.compat.celery import Celery
from laneway.compat.celery.__main__ import main
from laneway.compat.celery.worker_options import read
from tests.tasks.conftest import working
from tests.working.support import until

if TYPE_CHECKING:
    from pathlib import Path


UNITS = [
    "-A proj worker --loglevel=INFO --concurrency=4 -n worker1@%h -Q q1,q2",
    "-A proj.celery_app:app worker -l info -Ofair -E --pidfile=/run/w1.pid --time-limit=300",
    "-A proj.celery worker --logfile=/var/log/celery/w1.log --soft-time-limit 240",
    "worker -A proj -c4 -Qa,b -linfo -P threads --max-tasks-per-child 100 --without-gossip",
    "--app=proj -b redis://localhost worker -B -s /var/lib/beat-schedule --autoscale=10,3",
    "--workdir /srv/app -A proj worker --pool=gevent --prefetch-multiplier=1 --without-mingle",
    "-A proj worker --without-heartbeat --max-memory-per-child=200000 --hostname=w@$HOSTNAME",
    "-q --no-color -A proj beat --loglevel=INFO --pidfile= --schedule=/tmp/celerybeat-schedule",
    "-A proj beat -l info -S celery.beat:PersistentScheduler --max-interval=60",
    "-A proj inspect ping -d celery@$HOSTNAME --timeout 10 -j",
    "-A proj status",
]
"""Command lines of unit files, Procfiles, Dockerfiles and health checks, behind `celery`."""


@pytest.mark.parametrize("line", UNITS)
def test_command_lines(line: str) -> None:
    """The words behind `celery` of existing unit files are understood."""
    options = read(line.split())
    assert options.words in (["worker"], ["beat"], ["inspect", "ping"], ["status"])
    assert options.app.startswith("proj")


@pytest.mark.parametrize(
    ("words", "concurrency", "queues", "level"),
    [
        ("", None, None, "WARNING"),
        ("-c 4 -Q a,b -l info --burst", 4, "a,b", "INFO"),
        ("-c4 -Qa,b -linfo", 4, "a,b", "INFO"),
        ("-c=4 --queues=a,b --loglevel=debug", 4, "a,b", "DEBUG"),
        ("--autoscale=10,3", 10, None, "WARNING"),
        ("-P solo", 1, None, "WARNING"),
    ],
)
def test_options(words: str, concurrency: int | None, queues: str | None, level: str) -> None:
    """A value is a word of its own, or follows the name."""
    options = read(words.split())
    assert (options.concurrency, options.queues, options.loglevel) == (concurrency, queues, level)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-c", "--concurrency: expected one argument"),
        ("--nonsense", "unrecognized arguments: --nonsense"),
        ("-D", "--detach is not supported; start it in the foreground"),
        ("-X slow", "--exclude-queues is not supported; name the queues"),
        ("-S django_celery_beat.schedulers:DatabaseScheduler", "run Celery itself"),
        ("-c many", "expected a whole number above 0, got 'many'"),
        ("-c0", "expected a whole number above 0, got '0'"),
        ("-c ²", "expected a whole number above 0, got '²'"),
        ("-l loud", "expected a level such as INFO, got 'loud'"),
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
    assert main(["-A", "shop_tasks", "multi", "start", "w1"]) == 1
    assert "use `laneway worker --processes 4 proj:app`" in capsys.readouterr().err
    assert main(["status"]) == 1
    assert "name the application" in capsys.readouterr().err
    assert main(["-A", "nowhere", "worker"]) == 1
    assert "No module named 'nowhere'" in capsys.readouterr().err
    assert main(["-A", "shop_tasks:add", "status"]) == 1
    assert "no Celery application" in capsys.readouterr().err


def test_beat(tmp_path: Path) -> None:
    """`beat` stores the schedules, and waits for the signal that stops it."""
    (tmp_path / "planned.py").write_text(
        "from laneway.compat.celery import Celery\n"
        "app = Celery('planned', broker='sqlite:///q.db')\n"
        "app.conf.beat_schedule = {'often': {'task': 'planned.add', 'schedule': 60}}\n"
        "@app.task\ndef add():\n    pass\n"
    )
    command = [sys.executable, "-m", "laneway.compat.celery", "-A", "planned", "beat", "-l", "info"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as beat:
        assert beat.stdout is not None
        assert "Schedules are stored" in beat.stdout.readline()
        beat.terminate()
        assert beat.wait(30) == 0
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        assert [each.name for each in app.schedules.list()] == ["often"]


@pytest.mark.parametrize("words", ["-A tasks worker", "worker -A tasks"])
def test_the_option_of_celery_is_known(words: str) -> None:
    """The error of `laneway` names the argument to write."""
    result = CliRunner().invoke(laneway_command, words.split())
    assert result.exit_code == 2
    assert "write `laneway worker tasks:app`" in result.stderr
