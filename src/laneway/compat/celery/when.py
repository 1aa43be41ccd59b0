"""Times of periodic tasks: `crontab`, `solar`, `schedule`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from laneway import config
from laneway.errors import UsageError
from laneway.schedules.times import EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.units import Duration


class crontab:  # noqa: N801  # Celery's name
    """A cron line, in the application's `timezone`."""

    def __init__(
        self,
        minute: str | int | Sequence[int] = "*",
        hour: str | int | Sequence[int] = "*",
        day_of_week: str | int | Sequence[int] = "*",
        day_of_month: str | int | Sequence[int] = "*",
        month_of_year: str | int | Sequence[int] = "*",
        **unknown: object,
    ) -> None:
        config.refuse_unknown(
            "crontab", unknown, ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
        )
        fields = [_field(each) for each in (minute, hour, day_of_month, month_of_year, day_of_week)]
        if fields[2] != "*" and fields[4] != "*":
            fields[4] = f"&{fields[4]}"  # as in Celery, a day has to match both
        self.line = " ".join(fields)

    def __repr__(self) -> str:
        return f"<crontab: {self.line}>"


def _field(values: str | float | Sequence[int]) -> str:
    if isinstance(values, str):
        return values.replace(" ", "")
    if isinstance(values, (int, float)):
        return str(int(values))
    return ",".join(str(each) for each in sorted(values))


class solar:  # noqa: N801  # Celery's name
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


class schedule:  # noqa: N801  # Celery's name
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
