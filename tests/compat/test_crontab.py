"""`crontab` means what it means in Celery."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from laneway import UsageError
from laneway.compat.celery import Celery
from laneway.compat.celery.when import crontab
from laneway.schedules.times import cron

FIELDS = {
    "minute": (0, 59, ""),
    "hour": (0, 23, ""),
    "day_of_week": (0, 6, "sun monday Tue wed THURSDAY fri sat"),
    "day_of_month": (1, 28, ""),
    "month_of_year": (1, 12, "jan february Mar apr may jun jul aug sep oct nov december"),
}


def field_of(draw: random.Random, name: str) -> Any:
    """A field at random: a number, numbers, names, ranges (also over the end), steps."""
    first, last, names = FIELDS[name]

    def number() -> str:
        return draw.choice([*names.split(), str(draw.randint(first, last))])

    def part() -> str:
        kind = draw.randrange(4)
        if kind == 0:
            return number()
        step = draw.choice(["", f"/{draw.randint(1, 7)}"])
        return f"*{step}" if kind == 1 else f"{number()}-{number()}{step}"

    kind = draw.randrange(8)
    if kind < 2:
        return "*"
    if kind == 2:
        return draw.randint(first, last)
    if kind == 3:
        return {draw.randint(first, last) for _ in range(3)}
    return ",".join(part() for _ in range(draw.randint(1, 3)))


def test_random_lines() -> None:
    """The fields of 400 lines have Celery's numbers, and Laneway fires when Celery would."""
    celery = pytest.importorskip("celery")
    schedules = pytest.importorskip("celery.schedules")
    theirs = celery.Celery("crontab", set_as_current=False)
    draw = random.Random(31)
    for _ in range(400):
        fields = {name: field_of(draw, name) for name in FIELDS}
        moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=draw.randrange(2_000_000))
        expected = schedules.crontab(**fields, app=theirs, nowfun=lambda now=moment: now)
        ours = crontab(**fields)
        for name in FIELDS:
            assert getattr(ours, name) == getattr(expected, name), fields
        last, delta, _ = expected.remaining_delta(moment)
        assert cron(ours.line).next_after(moment) == last + delta, (fields, ours.line, moment)


def test_the_line() -> None:
    """It is what was written where that means the same; a day has to match both fields."""
    assert crontab(0, "*/2", day_of_month="1-7", day_of_week=1).line == "0 */2 1-7 * &1"
    assert crontab(hour="22-2", day_of_week="fri-mon").line == "* 0,1,2,22,23 * * 0,1,5,6"


@pytest.mark.parametrize("minute", ["60", "*/0", "5/10", "-5", "5-", "", "a", "1,,2", 60, [3, -1]])
def test_wrong_fields(minute: object) -> None:
    """Wrong fields are errors, as in Celery."""
    with pytest.raises(UsageError, match="crontab: minute: expected"):
        crontab(minute)  # type: ignore[arg-type]


def test_an_application_takes_it() -> None:
    """A schedule has the line."""
    app = Celery("crontab", broker="sqlite://", set_as_current=False)

    @app.task(name="tick")
    def tick() -> None:
        pass

    app.add_periodic_task(crontab(day_of_week="mon-fri"), tick.s(), name="work")
    app.laneway.schedules.install()
    assert "1,2,3,4,5" in str(app.laneway.schedules.list()[0])
