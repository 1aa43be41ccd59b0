"""Policy settings as options of the command line, each with its choices or unit."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from laneway import headers as control
from laneway.policy import FIELDS, PolicyOptions
from laneway.presenting import DURATIONS

METAVARS = {
    **dict.fromkeys(DURATIONS, "DURATION"),
    "rate": "RATE",
    "key_rate": "RATE",
    "backoff": "DURATION|LIST|JSON",
    "max_body": "SIZE",
    "concurrency": "COUNT|auto",
    "max_backlog": "COUNT|SIZE",
    "tier": "TIER",
    "pool": "POOL",
    "gate": "GATE[,GATE...]",
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
    """Add an option for every setting, of the type that `PolicyOptions` declares."""
    types = get_type_hints(PolicyOptions)
    for name, field in reversed(FIELDS.items()):
        meaning = field.meaning
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
    How click parses a setting: a choice, yes or no, or a number. The setting itself parses other
    text.
    """
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    choices = [choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)]
    if choices and int not in kinds:
        return click.Choice([*choices, "true"] if bool in kinds else choices)
    if kinds == [bool]:
        return Flag()
    if kinds in ([int], [float]):
        return kinds[0]
    return str


def value_of(name: str, text: Any) -> Any:
    """The value of an option in the form that the setting takes."""
    if not isinstance(text, str):
        return text
    if name in ("max_backlog", "max_body", "concurrency"):
        number = control.whole(text)
        if number is not None:
            return number
    if text == "true":
        return True
    if name in ("backoff", "gate") and text.startswith(("{", "[")):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint=f"--{name}") from error
    if name in ("backoff", "gate") and "," in text:
        return [part.strip() for part in text.split(",")]
    return text
