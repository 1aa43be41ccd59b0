"""
Topic groups: topics that compete as one, such as all topics of a customer.

Not to be confused with `laneway.tasks.group`, which runs task calls concurrently.
"""

from __future__ import annotations

import re
from functools import lru_cache

MAX_PART = 127
"""The last part that a topic can have: it has at most 255 bytes."""

TOPIC = "\x1c"
"""Precedes a topic's name where gates are named: the gate that its partitions share."""

GROUP = "\x1d"
"""Precedes a group's name where lanes and gates are named; these cannot contain it."""

_PART = re.compile(r"\{(\d{1,3})\}")


def is_group(value: str) -> bool:
    """Return whether the text is a group's name, or a template: each brace is part of `{n}`."""
    rest = _PART.sub("", value)
    return (
        "{" not in rest
        and "}" not in rest
        and all(int(part) <= MAX_PART for part in _PART.findall(value))
    )


def group_of(group: str | None, topic: str) -> str | None:
    """
    Return the group of a topic whose policy has this `group`, or None if it has no group.

    `group`: a name, or a template such as "customer.{1}": each `{n}` stands for a part of the
    topic, counted from 0. A topic without that part has no group. `topic` may be the pattern of a
    bucket: its `*` is not a part. A subscription has its topic's group.
    """
    if group is None or "{" not in group:
        return group
    parts = topic.partition("#")[0].split(".")
    name = ""
    for text, part in _pieces(group):
        name += text
        if part is not None:
            if part >= len(parts) or parts[part] in ("", "*"):
                return None
            name += parts[part]
    return name


@lru_cache(10_000)
def _pieces(template: str) -> tuple[tuple[str, int | None], ...]:
    """Each literal text of a template, with the number of the part that follows it."""
    pieces = _PART.split(template)
    parts: list[int | None] = [*map(int, pieces[1::2]), None]
    return tuple(zip(pieces[::2], parts, strict=True))
