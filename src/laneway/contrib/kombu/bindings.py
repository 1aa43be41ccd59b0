"""Which messages a queue gets that is bound to a topic exchange."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from laneway.contrib.kombu.messages import ROUTING_KEY
from laneway.subscriptions import Where

MAX_KEYS = 50
"""Routing keys that the store compares; with more, the subscription gets every message."""


def where_of(keys: Iterable[str]) -> Where | None:
    """
    The headers of the messages that bindings with these routing keys get, or None for all. It may
    match more than they do: `matches` decides.
    """
    values: set[str] = set()
    for key in keys:
        fixed = re.split(r"[*#]", key, maxsplit=1)[0]
        if fixed == key:
            values.add(key)
        elif not fixed:
            return None
        else:
            values.add(f"{fixed}*")
            if key == f"{fixed}#" and fixed.endswith("."):
                values.add(fixed[:-1])  # "#" may stand for no word
    return {ROUTING_KEY: sorted(values)} if 0 < len(values) <= MAX_KEYS else None


def matches(binding: str, routing_key: str) -> bool:
    """Whether a binding of a topic exchange gets the messages with a routing key."""
    words = routing_key.split(".") if routing_key else []
    ends = {0}  # the numbers of words that the binding's beginning may stand for
    for part in binding.split("."):
        if part == "#":
            ends = set(range(min(ends, default=len(words) + 1), len(words) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(words) and part in ("*", words[end])}
    return len(words) in ends


def is_temporary(arguments: dict[str, Any]) -> bool:
    """Whether a queue, by the arguments of its declaration, ends with its consumer."""
    return bool(
        arguments.get("auto_delete")
        or arguments.get("exclusive")
        or "x-expires" in (arguments.get("arguments") or {})
    )
