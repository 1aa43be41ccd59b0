"""`Admin.lookup`: the states of many messages by their ids; `scripts/states.lua` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.sharded.splitting import pages
from laneway.engines.valkey import record_formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.base import IdState
    from laneway.engines.valkey.views import View

AT_ONCE = 250
"""Ids that one call looks up: with large bodies it should block the server no longer than 10 ms."""

STATES: dict[str, IdState] = {
    "w": "waiting",
    "l": "leased",
    "d": "dead",
    "f": "finished",
    "u": "unknown",
}


def lookup(view: View, topic: str, ids: Sequence[str], now_us: int | None) -> dict[str, IdState]:
    """The state of each id: unknown, waiting, leased, finished or dead."""
    states: dict[str, IdState] = dict.fromkeys(ids, "unknown")
    generated = {
        message_id: place
        for message_id in states
        if (place := view.space.generated(message_id)) is not None
    }
    shards = view.space.routes.shards_of(topic)
    by_shard: dict[int, list[str]] = {shard: list(states) for shard in shards}
    for message_id, (shard, _) in generated.items():
        if shard not in shards:  # the topic had other partitions when it was published
            by_shard.setdefault(shard, []).append(message_id)
    for shard, theirs in by_shard.items():
        for page in pages(theirs, AT_ONCE):
            numbers = [
                number if on == shard else 0
                for on, number in (generated.get(message_id, (-1, 0)) for message_id in page)
            ]
            letters: bytes = view.space.run(
                "states",
                shard,
                now_us,
                topic,
                record_formats.pack(page),
                record_formats.pack(numbers),
                repeatable=True,
            )
            for message_id, letter in zip(page, letters.decode(), strict=True):
                # A message that has not ended decides, on whichever shard it is.
                if letter not in "uf" or (letter == "f" and states[message_id] == "unknown"):
                    states[message_id] = STATES[letter]
    return states
