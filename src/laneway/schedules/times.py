"""
When a schedule fires: periodically, by the calendar, by a cron line, by the sun, or once; in time
zones, and across clock changes.
"""

from __future__ import annotations

import calendar
import difflib
import math
import re
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from laneway import arguments
from laneway.errors import UsageError
from laneway.units import Duration

FIELDS = ("second", "minute", "hour", "day of month", "month", "day of week")
RANGES = (
    "0-59",
    "0-59",
    "0-23",
    "1-31, L, LW or 15W",
    "1-12 or JAN-DEC",
    "0-7 or SUN-SAT, 5L, 1#2",
)
_NEAREST = re.compile(r"(\d{1,2})W")
_ONE_TO_ITSELF = re.compile(r"(\w+)-\1/\d+")
_BAD_FIELD = re.compile(r"Bad (.+)")
_MONTHS = re.compile(r"\s*(\d{1,4})?\s*(month|quarter|year)s?\s*", re.IGNORECASE)
_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
YEARS_AHEAD = 10
"""A cron line that matches nothing for this long never matches."""

MOST_SKIPPED = timedelta(hours=2)
"""How much a clock change skips at most: a skipped time fires this much later."""

MOST_MONTHS = 1_200
"""The longest calendar interval: 100 years."""

CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of cron lines, as in crontab(5)."""

DEPRESSIONS = {"civil": 6, "nautical": 12, "astronomical": 18}
"""By twilight: the sun's degrees below the horizon when it begins or ends."""

EVENTS = (
    "dawn",
    "sunrise",
    "noon",
    "sunset",
    "dusk",
    "midnight",
    *(f"{event}_{twilight}" for event in ("dawn", "dusk") for twilight in DEPRESSIONS),
)
"""`dawn` and `dusk` are civil. `midnight`: when the sun is lowest."""


class Every(msgspec.Struct, frozen=True, tag="every"):
    """At multiples of a number of seconds since 1970, so every process computes the same times."""

    seconds: float

    def next_after(self, moment: datetime) -> datetime | None:
        """The first firing after a moment."""
        period = timedelta(seconds=self.seconds)
        epoch = datetime(1970, 1, 1, tzinfo=UTC)
        return epoch + ((moment - epoch) // period + 1) * period

    def text(self) -> str:
        """The rule as text."""
        return f"every {self.seconds:g} s"


class Calendar(msgspec.Struct, frozen=True, tag="calendar"):
    """
    At an interval of months from a start, at its day and time in a time zone.

    `start` has no time zone. In a month without the start's day, it fires on the last day; later
    months are not shifted. A time that a clock change skips fires after the change.
    """

    months: int
    start: datetime
    zone: str = "UTC"

    def next_after(self, moment: datetime) -> datetime | None:
        """The first firing after a moment, or None if it is after the year 9999."""
        local = moment.astimezone(ZoneInfo(self.zone))
        start = self.start
        passed = (local.year - start.year) * 12 + local.month - start.month
        number = max(0, passed // self.months)
        while True:  # two rounds at most
            years, month = divmod(start.month - 1 + number * self.months, 12)
            year = start.year + years
            if year > MAXYEAR:
                return None
            day = min(start.day, calendar.monthrange(year, month + 1)[1])
            firing = _on_the_clock(start.replace(year=year, month=month + 1, day=day), local)
            if firing.astimezone(UTC) > moment:
                return firing.astimezone(UTC)
            number += 1

    def text(self) -> str:
        """The rule as text."""
        every = f"{self.months} months" if self.months > 1 else "month"
        return f"every {every} from {self.start:%Y-%m-%d %H:%M:%S} ({self.zone})"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """
    By a cron line of five fields, or six with seconds first, in a time zone.

    `L` is the month's last day, `LW` its last weekday, `15W` the weekday nearest to the 15th, `5L`
    the last Friday, `1#2` the second Monday. With `&` before the weekday, as in `0 9 1-7 * &MON`,
    the day must match both fields; without it, one of them. A time that a clock change skips fires
    right after the change; a time that occurs twice fires once (the rule of Debian's cron). If the
    hour or the minute begins with `*`, each instant counts separately.
    """

    line: str
    zone: str = "UTC"

    def next_after(self, moment: datetime) -> datetime | None:
        """The first firing after a moment, or None if it never fires again."""
        firing = self._next(moment)
        while firing is not None and firing <= moment:  # the clocks show its time again
            firing = self._next(firing)
        return firing

    def _next(self, moment: datetime) -> datetime | None:
        """As `next_after`, but in an hour that the clocks repeat it may be before the moment."""
        local = moment.astimezone(ZoneInfo(self.zone))
        if " &" in self.line:
            return self._next_of_both(local)
        nearest = _NEAREST.fullmatch(self._days().upper())
        if nearest is None:
            firing = _next(self.line, local, local.year + YEARS_AHEAD)
        else:
            firing = self._next_nearest(int(nearest[1]), local)
        return firing.astimezone(UTC) if firing is not None else None

    def _next_of_both(self, local: datetime) -> datetime | None:
        """The first firing of the line without weekdays on one of these weekdays."""
        dates, _, weekdays = self.line.partition(" &")
        last_year = local.year + YEARS_AHEAD
        while (firing := Cron(f"{dates} *", self.zone).next_after(local)) is not None:
            local = firing.astimezone(local.tzinfo)
            day = datetime(local.year, local.month, local.day)  # noqa: DTZ001  # on the zone's clock
            found = _next(f"0 0 * * {weekdays}", day - timedelta(seconds=1), last_year)
            if found == day or found is None:
                return firing if found == day else None
            local = found.replace(tzinfo=local.tzinfo) - timedelta(seconds=1)
        return None

    def _days(self) -> str:
        parts = self.line.split()
        return parts[-3] if len(parts) in (5, 6) else ""

    def _next_nearest(self, wanted: int, local: datetime) -> datetime | None:
        """
        Search month by month, with the weekday of that month that is nearest to the wanted day.
        """
        parts = self.line.split()
        year, month = local.year, local.month
        while year <= local.year + YEARS_AHEAD:
            days = calendar.monthrange(year, month)[1]
            if wanted <= days:
                day = _nearest_weekday(year, month, wanted, days)
                line = " ".join([*parts[:-3], str(day), *parts[-2:]])
                first = datetime(year, month, 1, tzinfo=local.tzinfo) - timedelta(seconds=1)
                firing = _next(line, max(local, first), year)
                if firing is not None and (firing.year, firing.month) == (year, month):
                    return firing
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return None

    def text(self) -> str:
        """The rule as text."""
        return f"cron {self.line} ({self.zone})"


def _astral() -> tuple[Any, Any]:
    """
    The class for a place, and the module for the sun. Raises UsageError if the extra is not
    installed.
    """
    try:
        from astral import LocationInfo, sun  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError(
            "schedule: sun= needs the package astral; pip install 'laneway[solar]'"
        ) from error
    return LocationInfo, sun


class Sun(msgspec.Struct, frozen=True, tag="sun"):
    """
    At a sun event (one of `EVENTS`) at a place, plus `offset` seconds (negative: before it).
    """

    event: str
    latitude: float
    longitude: float
    offset: float = 0.0

    def next_after(self, moment: datetime) -> datetime | None:
        """
        The first firing after a moment; days without the event (a polar night) have none. Returns
        None if none follows within a year.
        """
        LocationInfo, almanac = _astral()  # noqa: N806
        place = LocationInfo(latitude=self.latitude, longitude=self.longitude).observer
        shift = timedelta(seconds=self.offset)
        event, _, twilight = self.event.partition("_")
        options = {"depression": DEPRESSIONS[twilight]} if twilight else {}
        day = (moment - shift).date() - timedelta(days=1)
        for _ in range(368):
            try:
                at = getattr(almanac, event)(place, date=day, tzinfo=UTC, **options) + shift
            except ValueError:  # the event does not occur on that day
                at = moment
            if at > moment:
                return datetime.fromtimestamp(math.floor(at.timestamp()) + 1, UTC)
            day += timedelta(days=1)
        return None

    def text(self) -> str:
        """The rule as text."""
        return f"{self.event} at {self.latitude:g}, {self.longitude:g}" + (
            f" {self.offset:+g} s" if self.offset else ""
        )


class Once(msgspec.Struct, frozen=True, tag="once"):
    """Once, at a moment."""

    moment: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        """The moment, if it is in the future."""
        return self.moment if self.moment > moment else None

    def text(self) -> str:
        """The rule as text."""
        return f"once at {self.moment.isoformat()}"


When = Every | Calendar | Cron | Sun | Once


def chosen(
    name: str,
    period: Duration | None,
    line: str | None,
    event: tuple[str, float, float] | None,
    moment: datetime | None,
    zone: str,
    start: datetime | None = None,
) -> When:
    """
    The rule of a schedule's options. Raises UsageError unless exactly one is given.

    `start`: the first firing of a `period` in months.
    """
    given = [each for each in (period, line, event, moment) if each is not None]
    if len(given) != 1:
        raise UsageError(
            f"schedule {name}: expected one of every, cron, sun and at, got {len(given)}"
        )
    if zone != "UTC":  # even if the rule needs none; UTC needs no time zone database
        check_zone(zone)
    months = _months(period)
    if start is not None and months is None:
        raise UsageError(
            f"schedule {name}: start= belongs to a period in months, quarters or years, like"
            ' every="2 months"'
        )
    if months is not None:
        return every_months(months, zone, start)
    if period is not None:
        return every(arguments.seconds(f"schedule {name}", "every", period))
    if line is not None:
        return cron(line, zone)
    if event is not None:
        if not isinstance(event, (tuple, list)) or len(event) not in (3, 4):
            raise UsageError(
                f'schedule {name}: expected sun to be like ("sunrise", 52.5, 13.4), got'
                f" {event!r:.80}"
            )
        return sun(*event)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise UsageError(
            f"schedule {name}: expected at to be a datetime with a time zone, got {moment!r:.80}"
        )
    return Once(moment.astimezone(UTC))


def every(seconds: float) -> Every:
    """A periodic rule. Raises UsageError if the period is too short or too long."""
    if not 0.1 <= seconds <= 10 * 366 * 86_400:
        raise UsageError(f"schedule: expected a period of 0.1 s to 10 years, got {seconds:g} s")
    return Every(seconds)


def _months(period: object) -> int | None:
    """The months of a period like "2 months" or "1 year"; None for another unit."""
    match = _MONTHS.fullmatch(period) if isinstance(period, str) and len(period) < 40 else None
    return int(match[1] or 1) * _MONTHS_OF[match[2].lower()] if match is not None else None


def every_months(months: int, zone: object = "UTC", start: object = None) -> Calendar:
    """
    A calendar rule: an interval of months from `start` (a datetime with a time zone; default: the
    beginning of 1970 in `zone`).

    Raises UsageError if the period is above 100 years, or for an invalid time zone or start.
    """
    if not 1 <= months <= MOST_MONTHS:
        raise UsageError(
            f"schedule: expected a period of 1 month to 100 years, got {months} months"
        )
    zone = check_zone(zone)
    if start is None:
        return Calendar(months, datetime(1970, 1, 1), zone)  # noqa: DTZ001  # on the zone's clock
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise UsageError(
            f"schedule: expected start to be a datetime with a time zone, got {start!r:.80}"
        )
    return Calendar(months, start.astimezone(ZoneInfo(zone)).replace(tzinfo=None), zone)


def cron(line: object, zone: object = "UTC") -> Cron:
    """
    A cron rule. Raises UsageError, which names the field that cannot be read, or the unknown time
    zone.
    """
    from cronsim import CronSimError  # noqa: PLC0415

    if not isinstance(line, str):
        raise UsageError(f"schedule: expected a cron line like '*/5 * * * *', got {line!r:.80}")
    if line.strip().startswith("@"):
        line = _named_line(line.strip().lower())
    parts = line.split()
    if len(parts) not in (5, 6):
        wanted = "expected 5 (minute hour day month weekday), or 6 with seconds first"
        raise UsageError(f"schedule: the cron line {line!r} has {len(parts)} fields; {wanted}")
    rule = Cron(" ".join(_without_idle_steps(part) for part in parts), check_zone(zone))
    try:
        firing = rule.next_after(datetime.now(UTC))
    except CronSimError as error:
        name = (_BAD_FIELD.match(str(error)) or ["", str(error)])[1].replace("-", " ")
        if name == "day of month" and parts[-2] != "*" and _is_valid([*parts[:-2], "*", parts[-1]]):
            raise _never(line) from error
        place = FIELDS.index(name)
        part = parts[place - (6 - len(parts))]
        raise UsageError(
            f"schedule: the {name} of the cron line {line!r} cannot be {part!r}; expected"
            f" {RANGES[place]}"
        ) from error
    if firing is None:
        raise _never(line)
    return rule


def _is_valid(parts: list[str]) -> bool:
    try:
        cron(" ".join(parts))
    except UsageError:
        return False
    return True


def _never(line: str) -> UsageError:
    return UsageError(f"schedule: the cron line {line!r} never fires; check its day and month")


def _named_line(name: str) -> str:
    try:
        return CRON_NAMES[name]
    except KeyError:
        raise UsageError(
            f"schedule: there is no cron line {name!r:.80}; expected one of {', '.join(CRON_NAMES)}"
        ) from None


def _without_idle_steps(part: str) -> str:
    """`8-8/5` becomes 8; cronsim reads it as `8/5`, which is 8, 13, 18 …"""
    return ",".join(
        _ONE_TO_ITSELF.sub(r"\1", item) if _ONE_TO_ITSELF.fullmatch(item) else item
        for item in part.split(",")
    )


def sun(event: object, latitude: float, longitude: float, offset: float = 0.0) -> Sun:
    """A sun rule. Raises UsageError if the event or the place does not exist."""
    if event not in EVENTS:
        raise UsageError(
            f"schedule: expected an event of the sun, one of {', '.join(EVENTS)}, got {event!r}"
        )
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise UsageError(
            "schedule: expected a latitude of -90 to 90 and a longitude of -180 to 180, got"
            f" {latitude!r}, {longitude!r}"
        )
    _astral()  # raises here, not in the worker that fires it
    return Sun(str(event), float(latitude), float(longitude), offset)


def check_zone(name: object) -> str:
    """The name of a time zone. Raises UsageError if it does not exist."""
    try:
        return ZoneInfo(str(name)).key
    except (KeyError, ValueError, OSError) as error:
        near = difflib.get_close_matches(str(name)[:80], available_timezones(), n=1)
        hint = f'did you mean "{near[0]}"?' if near else 'names are like "Europe/Berlin"'
        raise UsageError(f"schedule: there is no time zone {name!r:.80}; {hint}") from error


def _next(line: str, local: datetime, last_year: int) -> datetime | None:
    from cronsim import CronSim  # noqa: PLC0415

    parts = line.split()
    if len(parts) == 6 and not parts[1].startswith("*") and not parts[2].startswith("*"):
        # Like lines of five fields: a time of the day, not an instant. cronsim handles clock
        # changes only for those.
        for wall in CronSim(line, local.replace(tzinfo=None) - MOST_SKIPPED):
            firing = _on_the_clock(wall, local)
            if firing > local or wall.year > last_year:
                return firing if wall.year <= last_year else None
        return None
    try:
        firing = next(CronSim(line, local))
    except StopIteration:
        return None
    return firing if firing.year <= last_year else None


def _on_the_clock(wall: datetime, local: datetime) -> datetime:
    """
    The first instant at which the clocks show a time. A time that a clock change skips is shifted
    by the length of the change.
    """
    return wall.replace(tzinfo=local.tzinfo, fold=0).astimezone(UTC).astimezone(local.tzinfo)


def _nearest_weekday(year: int, month: int, day: int, days: int) -> int:
    weekday = calendar.weekday(year, month, day)
    if weekday == calendar.SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == calendar.SUNDAY:
        return day + 1 if day < days else day - 2
    return day
