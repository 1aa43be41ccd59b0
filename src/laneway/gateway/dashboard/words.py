"""How pages write numbers, times and states. Templates use these as filters."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway import presenting
from laneway.engines.base import MessageView, TopicStats
from laneway.message import RAW
from laneway.printable import escaped

MAX_BODY = 64 << 10
"""Most bytes of a body that a page shows."""

KINDS = {
    "running": "good",
    "runnable": "good",
    "asleep": "slow",
    "backing_off": "slow",
    "full": "slow",
    "at_gate": "slow",
    "parked": "slow",
    "paused": "off",
    "stopping": "off",
    "dead": "bad",
    "failing": "bad",
    "leased": "good",
    "healthy": "good",
    "busy": "slow",
    "open": "bad",
    "probing": "slow",
    "disabled": "bad",
    "acked": "good",
    "retried": "slow",
    "finished": "good",
    "waiting": "slow",
    "done": "good",
    "success": "good",
    "failure": "bad",
    "expired": "bad",
    "cancelled": "off",
    "deferred": "slow",
    "started": "good",
    "failed": "bad",
    "lost": "bad",
    "stopped": "off",
    "backed_off": "slow",
}
"""What states mean: the color and the shape of their mark."""


def number(value: float | None) -> str:
    """A number with separators; "–" for None."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def short(value: float | None) -> str:
    """A number in four characters or so: 12.3 k, 4.5 M."""
    if value is None:
        return "–"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (unit != "k" and abs(value) >= size):
            return f"{value / size:,.1f}\u202f{unit}"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 0.05 or not value else f"{value:.2g}"


def rate(value: float | None) -> str:
    """Events per second; few ones per minute."""
    if value is None:
        return "–"
    if 0 < value < 0.1:
        return f"{value * 60:.1f}/min"
    return f"{short(round(value, 1))}/s"


def part(value: float | None) -> str:
    """A part of 1 as percent."""
    if value is None:
        return "–"
    return f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def span(seconds: float | None) -> str:
    """A duration, rounded."""
    if seconds is None:
        return "–"
    if 1 <= seconds < 120:
        return f"{seconds:.0f} s"
    return presenting.duration(max(0.0, seconds)) or "–"


def bound(seconds: float) -> str:
    """A duration that is a whole number of its unit: 5 ms, 15 s, 1 min, 6 h."""
    for unit, length in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds * 1000:g} ms"


_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EVERY = re.compile(r"every ([\d.]+) s")
_CRON = re.compile(r"cron (\S+) (\S+) (\S+) (\S+) (\S+) \((.+)\)")


def schedule(when: str) -> str:
    """The rule of a schedule in English, as far as it is a usual one; else as it is."""
    if found := _EVERY.fullmatch(when):
        return f"every {bound(float(found[1]))}"
    if (found := _CRON.fullmatch(when)) is None:
        return when
    minute, hour, day, month, weekday, zone = found.groups()
    named = "" if zone == "UTC" else f" ({zone})"
    if month != "*":
        return when
    if not minute.isdigit():
        every = re.fullmatch(r"\*/(\d+)", minute)
        is_plain = (hour, day, weekday) == ("*", "*", "*")
        return f"every {every[1]} min" if every and is_plain else when
    if not hour.isdigit():
        is_plain = (hour, day, weekday) == ("*", "*", "*")
        return f"every hour at minute {int(minute)}" if is_plain else when
    at = f"at {int(hour):02}:{int(minute):02}{named}"
    if day == "*" and weekday == "*":
        return f"every day {at}"
    if day == "*" and (name := _day(weekday)):
        return f"every {name} {at}"
    if day == "*" and weekday in ("1-5", "MON-FRI"):
        return f"Monday to Friday {at}"
    if weekday == "*" and day == "L":
        return f"the last day of the month {at}"
    if weekday == "*" and day.isdigit():
        return f"day {int(day)} of the month {at}"
    return when


def _day(weekday: str) -> str | None:
    """The name of a day of the week, given as a number or its first three characters, or None."""
    if weekday.isdigit():
        return _DAYS[int(weekday)] if int(weekday) < len(_DAYS) else None
    return next((name for name in _DAYS if name[:3].upper() == weekday.upper()), None)


def size(count: int) -> str:
    """Bytes, rounded."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count:,} B"


def iso(us: float | None) -> str:
    """A time (microseconds since 1970) for `<time datetime>`, where a page's script reads it."""
    if us is None:
        return ""
    try:
        return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return "9999-12-31T23:59:59Z"


def moment(us: float | None) -> str:
    """A time in UTC, as a page without scripts shows it."""
    return "–" if us is None else iso(us).replace("T", " ")


def text(value: object) -> str:
    """Any text of users, with control characters made visible."""
    return escaped(str(value))


def block(value: object) -> str:
    """As `text`, with the lines that it has."""
    return escaped(str(value), lines=True)


STATES = {
    "runnable": "ready",
    "asleep": "at its rate limit",
    "full": "at its concurrency limit",
    "at_gate": "at its gate's limit",
    "open": "breaker open",
}
"""States whose names in programs are not plain words."""


def state(name: str) -> str:
    """A state in words."""
    return STATES.get(name) or name.replace("_", " ")


def sentence(value: object) -> str:
    """A reason as a sentence: with a capital and a full stop."""
    found = text(value)
    return found[:1].upper() + found[1:] + ("" if found.endswith((".", "…", "?")) else ".")


FIRINGS = {
    "finished": "done",
    "waiting": "waits",
    "leased": "runs",
    "dead": "dead",
    "unknown": "not fired",
}


def firing(state_: str) -> str:
    """What became of a firing of a schedule."""
    return FIRINGS[state_]


def kind(name: str) -> str:
    """What a state means: good, slow, bad, off, or nothing of these."""
    return KINDS.get(name, "none")


CAUSES = {
    **dict.fromkeys(
        ("disabled", "endpoint", "secrets", "unserved", "unhandled", "backlog", "refused", "key"),
        "bad",
    ),
    **dict.fromkeys(
        ("paused", "back_off", "probe", "retry", "rate", "full", "gate", "group", "no_group"),
        "slow",
    ),
    **dict.fromkeys(("key_full", "key_rate", "jobs", "clock", "ahead", "events", "sent"), "slow"),
    **dict.fromkeys(("own_backlog", "subscription", "schedule", "no_endpoint"), "slow"),
    **dict.fromkeys(("finished", "unknown"), "slow"),
    **dict.fromkeys(("worker", "turn", "empty", "leased", "due", "dead"), "none"),
}
"""What each cause of a reason means, as `kind`. A bad one needs somebody to act."""


def reason_kind(cause: str) -> str:
    """The `kind` of a reason why a topic is blocked."""
    return CAUSES.get(cause, "slow")


def topic_state(stats: TopicStats) -> str:
    """The state of a topic. Waiting for a back-off is not waiting for a rate."""
    if stats.state == "asleep" and (stats.wake_us or 0) <= (stats.backs_off_until_us or -1):
        return "backing_off"
    return presenting.topic_state(stats)


def setting(name: str, value: Any) -> str:
    """A policy setting in words."""
    return presenting.setting_in_words(name, value)


def body_text(view: MessageView) -> tuple[str, str, bool]:
    """
    The body as text, what it is ("JSON", "text" or "bytes"), and whether it was cut.

    Several merged bodies are shown one after the other.
    """
    is_raw = (view.headers or {}).get("content-type") == RAW
    parts = view.bodies or [view.body]
    shown, left, is_cut, what = [], MAX_BODY, False, "JSON"
    for each in parts:
        if left <= 0:
            is_cut = True
            break
        text_, what, cut = _one(each, left, is_raw=is_raw)
        is_cut |= cut
        left -= len(each)
        shown.append(text_)
    return "\n".join(shown), what, is_cut


def _one(content: bytes, most: int, *, is_raw: bool) -> tuple[str, str, bool]:
    if not is_raw and len(content) <= most:
        try:
            value = msgspec.json.decode(content)
            return json.dumps(value, indent=2, ensure_ascii=False), "JSON", False
        except (ValueError, RecursionError):
            pass  # written by another program
    part_ = content[:most]
    try:
        found = part_.decode() if len(part_) == len(content) else part_.decode(errors="ignore")
        return found, "text", len(content) > most
    except UnicodeDecodeError:
        return part_[:4096].hex(" "), "bytes", len(content) > min(most, 4096)


def spark(points: Sequence[float], width: int = 72, height: int = 18) -> str:
    """The `points` of an SVG polyline."""
    if len(points) < 2:
        return ""
    top = max(points) or 1
    step = width / (len(points) - 1)
    return " ".join(
        f"{n * step:.0f},{height - 1 - (height - 2) * value / top:.0f}"
        for n, value in enumerate(points)
    )


def lines_of_parts(parts: Sequence[float | None], width: int = 120, height: int = 24) -> list[str]:
    """The `points` of SVG polylines for parts of 1 over time, one for each run without a gap."""
    step = width / max(1, len(parts) - 1)
    lines: list[list[str]] = [[]]
    for n, value in enumerate(parts):
        if value is None:
            lines.append([])
        else:
            lines[-1].append(f"{n * step:.0f},{height - 1 - (height - 2) * value:.1f}")
    return [" ".join(line) for line in lines if len(line) > 1]


def bars(counts: Sequence[int], height: int = 18) -> str:
    """The path of an SVG with a bar of width 1 for each count; the highest is as high as it."""
    top = max(counts, default=0) or 1
    return "".join(
        f"M{n + 0.5:g} {height}v-{max(1.0, height * count / top):.1f}"
        for n, count in enumerate(counts)
        if count
    )
