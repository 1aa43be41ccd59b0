"""
Older layouts of a namespace are brought up when it is opened.

A step is a function in `STEPS`, under the layout that it begins with. It may be run again after it broke off anywhere, and nobody but
other openers works on the namespace meanwhile: a step first gives the shards their next layout (`relayout`), from when on older programs
are refused there (BADLAYOUT). How to add one: docs/architecture.md, "Layouts".
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from fairlead.engines.valkey import records
from fairlead.engines.valkey.policies import Policies
from fairlead.errors import SchemaMismatch
from fairlead.policy import Resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.engines.valkey.namespace import Namespace

log = logging.getLogger("fairlead.engine")

LOCK_SECONDS = 60
"""One program brings a namespace up at a time; after so long another one takes over."""

LOOK_AGAIN = 0.1
"""Seconds between two looks of those that wait."""


def bring_up(space: Namespace) -> None:
    """Bring the namespace to this layout. Raises SchemaMismatch for a newer one, and one that is too old."""
    token = secrets.token_hex(8)
    while (layout := _layout(space)) < records.LAYOUT:
        step = STEPS.get(layout)
        if step is None:
            raise _mismatch(space, layout, "a Fairlead of before the first release made it: empty it, or take another namespace")
        if not space.read(0, "SET", "bringing_up", token, "NX", "EX", LOCK_SECONDS):
            time.sleep(LOOK_AGAIN)
            continue
        try:
            if _layout(space) == layout:
                log.info("%s: namespace %s is brought from layout %d to %d", space.link.name, space.name, layout, layout + 1)
                step(space)
                space.read(0, "HSET", "settings", "layout", layout + 1)
        finally:
            if space.read(0, "GET", "bringing_up") == token.encode():
                space.read(0, "DEL", "bringing_up")
    if layout > records.LAYOUT:
        raise _mismatch(space, layout, "upgrade Fairlead")


def _layout(space: Namespace) -> int:
    return int(space.read(0, "HGET", "settings", "layout"))


def _mismatch(space: Namespace, layout: int, mend: str) -> SchemaMismatch:
    return SchemaMismatch(f"{space.link.name}: namespace {space.name} has layout {layout}, this Fairlead knows layout {records.LAYOUT}; {mend}")


def _relayout(space: Namespace, before: int, new: list[tuple[int, Any]]) -> None:
    """The counters of each shard get the next layout, and these values at these positions (from 1, in their order)."""
    for shard in range(space.shards):
        space.run("relayout", shard, None, before, before + 1, records.pack(new), durable=True, repeatable=True)


def _own_policies(space: Namespace) -> None:
    """3 to 4: policies of exact topics become entries on their shards; rules say what an operator has set."""
    _relayout(space, 3, [(30, 0), (31, 0)])  # own, marked
    default = records.rule_record(Resolved())
    for shard in range(space.shards):
        space.read(shard, "HSET", "rules", "", default)
    Policies(space).spread()


STEPS: dict[int, Callable[[Namespace], None]] = {3: _own_policies}
