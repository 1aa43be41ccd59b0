"""
Opening a namespace brings an older layout to the one of this version.

`STEPS` has a step for each older layout: the counters that the shards get, and a function. First
the shards get the newest layout with the counters of all steps (`relayout`): from then on they
refuse older programs (BADLAYOUT), and today's functions can be called. Then the functions of the
steps run in order. Each can be run again after it ended anywhere; only other programs that open the
namespace work on it meanwhile. How to add a step: docs/architecture.md, "Layouts".
"""

from __future__ import annotations

import logging
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from laneway.engines.sharded.policies import Policies
from laneway.engines.shared.states import AT_GATE
from laneway.engines.valkey import records
from laneway.errors import SchemaMismatch
from laneway.policy import Resolved

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.valkey.namespace import Namespace

log = logging.getLogger("laneway.engine")

LOCK_SECONDS = 60
"""One program at a time brings a namespace to a new layout; another takes over after so long."""

LOOK_AGAIN = 0.1
"""Seconds between two looks of a program that waits for it."""


def bring_up(space: Namespace) -> None:
    """
    Bring the namespace to this layout. Raises SchemaMismatch for a newer one, and one that is too
    old.
    """
    token = secrets.token_hex(8)
    while (layout := _layout(space)) < records.LAYOUT:
        if layout not in STEPS:
            raise _mismatch(
                space,
                layout,
                "a Laneway of before the first release made it: empty it, or take another"
                " namespace",
            )
        if not space.read(0, "SET", "bringing_up", token, "NX", "EX", LOCK_SECONDS):
            time.sleep(LOOK_AGAIN)
            continue
        try:
            if _layout(space) == layout:
                log.info(
                    "%s: namespace %s is brought from layout %d to %d",
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
    if layout > records.LAYOUT:
        raise _mismatch(space, layout, "upgrade Laneway")


def _layout(space: Namespace) -> int:
    return int(space.read(0, "HGET", "settings", "layout"))


def _mismatch(space: Namespace, layout: int, advice: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"{space.server.name}: namespace {space.name} has layout {layout}, this Laneway knows"
        f" layout {records.LAYOUT}; {advice}"
    )


def _relayout(space: Namespace, layout: int) -> None:
    """
    Bring the counters of each shard to the newest layout, from the layout that they have.
    """
    for before in range(layout, records.LAYOUT):
        new = records.pack(STEPS[before].counters)
        for shard in range(space.shards):
            space.run(
                "relayout", shard, None, before, before + 1, new, durable=True, repeatable=True
            )


def _own_policies(space: Namespace) -> None:
    """
    3 to 4: policies of exact topics become entries on their home shards; rules have the names of
    the fields that an operator has set.
    """
    default = records.rule_record(Resolved())
    for shard in range(space.shards):
        space.read(shard, "HSET", "rules", "", default)
    Policies(space).spread(from_before_programs=True)


PAGE = 1000
"""Records that are read at once."""


class _Record4(msgspec.Struct, array_like=True):
    """A message as layout 4 stored it, behind "R" and its size; the body follows."""

    topic: str
    lane: str | bool
    state: int
    rank: int
    seq: int
    since: int
    published: int
    expires: int | bool
    serial: int
    key: str | bool | None
    id: str | bool | None
    mkey: str | bool | None
    headers: dict[str, str] | bool | None
    attempts: int
    deliveries: int
    suspect: bool
    joined: int
    parts: int
    parts_bytes: int
    sticky: bool
    unhandled_from: int
    unhandled_times: int
    mirrored: msgspec.Raw
    death: Any
    history: Any


_RECORD_4 = msgspec.msgpack.Decoder(_Record4)


def _record_4(mid: int, stored: bytes) -> bytes:
    """The record of today for one of layout 4 that is not plain."""
    end = 5 + int.from_bytes(stored[1:5])
    old = _RECORD_4.decode(stored[5:end])
    fields = {name: getattr(old, name) for name in old.__struct_fields__ if name != "mirrored"}
    for name in ("key", "id", "mkey", "headers"):
        fields[name] = fields[name] or None
    new = records.Record(mid=mid, body=stored[end:], **fields)
    return records.record_of(new, bytes(old.mirrored))


def _records(space: Namespace) -> None:
    """4 to 5: records of messages that are not plain have a head of fixed width."""
    for shard in range(space.shards):
        for name in ("m", "moving"):
            cursor = b"0"
            while True:
                cursor, found = space.read(shard, "HSCAN", name, cursor, "COUNT", PAGE)
                written: list[Any] = []
                for mid, stored in zip(found[::2], found[1::2], strict=True):
                    if stored[:1] == b"R":
                        written += (mid, _record_4(int(mid), stored))
                if written:
                    space.read(shard, "HSET", name, *written)
                if cursor == b"0":
                    break


def _costs(_space: Namespace) -> None:
    """5 to 6: lanes and gates have what costs leave at them; older records are read as they are."""


def _rules(space: Namespace) -> None:
    """6 to 7: shards count groups; rules get the fields that this version has besides."""
    Policies(space).spread()


def _waited_gates(_space: Namespace) -> None:
    """7 to 8: shards list the gates that lanes wait at; so does the step to layout 15."""


def _shared_limits(space: Namespace) -> None:
    """8 to 9: rules of topics with partitions have the rate and concurrency of all of them."""
    Policies(space).spread()


def _subscription_patterns(space: Namespace) -> None:
    """
    9 to 10: subscriptions have policies by pattern, whose rules older programs would not write; and
    rules say whether one consumer gets the messages.
    """
    Policies(space).spread()


def _dead_counts(space: Namespace) -> None:
    """10 to 11: topics are listed by their dead letters."""
    for shard in range(space.shards):
        for name, _ in space.scan(shard, "ZSCAN", "dead_topics"):
            count = space.read(shard, "ZCARD", f"dead:{name.decode()}")
            if count:
                space.read(shard, "ZADD", "top:dead", count, name)


def _shared_flows(space: Namespace) -> None:
    """
    11 to 12: the partitions of a topic share a concurrency that adapts; its rule has the bounds of
    all of them.
    """
    Policies(space).spread()


def _long_values(_space: Namespace) -> None:
    """12 to 13: some values of hashes have spaces at their end; older ones are read as they are."""


def _left_copies(_space: Namespace) -> None:
    """13 to 14: shards count the chunks of copies that are left to put."""


TICK = 500
"""Lanes that one call of the step to layout 15 places."""


def _turns(space: Namespace) -> None:
    """
    14 to 15: a lane waits at one of its gates. All that are at gates are placed again, even those
    that an earlier step has placed: they sleep until housekeeping wakes them now.
    """
    for shard in range(space.shards):
        queues = len(space.counters(shard)[0].tier_queues)
        gone = ["gate_lanes", "waited_gates", *(f"heads:{n}" for n in range(1, queues + 1))]
        gone += [f"gate_sets:{name.decode()}" for name, _ in space.scan(shard, "HSCAN", "gates")]
        queue_of: dict[int, int] = {}
        for name, stored in space.scan(shard, "HSCAN", "group_queues"):
            number, group = int(name), records.read_group(stored)
            queue_of[-number] = group.tier_queue
            gone += [f"heads:-{number}", f"group_turns:{number}"]
            space.read(shard, "HSET", "group_queues", name, records.without_gates(group))
        _delete(space, shard, gone)
        for name, stored in space.scan(shard, "HSCAN", "lanes"):
            lane = records.read_lane(name.decode(), stored)
            if lane.place == AT_GATE:
                gates = {lane.gate_key, *lane.gate_key.split("\x1f")}
                queue = queue_of.get(lane.tier_queue, lane.tier_queue)
                _delete(
                    space,
                    shard,
                    [f"gate:{n}:{gate}" for n in (lane.tier_queue, queue) for gate in gates],
                )
                space.read(shard, "ZADD", "asleep", 1, lane.number.to_bytes(7) + name)
                space.read(shard, "HSET", "lanes", name, records.asleep(stored))
        while space.read(shard, "ZCOUNT", "asleep", "-inf", 1):
            space.run("tick", shard, None, TICK, durable=True, repeatable=True)


def _delete(space: Namespace, shard: int, keys: list[str]) -> None:
    for first in range(0, len(keys), PAGE):
        space.read_many(shard, [("DEL", key) for key in keys[first : first + PAGE]])


class Step(NamedTuple):
    """The step from one layout to the next."""

    counters: list[tuple[int, Any]]
    """Values that the counters of each shard get, at these positions (from 1, in their order)."""
    fill: Callable[[Namespace], None]
    """The rest of the step, with today's functions."""


STEPS = {
    3: Step([(30, 0), (31, 0)], _own_policies),  # own, marked
    4: Step([], _records),
    5: Step([], _costs),
    6: Step([(32, 0)], _rules),  # groups
    7: Step([], _waited_gates),
    8: Step([], _shared_limits),
    9: Step([], _subscription_patterns),
    10: Step([], _dead_counts),
    11: Step([], _shared_flows),
    12: Step([], _long_values),
    13: Step([(33, 0)], _left_copies),  # copying
    14: Step([], _turns),
}
