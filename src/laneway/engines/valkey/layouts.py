"""
Opening a namespace brings an older layout to the one of this version.

`STEPS` has a step for each older layout that is kept: the counters that the shards get, and a
function. First the shards get the newest layout with the counters of all steps (`relayout`): from
then on they refuse older programs (BADLAYOUT), and today's functions can be called. Then the
functions of the steps run in order. Each can be run again after it ended anywhere; only other
programs that open the namespace work on it meanwhile. How to add a step: docs/architecture.md,
"Layouts".
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from laneway.engines.valkey import record_formats
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import SchemaMismatch

log = logging.getLogger("laneway.engine")

LOCK_SECONDS = 60
"""One program at a time brings a namespace to a new layout; another takes over after so long."""

LOOK_AGAIN = 0.1
"""Seconds between two looks of a program that waits for it."""


class Step(NamedTuple):
    """The step from one layout to the next."""

    counters: list[tuple[int, Any]]
    """Values that the counters of each shard get, at these positions (from 1, in their order)."""
    fill: Callable[[Namespace], None]
    """The rest of the step, with today's functions."""


STEPS: dict[int, Step] = {}
"""By the layout that a step begins at. 0.1.0 needs none: it is the first whose layout is kept."""


def bring_up(space: Namespace) -> None:
    """
    Bring the namespace to this layout. Raises SchemaMismatch for a newer one, and one that is too
    old.
    """
    token = secrets.token_hex(8)
    while (layout := _layout(space)) < record_formats.LAYOUT:
        if layout not in STEPS:
            raise _mismatch(
                space,
                layout,
                "a Laneway before 0.1.0 created it: handle its messages with that version, then"
                " use another namespace",
            )
        if not space.read(0, "SET", "bringing_up", token, "NX", "EX", LOCK_SECONDS):
            time.sleep(LOOK_AGAIN)
            continue
        try:
            if _layout(space) == layout:
                log.info(
                    "%s: namespace %s is upgraded from layout %d to %d",
                    space.server.name,
                    space.name,
                    layout,
                    layout + 1,
                )
                _relayout(space, layout)
                STEPS[layout].fill(space)
                space.read(0, "HSET", "settings", "layout", layout + 1)
        finally:
            if space.read(0, "GET", "bringing_up") == token.encode():
                space.read(0, "DEL", "bringing_up")
    if layout > record_formats.LAYOUT:
        raise _mismatch(space, layout, "upgrade Laneway")


def _layout(space: Namespace) -> int:
    return int(space.read(0, "HGET", "settings", "layout"))


def _mismatch(space: Namespace, layout: int, advice: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{space.server.name}: namespace {space.name} has layout {layout}, this Laneway knows"
        f" layout {record_formats.LAYOUT}; {advice}"
    )


def _relayout(space: Namespace, layout: int) -> None:
    """
    Bring the counters of each shard to the newest layout, from the layout that they have.
    """
    for before in range(layout, record_formats.LAYOUT):
        new = record_formats.pack(STEPS[before].counters)
        for shard in range(space.shards):
            space.run(
                "relayout", shard, None, before, before + 1, new, durable=True, repeatable=True
            )
