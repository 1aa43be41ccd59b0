"""How queues of a channel are bound to fanout and topic exchanges: as subscriptions."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

from laneway import Laneway
from laneway.contrib.kombu import names
from laneway.contrib.kombu.messages import ROUTING_KEY
from laneway.subscriptions import Where

FORGET_AFTER = 300.0
"""Seconds after which the subscription of a temporary queue is removed that nobody consumes."""

RENEWALS = 3
"""How often a subscription is renewed in this time."""

MAX_KEYS = 50
"""Routing keys that the store compares; with more, the subscription gets every message."""


class Bindings:
    """The subscriptions of a channel's queues. They are renewed as long as they are in use."""

    def __init__(self, app: Laneway) -> None:
        self._app = app
        self._renew_at: dict[tuple[str, str], float] = {}
        """By exchange and queue: when to renew a temporary queue's subscription (monotonic)."""

    def declare(
        self, exchange: str, queue: str, keys: list[str] | None, *, is_temporary: bool
    ) -> None:
        """
        Subscribe a queue to an exchange.

        `keys`: the routing keys of its bindings to a topic exchange, or None for a fanout exchange.
        """
        self._app.subscribe(
            names.exchange(exchange),
            names.subscription(queue),
            where=None if keys is None else where_of(keys),
            forget_after=FORGET_AFTER if is_temporary else None,
        )
        if is_temporary:
            self._renew_at[exchange, queue] = time.monotonic() + FORGET_AFTER / RENEWALS

    def due(self) -> list[tuple[str, str]]:
        """The exchanges and queues whose subscriptions have to be declared again now."""
        now = time.monotonic()
        return [key for key, at in self._renew_at.items() if at <= now]

    def remove(self, exchange: str, queue: str) -> None:
        """End the subscription of a queue, with what it holds, if there is one."""
        self._renew_at.pop((exchange, queue), None)
        topic = self._app.topic(names.exchange(exchange))
        name = names.subscription(queue)
        if any(each.name == name for each in topic.subscriptions()):
            topic.unsubscribe(name)


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
