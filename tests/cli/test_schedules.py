"""`laneway schedules`: what is called by the clock, at run time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway
from tests.working.support import until

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def test_add_list_pause_resume_remove(laneway: Command) -> None:
    output = laneway(
        "schedules",
        "add",
        "report",
        "--cron",
        "0 9 * * MON",
        "--timezone",
        "Europe/Berlin",
        "--task",
        "report",
        "--args",
        '["week"]',
    ).stdout
    assert output.startswith("report is scheduled: cron 0 9 * * MON (Europe/Berlin), next at 20")
    again = laneway(
        "schedules",
        "add",
        "report",
        "--cron",
        "0 9 * * MON",
        "--timezone",
        "Europe/Berlin",
        "--task",
        "report",
        "--args",
        '["week"]',
    )
    assert again.stdout.startswith("report is already scheduled this way")
    laneway(
        "schedules",
        "add",
        "sun",
        "--sun",
        "sunrise,52.5,13.4",
        "--topic",
        "lights",
        "--body",
        '{"on": false}',
        "--missed",
        "skip",
    )
    listed = laneway.json("schedules", "list")
    assert [
        (each["name"], each["topic"], each["missed"], each["is_paused"]) for each in listed
    ] == [
        ("report", "task.report", "one", False),
        ("sun", "lights", "skip", False),
    ]
    assert datetime.fromisoformat(listed[0]["next_at"]) > datetime.now(UTC)
    laneway("schedules", "pause", "report")
    assert "paused" in laneway("schedules", "list").stdout
    laneway("schedules", "resume", "report")
    assert not laneway.json("schedules", "list")[0]["is_paused"]
    laneway("schedules", "remove", "report")
    assert [each["name"] for each in laneway.json("schedules", "list")] == ["sun"]
    assert (
        'there is no schedule "report"; available: sun'
        in laneway("schedules", "remove", "report", code=2).stderr
    )


def test_what_was_added_is_called_by_any_worker(laneway: Command) -> None:
    seen: list[str] = []
    laneway(
        "schedules",
        "add",
        "fast",
        "--every",
        "0.1s",
        "--task",
        "note",
        "--kwargs",
        '{"text": "tick"}',
    )
    with Laneway(laneway.url) as app:

        @app.task(name="note")
        def note(text: str) -> None:
            seen.append(text)

        def work() -> int:
            app.run_worker(burst=True)
            return len(seen) >= 3

        until(work)
    assert set(seen) == {"tick"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--every", "10m"), "nothing to publish; give --task NAME, or --topic TOPIC"),
        (("--task", "x"), "one of every, cron, sun and at, got 0"),
        (
            ("--cron", "61 * * * *", "--task", "x"),
            "the minute of the cron line '61 * * * *' cannot be '61'; expected 0-59",
        ),
        (("--every", "10m", "--task", "x", "--args", "[1"), "--args: '[1' is not JSON"),
        (("--every", "10m", "--task", "x", "--args", "{}"), "expected a JSON list, got {}"),
        (("--sun", "sunrise", "--task", "x"), "--sun: expected an event and a place"),
        (("--at", "tomorrow", "--task", "x"), "--at: expected a time like"),
        (
            ("--at", "2020-01-01T00:00:00+00:00", "--task", "x"),
            "x never fires: once at 2020-01-01T00:00:00+00:00 is in the past",
        ),
        (
            ("--cron", "* * * * *", "--timezone", "Mars/Olympus", "--task", "x"),
            "there is no time zone 'Mars/Olympus'",
        ),
    ],
)
def test_what_cannot_be(laneway: Command, arguments: tuple[str, ...], expected: str) -> None:
    result = laneway("schedules", "add", "x", *arguments, code=2)
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_nothing_is_scheduled(laneway: Command) -> None:
    with Laneway(laneway.url) as app:
        app.publish("t")
    assert "nothing is scheduled" in laneway("schedules", "list").stdout


def test_run_now(laneway: Command) -> None:
    """A schedule's call is published once at once; its next firing stays."""
    laneway("schedules", "add", "nightly", "--cron", "0 3 * * *", "--topic", "reports")
    before = laneway("schedules", "list").stdout
    assert "is published to reports as message" in laneway("schedules", "run", "nightly").stdout
    assert laneway("schedules", "list").stdout == before
    assert "nightly" in laneway("schedules", "run", "none", code=2).stderr
