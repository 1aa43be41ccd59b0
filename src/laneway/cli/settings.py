"""
Policy settings on the command line: an option with its choices for each, and values in the units of
people.
"""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from laneway.policy import FIELDS, PolicyOptions

if TYPE_CHECKING:
    from collections.abc import Callable

DURATIONS = ("lease", "ttl", "dead_ttl", "on_unhandled", "window", "max_wait", "dedupe")
METAVARS = {
    **dict.fromkeys(DURATIONS, "DURATION"),
    "rate": "RATE",
    "backoff": "DURATION|JSON",
    "max_body": "SIZE",
    "max_backlog": "COUNT|SIZE",
    "tier": "TIER",
    "pool": "POOL",
    "gate": "GATE",
}


class Flag(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions of click only
    """yes or no; also true and false, on and off."""

    name = "flag"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "[yes|no]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
        if isinstance(value, bool):
            return value
        found = words.get(value.lower())
        return (
            found
            if found is not None
            else self.fail(f"expected yes or no, got {value!r}", param, ctx)
        )


def setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """An option for every setting there is, of the type that `PolicyOptions` says."""
    types = get_type_hints(PolicyOptions)
    for name, (_, meaning) in reversed(FIELDS.items()):
        text = meaning if "_" in meaning.split()[0] else meaning[0].upper() + meaning[1:]
        command = click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=option_type(types.get(name)),
            metavar=METAVARS.get(name),
            help=f"{text}.",
        )(command)
    return command


def option_type(hint: Any) -> Any:
    """
    What click reads a setting with: choices, yes or no, a number; other text is read by the setting
    itself.
    """
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices:
        return click.Choice([*choices, "true"] if bool in kinds else choices)
    if kinds == [bool]:
        return Flag()
    if kinds in ([int], [float]):
        return kinds[0]
    return str


def value_of(name: str, text: Any) -> Any:
    """What an option says, as the setting takes it."""
    import msgspec

    if not isinstance(text, str):
        return text
    if name in ("max_backlog", "max_body") and text.isdigit():
        return int(text)
    if text == "true":
        return True
    if name == "backoff" and text.startswith(("{", "[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--backoff") from error
    return text


# Values in words


def in_seconds(name: str, value: Any) -> Any:
    """A resolved setting, which has microseconds, as it is written: in seconds."""
    if name == "dedupe" and value == -1:
        return "forever"
    return value / 1e6 if name in DURATIONS and value is not None else value


def words(name: str, value: Any) -> str:
    """A setting as people write it; durations are seconds here."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in DURATIONS and not isinstance(value, str):
        return span(value)
    if name == "rate":
        return f"{value:g}/s" if value >= 1 or value == 0 else f"{value * 60:g}/min"
    if name in ("max_body", "max_backlog_bytes"):
        return size(value)
    if name == "backoff":
        return backoff(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def span(seconds: float) -> str:
    """A duration without loss: 1 min, 1 h 30 min, 14 d, 250 ms."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g} ms"
    parts, rest = [], seconds
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count:g} {unit}")
    if rest or not parts:
        parts.append(f"{round(rest, 6):g} s")
    return " ".join(parts)


def size(count: int) -> str:
    """Bytes in the largest unit that shows them without loss."""
    for unit, factor in (
        ("GiB", 1 << 30),
        ("GB", 10**9),
        ("MiB", 1 << 20),
        ("MB", 10**6),
        ("KiB", 1 << 10),
        ("kB", 1000),
    ):
        if count >= factor and count % factor == 0:
            return f"{count // factor:,} {unit}"
    return f"{count:,} bytes"


def backoff(value: Any) -> str:
    """Delays between attempts in words."""
    if isinstance(value, list | tuple):
        return ", ".join(
            span(each) if isinstance(each, int | float) else str(each) for each in value
        )
    if not isinstance(value, dict):
        return str(value)
    base, factor, cap = value.get("base", 1.0), value.get("factor", 2.0), value.get("cap", 3600.0)
    growth = (
        span(base)
        if factor == 1 or base >= cap
        else f"{span(base)}, times {factor:g} at each attempt, at most {span(cap)}"
    )
    return f"{growth}; drawn between 0 and that" if value.get("jitter", True) else growth
