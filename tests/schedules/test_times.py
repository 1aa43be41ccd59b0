"""When schedules fire: cron lines, time zones, both changes of the clock, the sun."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from laneway import UsageError
from laneway.schedules import times

BERLIN = ZoneInfo("Europe/Berlin")


def firings(when: times.When, start: str, number: int) -> list[datetime]:
    moment = datetime.fromisoformat(start).replace(tzinfo=UTC)
    found = []
    for _ in range(number):
        following = when.next_after(moment)
        assert following is not None
        moment = following
        found.append(moment)
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("*/15 * * * *", ["01-01 00:15", "01-01 00:30", "01-01 00:45"]),
        ("0 9-17/4 * * MON-FRI", ["01-01 09:00", "01-01 13:00", "01-01 17:00"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("0 0 LW * *", ["01-30 00:00", "02-27 00:00", "03-31 00:00"]),
        ("0 9 15W * *", ["01-15 09:00", "02-16 09:00", "03-16 09:00"]),
        ("0 9 1W * *", ["01-01 09:00", "02-02 09:00", "03-02 09:00"]),
        ("0 9 31W * *", ["01-30 09:00", "03-31 09:00", "05-29 09:00"]),
        ("0 0 * * 5L", ["01-30 00:00", "02-27 00:00", "03-27 00:00"]),
        ("0 0 * * 1#2", ["01-12 00:00", "02-09 00:00", "03-09 00:00"]),
        ("0 12 29 2 *", ["02-29 12:00"]),
        ("0 9 1-7 * &MON", ["01-05 09:00", "02-02 09:00", "03-02 09:00"]),
        ("0 0 13 * &FRI", ["02-13 00:00", "03-13 00:00", "11-13 00:00"]),
        ("30 */12 15W * &1-3", ["02-16 00:30", "02-16 12:30", "03-16 00:30"]),
        ("* * 29 2 &TUE", ["02-29 00:00", "02-29 00:01"]),
        ("0 0 1 JAN,JUL *", ["07-01 00:00", "01-01 00:00"]),
    ],
)
def test_lines(line: str, expected: list[str]) -> None:
    found = firings(times.cron(line), "2026-01-01T00:00", len(expected))
    assert [f"{at:%m-%d %H:%M}" for at in found] == expected


def test_a_step_over_one_value_is_that_value() -> None:
    found = firings(times.cron("0 8-8/5,20 * * *"), "2026-01-01T00:00", 3)
    assert [at.hour for at in found] == [8, 20, 8]
    assert [at.hour for at in firings(times.cron("0 8/5 * * *"), "2026-01-01T00:00", 4)] == [
        8,
        13,
        18,
        23,
    ]


def test_seconds() -> None:
    assert [
        at.second for at in firings(times.cron("*/20 * * * * *"), "2026-01-01T00:00:00", 4)
    ] == [20, 40, 0, 20]
    assert [
        f"{at:%H:%M:%S}" for at in firings(times.cron("30 15 10 * * *"), "2026-01-01T00:00:00", 2)
    ] == ["10:15:30", "10:15:30"]


@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *", "15 30 2 * * *"])
def test_a_time_that_is_left_out_fires_all_the_same_and_once(line: str) -> None:
    """Spring, 2026-03-29: 02:00 to 03:00 do not exist in Berlin."""
    found = [
        at.astimezone(BERLIN)
        for at in firings(times.cron(line, "Europe/Berlin"), "2026-03-27T12:00", 4)
    ]
    assert [at.day for at in found] == [28, 29, 30, 31]
    assert found[1].hour == 3


@pytest.mark.parametrize("line", ["30 2 * * *", "0 30 2 * * *", "15 30 2 * * *"])
def test_a_time_that_comes_twice_fires_once(line: str) -> None:
    """Autumn, 2026-10-25: 02:00 to 03:00 come twice in Berlin."""
    for start in ("2026-10-23T12:00", "2026-10-25T00:40"):
        found = [
            at.astimezone(BERLIN) for at in firings(times.cron(line, "Europe/Berlin"), start, 3)
        ]
        assert [at.day for at in found] == (
            [24, 25, 26] if start.startswith("2026-10-23") else [26, 27, 28]
        )


@pytest.mark.parametrize("line", ["25 2 * * *", "20,25 2 25 * *", "15 25 2 * * *", "25 2 * * &SUN"])
def test_a_time_that_the_clocks_show_again_has_passed(line: str) -> None:
    """2026-10-25, 01:17 UTC: the clocks in Berlin show 02:17 for the second time."""
    moment = datetime(2026, 10, 25, 1, 17, tzinfo=UTC)
    following = times.cron(line, "Europe/Berlin").next_after(moment)
    assert following is not None
    assert following > moment + timedelta(hours=20)
    for months in (1, 12):
        start = moment.astimezone(BERLIN).replace(minute=25, fold=0)
        found = times.every_months(months, "Europe/Berlin", start).next_after(moment)
        assert found is not None
        assert found > moment + timedelta(days=27)


def test_a_time_that_is_left_out_is_ahead_until_it_fires() -> None:
    """2026-03-29: 02:30 does not exist in Berlin, and this line fires an hour later."""
    when = times.cron("15 30 2 * * *", "Europe/Berlin")
    fires = datetime(2026, 3, 29, 1, 30, 15, tzinfo=UTC)
    for minutes in (120, 30, 29, 1):
        assert when.next_after(fires - timedelta(minutes=minutes)) == fires


@pytest.mark.parametrize(("start", "hours"), [("2026-03-28T22:30", 24), ("2026-10-24T21:30", 24)])
def test_every_hour_is_every_hour(start: str, hours: int) -> None:
    """Neither change leaves an hour out or doubles one."""
    found = firings(times.cron("0 * * * *", "Europe/Berlin"), start, hours)
    assert {later - earlier for earlier, later in pairwise(found)} == {timedelta(hours=1)}


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.sampled_from(
        [
            "30 2 * * *",
            "5 30 2 * * *",
            "*/7 * * * *",
            "0 0 L * *",
            "0 9 15W * *",
            "0 0 * * 1#2",
            "59 23 31 12 *",
        ]
    ),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
    ),
)
def test_it_is_always_later_and_nothing_is_between(moment: datetime, line: str, zone: str) -> None:
    """The firing after a moment is the firing after every moment up to it."""
    when = times.Cron(line, zone)
    following = when.next_after(moment)
    assert following is not None
    assert following > moment
    assert when.next_after(following - timedelta(microseconds=1)) == following
    assert when.next_after(moment + (following - moment) / 2) == following


def test_every_so_often_is_the_same_everywhere() -> None:
    assert firings(times.every(600), "2026-01-01T00:03", 2) == [
        datetime(2026, 1, 1, 0, 10, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 20, tzinfo=UTC),
    ]
    assert times.every(600).next_after(datetime(2026, 1, 1, 0, 10, tzinfo=UTC)) == datetime(
        2026, 1, 1, 0, 20, tzinfo=UTC
    )
    assert times.every(0.25).next_after(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(
        2026, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC
    )


def test_the_sun() -> None:
    """
    Berlin, June: against the almanac, to the minute. In Longyearbyen it does not rise from October
    to February.
    """
    found = [
        f"{at:%m-%d %H:%M}"
        for at in firings(times.sun("sunrise", 52.52, 13.405), "2026-06-01T00:00", 2)
    ]
    assert found == ["06-01 02:50", "06-02 02:49"]
    dusk, dawn = (
        firings(times.sun(event, 52.52, 13.405), "2026-06-01T12:00", 1)[0]
        for event in ("dusk", "dawn")
    )
    assert dusk < dawn < dusk + timedelta(hours=8)
    (polar,) = firings(times.sun("sunrise", 78.22, 15.63), "2026-11-01T00:00", 1)
    assert (polar.year, polar.month) == (2027, 2)
    before = times.sun("sunset", 52.52, 13.405, -1800)
    assert firings(times.sun("sunset", 52.52, 13.405), "2026-06-01T00:00", 1)[0] - firings(
        before, "2026-06-01T00:00", 1
    )[0] == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"line": "61 * * * *"},
            "the minute of the cron line '61 * * * *' cannot be '61'; expected 0-59",
        ),
        ({"line": "* * * *"}, "has 4 fields; expected 5"),
        ({"line": "0 25 * * *"}, "the hour"),
        ({"line": "0 0 0 * *"}, "the day of month"),
        ({"line": "0 0 * 13 *"}, "the month"),
        ({"line": "0 0 * * 8"}, "the day of week"),
        ({"line": "0 0 * * 1#6"}, "the day of week"),
        ({"line": "99 * * * * *"}, "the second"),
        ({"line": "0 0 30 2 *"}, "the cron line '0 0 30 2 *' never fires; check its day and month"),
        ({"line": "0 0 31W 2 *"}, "never fires"),
        ({"line": "0 0 32 2 *"}, "the day of month of the cron line '0 0 32 2 *' cannot be '32'"),
        ({"line": 5}, "expected a cron line"),
        (
            {"line": "* * * * *", "zone": "Europe/Berln"},
            "there is no time zone 'Europe/Berln'; did you mean \"Europe/Berlin\"",
        ),
        ({"line": "* * * * *", "zone": "../etc/passwd"}, "there is no time zone"),
        ({"period": 5, "zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ({"period": 0}, "expected a period of 0.1 s to 10 years, got 0 s"),
        ({"period": "often"}, "often"),
        (
            {"event": ("moonrise", 1, 1)},
            "one of dawn, sunrise, noon, sunset, dusk, midnight, dawn_civil,",
        ),
        ({"event": ("sunrise", 100, 1)}, "latitude of -90 to 90"),
        ({"event": "sunrise"}, 'like ("sunrise", 52.5, 13.4)'),
        ({"moment": datetime(2030, 1, 1)}, "a datetime with a time zone"),  # noqa: DTZ001
        ({}, "one of every, cron, sun and at, got 0"),
        ({"line": "0 0 1 * &FOO"}, "the day of week of the cron line '0 0 1 * &FOO' cannot be"),
        ({"line": "0 0 30 2 &MON"}, "never fires"),
        ({"period": 5, "line": "* * * * *"}, "got 2"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], message: str) -> None:
    given = {"period": None, "line": None, "event": None, "moment": None, "zone": "UTC", **options}
    with pytest.raises(UsageError) as error:
        times.chosen("x", **given)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def shown(when: times.When, start: str, number: int) -> list[str]:
    return [f"{at:%Y-%m-%d %H:%M}" for at in firings(when, start, number)]


def by_months(period: str, start: datetime | None = None, zone: str = "UTC") -> times.When:
    return times.chosen("x", period, None, None, None, zone, start)


def test_a_period_in_months_counts_from_1970() -> None:
    assert shown(by_months("2 months"), "2026-01-01T00:00", 3) == [
        "2026-03-01 00:00",
        "2026-05-01 00:00",
        "2026-07-01 00:00",
    ]
    assert shown(by_months("quarter"), "2026-02-01T00:00", 2) == [
        "2026-04-01 00:00",
        "2026-07-01 00:00",
    ]
    assert shown(by_months("1 year"), "2026-01-01T00:00", 1) == ["2027-01-01 00:00"]


def test_a_month_without_the_day_of_the_start_fires_on_its_last_day() -> None:
    start = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    assert shown(by_months("1 month", start), "2025-06-01T00:00", 4) == [
        "2026-01-31 09:30",
        "2026-02-28 09:30",
        "2026-03-31 09:30",
        "2026-04-30 09:30",
    ]


def test_a_period_in_months_follows_the_clock_of_its_zone() -> None:
    start = datetime(2026, 1, 29, 2, 30, tzinfo=BERLIN)
    found = firings(by_months("month", start, "Europe/Berlin"), "2026-02-01T00:00", 3)
    # 2026-03-29 02:30 is left out by the change to summer time.
    assert [f"{at.astimezone(BERLIN):%m-%d %H:%M}" for at in found] == [
        "02-28 02:30",
        "03-29 03:30",
        "04-29 02:30",
    ]


@given(
    months=st.integers(1, 40),
    start=st.datetimes(datetime(1990, 1, 1), datetime(2060, 1, 1)),  # noqa: DTZ001
    moment=st.datetimes(datetime(1980, 1, 1), datetime(2090, 1, 1)),  # noqa: DTZ001
)
def test_the_first_of_all_months_of_a_period_fires(
    months: int, start: datetime, moment: datetime
) -> None:
    """Compared with a list of all its months, without changes of the clock."""
    after = moment.replace(tzinfo=UTC)
    all_of_them = []
    month = start.year * 12 + start.month - 1
    while month < 2_095 * 12:
        last = (datetime(month // 12, month % 12 + 1, 28, tzinfo=UTC) + timedelta(days=4)).replace(
            day=1
        ) - timedelta(days=1)
        all_of_them.append(
            start.replace(
                year=last.year, month=last.month, day=min(start.day, last.day), tzinfo=UTC
            )
        )
        month += months
    expected = min(at for at in all_of_them if at > after)
    assert times.Calendar(months, start).next_after(after) == expected


def test_the_calendar_ends_with_the_year_9999() -> None:
    start = datetime(9999, 6, 1, tzinfo=UTC)
    assert by_months("1 year", start).next_after(start) is None


@pytest.mark.parametrize(
    ("period", "start", "expected"),
    [
        ("0 months", None, "1 month to 100 years"),
        ("9999 years", None, "1 month to 100 years"),
        ("2 months", datetime(2026, 1, 1), "with a time zone"),  # noqa: DTZ001
        ("2 months", "2026-01-01", "with a time zone"),
        ("10m", datetime(2026, 1, 1, tzinfo=UTC), "belongs to a period in months"),
    ],
)
def test_periods_by_the_calendar_that_are_not_valid(period: str, start: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        by_months(period, start)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("@hourly", "2026-01-01 01:00"),
        ("@daily", "2026-01-02 00:00"),
        ("@Midnight", "2026-01-02 00:00"),
        ("@weekly", "2026-01-04 00:00"),
        ("@monthly", "2026-02-01 00:00"),
        ("@yearly", "2027-01-01 00:00"),
        ("@annually", "2027-01-01 00:00"),
    ],
)
def test_names_of_cron_lines(name: str, expected: str) -> None:
    assert shown(times.cron(name), "2026-01-01T00:00", 1) == [expected]


def test_an_unknown_name_of_a_cron_line_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"no cron line '@fortnightly'; expected one of @hourly"):
        times.cron("@fortnightly")


def test_all_events_of_the_sun_in_the_order_of_a_day() -> None:
    day = [
        "midnight",
        "dawn_astronomical",
        "dawn_nautical",
        "dawn_civil",
        "sunrise",
        "noon",
        "sunset",
        "dusk_civil",
        "dusk_nautical",
        "dusk_astronomical",
    ]
    assert {*day, "dawn", "dusk"} == set(times.EVENTS)
    # Quito, where the sun is highest at about 17:15 UTC in March.
    at = [firings(times.sun(event, -0.2, -78.5), "2026-03-20T03:00", 1)[0] for event in day]
    assert at == sorted(at)
    [civil] = firings(times.sun("dawn", -0.2, -78.5), "2026-03-20T03:00", 1)
    assert civil == at[3]
