"""How fast a sample of lanes delivers; their records are decoded in part only."""

from __future__ import annotations

from collections.abc import Iterable

from laneway.engines.base import LaneRate
from laneway.engines.shared import size_classes
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.views import Reads, View, together


def of_lanes(view: View, limit: int) -> list[LaneRate]:
    """The rates of lanes that can deliver; of each shard as many lanes."""
    shards = range(view.space.shards)
    each = -(-limit // len(shards))
    lanes = together(view, [(shard, _records(each)) for shard in shards])
    return [rate for shard in shards for rate in _rates(view, shard, lanes[shard])]


def _records(limit: int) -> Reads[list[bytes]]:
    """The records of the lanes with the largest backlogs, and of any others if these are few."""
    names: list[bytes] = (yield [("ZRANGE", "top:big", 0, limit - 1, "REV")])[0]
    if len(names) == limit:
        return [stored for stored in (yield [("HMGET", "lanes", *names)])[0] if stored is not None]
    # A page of a scan has about as many as asked for, the large ones among them.
    large, (_, page) = yield [
        ("HMGET", "lanes", *(names or [b""])),
        ("HSCAN", "lanes", 0, "COUNT", limit - len(names)),
    ]
    listed = set(names)
    return [
        *(stored for stored in large if stored is not None),
        *(stored for name, stored in zip(page[::2], page[1::2], strict=True) if name not in listed),
    ][:limit]


def _rates(view: View, shard: int, stored: Iterable[bytes]) -> list[LaneRate]:
    tier_queues, now = view.counters[shard].tier_queues, view.times[shard]
    counted = (record_formats.read_lane_counts(each) for each in stored)
    return [
        LaneRate(
            tier_queues[each.tier_queue - 1][1],
            size_classes.rate(now, each.seen, each.lately, each.before),
        )
        for each in counted
        if each is not None and each.tier_queue <= len(tier_queues)  # it may be new
    ]
