"""The words behind `celery worker`."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import UsageError
from laneway.compat.celery import Celery
from laneway.compat.celery.worker_options import WorkerOptions, read


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
