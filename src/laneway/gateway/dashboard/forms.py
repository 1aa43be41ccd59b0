"""The fields of actions' forms."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.gateway.problems import Problem
from laneway.policy import FIELDS

LISTS = ("topic", "id", "scope")
"""Fields that a form may have more than once."""

TEXTS = (
    "as",
    "back",
    "background",
    "body",
    "concurrency",
    "confirm",
    "delay",
    "dry",
    "expires",
    "fair_by",
    "fields",
    "fingerprint",
    "key",
    "limit",
    "message",
    "name",
    "number",
    "pattern",
    "patterns",
    "priority",
    "reserve",
    "result",
    "share",
    "since",
    "sure",
    "worker",
)
"""Fields that it has once, besides the settings of policies and what they were (`was_NAME`)."""

NAMES = sorted({*TEXTS, *FIELDS, *(f"was_{name}" for name in FIELDS)} - set(LISTS))

Fields: type[msgspec.Struct] = msgspec.defstruct(
    "Fields",
    [
        *((f"field_{name}", str, "") for name in NAMES),
        *((f"field_{name}", list[str], msgspec.field(default_factory=list)) for name in LISTS),
    ],
    rename=lambda name: name.removeprefix("field_"),
    forbid_unknown_fields=True,
)
"""The form of every action. `as` is no name of a field in Python, so all have a prefix."""


class Form:
    """A form that was sent."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field without white space around it."""
        return self.exact(name).strip()

    def exact(self, name: str) -> str:
        """A field as it is, such as a topic's name."""
        found: str = getattr(self._fields, f"field_{name}")
        return found

    def first(self, name: str) -> str:
        """A field as it is, or the first value of one of `LISTS`; "" without one."""
        return next(iter(self.all(name)), "") if name in LISTS else self.exact(name)

    def all(self, name: str) -> list[str]:
        """All values of a field of `LISTS`."""
        found: list[str] = getattr(self._fields, f"field_{name}")
        return found

    def number(self, name: str) -> int | None:
        """A whole number; None if the field is empty. Raises Problem."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise Problem(
                "bad-request", f"{name}: expected a whole number, got {text:.80}"
            ) from None

    def pairs(self) -> list[tuple[str, str]]:
        """The fields that are not empty, to send them again."""
        return [
            *((name, value) for name in NAMES if (value := self.exact(name)) and name != "as"),
            *((name, value) for name in LISTS for value in self.all(name)),
        ]
