"""Durations, rates and sizes as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from laneway import units


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        ("10m", 600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (timedelta(days=1), 86_400),
        ("3", 3),
        ("2d 4h", 187_200),
        ("10 minutes", 600),
        ("1 min", 60),
        ("1 hour 30 mins", 5400),
        ("2 Weeks", 1_209_600),
        ("5 milliseconds", 0.005),
        ("90 sec", 90),
    ],
)
def test_duration_is_read_in_seconds(written: units.Duration, seconds: float) -> None:
    """A duration is a number of seconds, a timedelta, or text."""
    assert units.seconds(written) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        "soon",
        "10 parsecs",
        "1 mint",
        "10 minutesx",
        "min",
        float("nan"),
        float("inf"),
        "",
        "nan",
        True,
        None,
        "१s",
        "1h३0m",
        "１０",
    ],
)
def test_invalid_duration_is_refused(wrong: object) -> None:
    """The error names the expected form."""
    with pytest.raises(ValueError, match="expected seconds"):
        units.seconds(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        (50, 50),
        ("50/s", 50),
        ("600/m", 10),
        ("100/10s", 10),
        ("36/hour", 0.01),
        ("7", 7),
        ("1/14d", 8.2672e-7),
    ],
)
def test_rate_is_read_per_second(written: float | str, rate: float) -> None:
    """A rate is a number or text."""
    assert units.rate(written) == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [0, -1, "fast", "5/fortnight", float("nan"), 2_000_000, True, "५/s", 1e-300, 1e-320, "1/15d"],
)
def test_invalid_rate_is_refused(wrong: object) -> None:
    """Zero is refused too: a pause stops a topic, not a rate."""
    with pytest.raises(ValueError, match="above 0"):
        units.rate(wrong)  # type: ignore[arg-type]


def test_sizes_and_times_are_read() -> None:
    """Sizes have decimal or binary units; a datetime needs a time zone."""
    assert units.size("10GB") == 10**10
    assert units.size("1MiB") == 2**20
    assert units.moment(datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000_000
    with pytest.raises(ValueError, match="expected a number of bytes"):
        units.size("१GB")
    with pytest.raises(ValueError, match="time zone"):
        units.moment(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_count_names_one_or_many() -> None:
    assert units.counted(1, "message") == "1 message"
    assert units.counted(0, "message") == "0 messages"
    assert units.counted(2_000, "policy", "policies") == "2,000 policies"
