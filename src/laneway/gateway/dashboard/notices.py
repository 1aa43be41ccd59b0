"""The results of actions, which the next page shows."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Any

import msgspec

from laneway.gateway.login.access import Caller

MAX_NOTICES = 1000
"""Results of actions that are kept until the next page shows them."""


class Notice(msgspec.Struct, frozen=True):
    """
    The result of an action, for the page after it. `kind`: "good" or "bad". `undo`: the action that
    undoes it, and the fields of its form. `command`: the same as a command. `failed`, `typed`: the
    action that was refused, and what was typed in its form.
    """

    text: str
    kind: str = "good"
    command: str = ""
    undo: tuple[str, dict[str, Any]] | None = None
    failed: str = ""
    typed: dict[str, str] = {}


class Notices:
    """The results of actions, each for the caller who made it."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, tuple[Caller, Notice]] = OrderedDict()

    def add(self, caller: Caller, notice: Notice) -> str:
        """Keep a result. Returns its name."""
        name = secrets.token_urlsafe(12)
        self._notices[name] = caller, notice
        while len(self._notices) > MAX_NOTICES:
            self._notices.popitem(last=False)
        return name

    def find(self, caller: Caller, name: str) -> Notice | None:
        """The caller's result with that name, if this gateway has it."""
        owner, notice = self._notices.get(name, (None, None))
        return notice if owner is not None and owner.token == caller.token else None
