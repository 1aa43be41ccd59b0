"""Times of periodic tasks: `crontab`, `solar`, `schedule`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from laneway import config
from laneway.errors import UsageError
from laneway.schedules.times import EVENTS
from laneway.units import Duration

if TYPE_CHECKING:
    _Cron = str | int | Iterable[str | int]


class BaseSchedule:
    """The time of a periodic task."""


class crontab(BaseSchedule):  # noqa: N801  # Celery's name
    """A cron line, in the application's `timezone`; each field is also a set, as in Celery."""

    def __init__(
        self,
        minute: _Cron = "*",
        hour: _Cron = "*",
        day_of_week: _Cron = "*",
        day_of_month: _Cron = "*",
        month_of_year: _Cron = "*",
        **unknown: object,
    ) -> None:
        given = (minute, hour, day_of_month, month_of_year, day_of_week)
        config.refuse_unknown("crontab", unknown, _FIELDS)
        self.minute, self.hour, self.day_of_month, self.month_of_year, self.day_of_week = sets = [
            _numbers(name, value) for name, value in zip(_FIELDS, given, strict=True)
        ]
        fields = list(map(_text, _FIELDS, given, sets))
        if fields[2] != "*" and fields[4] != "*":
            fields[4] = f"&{fields[4]}"  # as in Celery, a day has to match both
        self.line = " ".join(fields)

    def __repr__(self) -> str:
        return f"<crontab: {self.line}>"


_FIELDS = {
    "minute": (0, 59, ""),
    "hour": (0, 23, ""),
    "day_of_month": (1, 31, ""),
    "month_of_year": (1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"),
    "day_of_week": (0, 6, "sun mon tue wed thu fri sat"),
}
"""The first and the last number of each field, and names of the numbers."""


def _numbers(field: str, value: _Cron) -> set[int]:
    """
    The numbers of a field: a number, a name, several of them, or a text such as `*/15`, `8-17`,
    `fri-mon` (over the end) or `0-30/10,45`. Raises UsageError.
    """
    if isinstance(value, str):
        return {each for part in value.split(",") for each in _part(field, part.strip().lower())}
    return {_number(field, str(each)) for each in ([value] if isinstance(value, int) else value)}


def _text(field: str, value: _Cron, numbers: set[int]) -> str:
    """The field of Laneway's line: the text as it is, where it means the same."""
    first, last, _ = _FIELDS[field]
    text = str(value).replace(" ", "")
    wraps = any(int(low) > int(high) for low, high in re.findall(r"(\d+)-(\d+)", text))
    if len(numbers) == last - first + 1:
        return "*"
    is_plain = re.fullmatch(r"[\d*,/-]+", text) and not wraps
    return text if is_plain else ",".join(map(str, sorted(numbers)))


def _part(field: str, text: str) -> list[int]:
    first, last, _ = _FIELDS[field]
    numbers, slash, step = text.partition("/")
    begin, dash, end = numbers.partition("-") if numbers != "*" else (str(first), "-", str(last))
    if slash and not (dash and step.isdecimal() and int(step)):
        raise UsageError(f"crontab: {field}: expected a step such as */5, got {text!r:.80}")
    low, high = _number(field, begin), _number(field, end if dash else begin)
    over_the_end = [*range(low, last + 1), *range(first, high + 1)]
    return ([*range(low, high + 1)] if low <= high else over_the_end)[:: int(step or 1)]


def _number(field: str, text: str) -> int:
    first, last, names = _FIELDS[field]
    known = {name: first + number for number, name in enumerate(names.split())}
    number = int(text) if text.isascii() and text.isdecimal() else known.get(text[:3].lower(), -1)
    if not first <= number <= last:
        raise UsageError(f"crontab: {field}: expected {first} to {last}, got {text!r:.80}")
    return number


class solar(BaseSchedule):  # noqa: N801  # Celery's name
    """
    A time by the sun at a latitude and longitude: "sunrise", "sunset", "solar_noon", or "dawn_" or
    "dusk_" with "civil", "nautical" or "astronomical".
    """

    EVENTS = {  # noqa: RUF012
        "sunrise": "sunrise",
        "sunset": "sunset",
        "solar_noon": "noon",
        **{event: event for event in EVENTS if "_" in event},
    }

    def __init__(self, event: str, lat: float, lon: float, **unknown: object) -> None:
        config.refuse_unknown("solar", unknown, ("event", "lat", "lon"))
        if event not in self.EVENTS:
            raise UsageError(
                f"solar: {event!r} is not supported; use one of {', '.join(self.EVENTS)}"
            )
        self.sun = (self.EVENTS[event], lat, lon)


class schedule(BaseSchedule):  # noqa: N801  # Celery's name
    """An interval."""

    def __init__(self, run_every: Duration, **unknown: object) -> None:
        config.refuse_unknown("schedule", unknown, ("run_every",))
        self.every = run_every


def options_of(when: Any, zone: str) -> dict[str, Any]:
    """The arguments of `Laneway.schedule`."""
    if isinstance(when, crontab):
        return {"cron": when.line, "timezone": zone}
    if isinstance(when, solar):
        return {"sun": when.sun}
    if isinstance(when, schedule):
        return {"every": when.every}
    if isinstance(when, (int, float, timedelta)):
        return {"every": when}
    raise UsageError(
        "a periodic task: expected seconds, a timedelta, crontab(…), schedule(…) or solar(…), got"
        f" {when!r:.80}"
    )
