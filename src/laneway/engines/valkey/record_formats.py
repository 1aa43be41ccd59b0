"""
The records that the functions store and answer. `scripts/parts/` reads and writes them in Lua.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from laneway.engines.sharded.routes import changes_routes
from laneway.engines.sharded.splitting import part_of
from laneway.engines.shared import gates
from laneway.engines.shared.adaptive import Flow, Share
from laneway.engines.shared.gates import Debt
from laneway.engines.shared.key_limits import KeyState
from laneway.engines.shared.naming import BUCKET
from laneway.engines.shared.states import RUNNABLE
from laneway.message import Batch, Draft, Lease
from laneway.policy import (
    AUTO,
    DISABLED,
    FIELDS,
    FOREVER,
    Backoff,
    Gate,
    Layers,
    PolicyTable,
    Resolved,
    engine_values,
    is_pattern,
)
from laneway.subscriptions import FIELD, split
from laneway.tiers import TierLayers
from laneway.topic_groups import GROUP

LAYOUT = 27
"""That of 0.1.0, the first version whose namespaces are kept."""
"""Version of the keys and records, the same as in `scripts/parts/shard.lua`."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

pack = _pack


def pack_values(*values: Any) -> bytes:
    """Several values in sequence, as `cmsgpack.pack` writes them."""
    return b"".join(map(_pack, values))


def unpack_values(stored: bytes, count: int) -> list[Any]:
    """`count` values that are stored in sequence."""
    found: list[Any] = _unpack(b"\xdc" + struct.pack(">H", count) + stored)
    return found


def unpack_first(stored: bytes, count: int) -> list[Any]:
    """The first `count` of values that are stored in sequence; at most one follows them."""
    try:
        return unpack_values(stored, count)
    except msgspec.DecodeError:
        return unpack_values(stored, count + 1)[:count]


# Policies


def policy_fields(
    policy: Resolved, shards: int = 1, by_operator: Iterable[str] = ()
) -> dict[str, Any]:
    """
    The settings in force for a topic, named and ordered as in `policies.lua`. A topic whose
    partitions are on several shards has a part of its backlog limit on each.

    `by_operator`: the fields that an operator has set; the topic's own policy in the code does not
    count beside them.
    """
    has_rate = policy.rate is not None
    burst = policy.lane_burst
    if policy.shared is not None and has_rate:
        burst = max(1.0, policy.shared.effective_burst)
    spread = min(policy.partitions, shards)
    return {
        "rate": policy.rate if has_rate else False,
        "burst": burst,
        "concurrency": AUTO if policy.adapts else policy.concurrency or False,
        "weight": policy.weight,
        "tier": policy.tier if policy.names_tier else False,
        "pool": policy.pool,
        "lease": policy.lease,
        "retries": policy.retries,
        "backoff": _backoff(policy.backoff),
        "ttl": policy.ttl or False,
        "drop_expired": policy.on_expiry == "drop",
        "dead_ttl": policy.dead_ttl,
        "serial": policy.serial or False,
        "gate": policy.gate or False,
        "merge": policy.merge or False,
        "merge_limit": policy.merge_limit,
        "window": policy.window or False,
        "debounce": policy.debounce,
        "max_wait": policy.max_wait or False,
        "leading": policy.edge == "leading",
        "dedupe": policy.dedupe or False,
        "max_backlog": _or_false(part_of(policy.max_backlog, spread)),
        "max_backlog_bytes": _or_false(part_of(policy.max_backlog_bytes, spread)),
        "on_full": policy.on_full,
        "partitions": policy.partitions,
        "buckets": policy.buckets or False,
        "bucket_name": policy.buckets_pattern or False,
        "at_most_once": policy.delivery == "at_most_once",
        "paused": policy.paused,
        "limited": policy.limited,
        "on_unhandled": policy.on_unhandled or False,
        "set_burst": burst if policy.burst is not None and has_rate else False,
        "auto_burst": burst if policy.burst is None and has_rate else False,
        "by_operator": {name: True for field in by_operator for name in names_in_lua(field)},
        "min_concurrency": policy.min_concurrency if policy.adapts else False,
        "max_concurrency": policy.max_concurrency if policy.adapts else False,
        "group": policy.group or False,
        "key_concurrency": policy.key_concurrency or False,
        "key_rate": policy.key_rate or False,
        "consumed": policy.consumed_by is not None,
        "max_cost": policy.max_cost or False,
        "history": policy.history,
    }


def policy_record(policy: Resolved, shards: int = 1, by_operator: Iterable[str] = ()) -> bytes:
    """What holds for a topic, as it is stored."""
    return pack_values(*policy_fields(policy, shards, by_operator).values())


def _or_false(limit: int | None) -> int | bool:
    return False if limit is None else limit


def record_of(policy_table: PolicyTable, name: str, shards: int) -> bytes:
    """What holds for a pattern or topic of the policy table, as the functions read it."""
    by_operator = [
        field
        for field, (_, layer, _) in policy_table.why(name).items()
        if layer == "operator" and not field.startswith(FIELD)
    ]
    return policy_record(policy_table.resolve(name), shards, by_operator)


SUBSCRIPTIONS = "#"
"""The field of the hash `resolved` that has `ResolvedPolicies.subscriptions`."""


class ResolvedPolicies(NamedTuple):
    """What the functions have to know of a policy table: the names that have a policy."""

    policy_table: PolicyTable
    names: set[str]
    subscriptions: set[str]
    """Names of subscriptions that have policies by pattern, like `audit` of `orders.*#audit`."""

    @property
    def exact_count(self) -> int:
        """How many of the names are topics' own."""
        return sum(not is_pattern(name) for name in self.names)

    def record(self, name: str, shards: int) -> bytes:
        """What holds for a name, or b"" if it has no policy."""
        if name == SUBSCRIPTIONS:
            known = dict.fromkeys(sorted(self.subscriptions), True)
            return _pack(known) if known else b""
        return record_of(self.policy_table, name, shards) if name in self.names else b""

    def records(self, shards: int) -> dict[bytes, bytes]:
        """All policies, as the functions store them."""
        names = self.names | ({SUBSCRIPTIONS} if self.subscriptions else set())
        return {name.encode(): self.record(name, shards) for name in names}


def resolved_policies(policy_table: PolicyTable) -> ResolvedPolicies:
    derived = policy_table.subscription_patterns()
    return ResolvedPolicies(
        policy_table,
        {name for _, name, _ in policy_table.stored_rows()} | derived,
        {split(name)[1] for name in derived},
    )


def names_in_lua(name: str) -> tuple[str, ...]:
    """The names of a field in `policies.lua`."""
    field = FIELDS.get(name)  # what is no field is what an engine adds, like `max_backlog_bytes`
    if field is None or field.in_lua is None:
        return () if name == DISABLED or name.startswith(FIELD) else (name,)
    return field.in_lua


class OwnRecords:
    """The records of topics' own policies that one call stores, by id. Equal policies are one."""

    def __init__(self) -> None:
        self.by_id: dict[bytes, bytes] = {}
        self._ids: dict[bytes, bytes] = {}

    def add(self, layers: Layers) -> bytes:
        """The id of these layers; b"": none."""
        if not layers:
            return b""
        key = msgspec.json.encode(layers)
        if key not in self._ids:
            own, record = own_record(layers)
            self._ids[key], self.by_id[own] = own, record
        return self._ids[key]


def own_record(layers: Layers) -> tuple[bytes, bytes]:
    """
    The id and the record of a topic's own policy: whether clients have to know it, the fields of
    each layer as `policies.lua` reads them, and the layers as JSON. Equal layers have the same id.
    """
    text = msgspec.json.encode(layers, order="sorted").decode()
    layers = msgspec.json.decode(text)  # fields in one order, and numbers as they are read again
    code, operator = (_own_fields(layers.get(layer, {})) for layer in ("code", "operator"))
    if DISABLED in layers.get("code", {}):
        operator["paused"] = True  # what the operator sets for the topic itself is the strongest
    record = pack_values(changes_routes(layers), code, operator, text)
    return base64.b85encode(hashlib.blake2b(record, digest_size=8).digest()), record


def own_layers(record: bytes) -> Layers:
    """The layers of a topic's own policy, from its record."""
    layers: Layers = msgspec.json.decode(unpack_values(record, 4)[3])
    return layers


def _backoff(backoff: Backoff) -> list[Any]:
    """A backoff as `policies.lua` reads it."""
    form: list[Any] = [backoff.base, backoff.factor, backoff.cap, backoff.jitter]
    # Policies without a list stay as earlier versions have stored them.
    return [*form, list(backoff.delays)] if backoff.delays else form


def _own_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields in Lua's names and units."""
    values = engine_values(fields)
    found: dict[str, Any] = {}
    for name, value in values.items():
        flag = FIELDS[name].lua_flag if name in FIELDS else None
        for in_lua in names_in_lua(name):
            found[in_lua] = value if flag is None else value == flag
    if "rate" in values:
        found["auto_burst"] = Resolved(rate=values["rate"]).lane_burst
    if "burst" in values:
        found["set_burst"] = Resolved(rate=1.0, burst=values["burst"]).lane_burst
    if "backoff" in values:
        found["backoff"] = _backoff(values["backoff"])
    if "max_backlog" in values or "max_backlog_bytes" in values:
        found["max_backlog"] = values.get("max_backlog", False)
        found["max_backlog_bytes"] = values.get("max_backlog_bytes", False)
    return found


def tiers_record(layers: TierLayers) -> bytes:
    """
    The tiers in force, as `shard.lua` reads them: their version, the default, and name, share and
    whether it is fair by time of each.
    """
    tiers = layers.in_force()
    return layers.version.to_bytes(7) + _pack(
        [
            tiers.default,
            [[name, tier.share, tier.fair_by == "time"] for name, tier in tiers.items()],
        ]
    )


def gate_record(gate: Gate) -> bytes:
    return _pack(
        [
            gate.rate if gate.rate is not None else False,
            gate.burst or False,
            gate.concurrency or False,
            gate.weight or False,
            False,
            False,
            gate.max_cost or False,
        ]
    )


def gate_lanes(gate: str, tier_queues: int) -> list[str]:
    """The keys with the lanes that wait at a gate."""
    return [f"gate:{tier_queue}:{gate}" for tier_queue in range(1, tier_queues + 1)]


if FOREVER != -1:
    raise AssertionError("messages.lua knows it as -1")


# Messages in a put


def plain_head(topic: str, headers: dict[str, str] | None = None) -> bytes:
    """The record before the body of a message that has nothing but a topic, headers and a body."""
    return plain_record(Draft(topic, b"", headers=headers))


def content(
    topic: str,
    key: str | None,
    own_id: str | None,
    headers: dict[str, str] | None,
    mkey: str | None,
    body: bytes,
    *,
    sticky: bool,
) -> bytes:
    """The content of a message, as it is published and stored; see `content_of` in `shard.lua`."""
    meta = _pack([topic, key, own_id, headers or None, sticky, mkey])
    return len(meta).to_bytes(2) + meta + body


def plain_record(draft: Draft) -> bytes:
    """
    The record of a message with nothing but a body, key, id and headers, without the time, which
    the function appends.
    """
    return (b"p" if draft.sticky or draft.id is not None else b"P") + content(
        draft.topic, draft.key, draft.id, draft.headers, None, draft.body, sticky=draft.sticky
    )


_DRAFT = struct.Struct(">B7q")
_NONE = -1


def draft_record(
    draft: Draft,
    rank: int,
    ttl: int | None,
    mkey: bytes | None,
    generated_mid: int | None,
    spread: int | None,
) -> bytes:
    """Any other message, as `putting.lua` decodes it."""
    head = _DRAFT.pack(
        draft.own,
        rank,
        max(draft.delay_us, 0),
        _NONE if draft.at_us is None else max(draft.at_us, 0),
        _NONE if ttl is None else ttl,
        _NONE if generated_mid is None else generated_mid,
        _NONE if spread is None else spread,
        _NONE if draft.signal is None else draft.signal,
    )
    return head + content(
        draft.topic,
        draft.key,
        draft.id,
        draft.headers,
        mkey.hex() if mkey is not None else None,
        draft.body,
        sticky=draft.sticky,
    )


# Messages as they are stored


class Rare(msgspec.Struct, kw_only=True):
    """Fields that few messages have, by name, see `messages.lua`."""

    lane: str | bool = False
    """The name of the lane, if it is not the topic's."""
    rank: int = 0
    """A rank that is far from 0; the head of the record has others."""
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    joined: int = 0
    parts: int = 0
    parts_bytes: int = 0
    unhandled_from: int = 0
    unhandled_times: int = 0
    death: Any = False  # [number, at, until, reason, error]
    history: Any = ()


class Record(Rare, kw_only=True):
    """A message. False stands for none."""

    mid: int
    topic: str
    state: int = 0
    seq: int
    since: int
    published: int
    expires: int | bool = False
    serial: int = 0
    key: str | None = None
    id: str | None = None
    mkey: str | None = None
    headers: dict[str, str] | None = None
    sticky: bool = False
    body: bytes = b""

    @property
    def priority(self) -> int:
        return -(self.rank >> 1)

    @property
    def position(self) -> int:
        """The position among messages of equal rank."""
        return self.since if self.rank & 1 else FRONT - self.seq

    @property
    def size(self) -> int:
        return len(self.body) + self.parts_bytes


FRONT = 1 << 53
RANK_0, NEAR_FROM, NEAR_TO = 512, 256, 1023
"""
Added to ranks near 0 where they are stored, so that none is negative; and what they are then.
"""
FAR_LOW, FAR_HIGH, FAR_0 = 0, 4, 1 << 53
"""The first bytes of the codes of other ranks, and what is added to those below 0."""
_RICH = ord("M")
_HEAD = struct.Struct(">BBHQQQQI")
_DEAD = 3
_RARE = msgspec.msgpack.Decoder(Rare)
_USUAL = Rare()


def rank_code(rank: int) -> bytes:
    """How members of sorted sets begin, see `messages.lua`."""
    if NEAR_FROM <= rank + RANK_0 <= NEAR_TO:
        return (rank + RANK_0).to_bytes(2)
    if rank < 0:
        return bytes([FAR_LOW]) + (rank + FAR_0).to_bytes(7)
    return bytes([FAR_HIGH]) + rank.to_bytes(7)


def rank_code_in(member: bytes, at: int = 0) -> bytes:
    """The code of a rank that begins there in a member."""
    return member[at : at + (8 if member[at] in (FAR_LOW, FAR_HIGH) else 2)]


def rank_of_code(code: bytes) -> int:
    if len(code) == 2:
        return int.from_bytes(code) - RANK_0
    return int.from_bytes(code[1:]) - (FAR_0 if code[0] == FAR_LOW else 0)


def read_record(mid: int, stored: bytes) -> Record:
    """Decode the record of a message."""
    if stored[0] != _RICH:
        published, end = int.from_bytes(stored[-7:]), 3 + int.from_bytes(stored[1:3])
        topic, key, own_id, headers, sticky, _ = _meta(stored[3:end])
        return Record(
            mid=mid,
            topic=topic,
            lane=topic,
            rank=1,
            seq=mid,
            since=published,
            published=published,
            key=key,
            id=own_id,
            headers=headers,
            sticky=sticky,
            body=stored[end:-7],
        )
    _, flags, rank, seq, since, published, expires, rare_bytes = _HEAD.unpack_from(stored)
    serial, state = divmod(flags, 4)
    at = _HEAD.size + rare_bytes
    end = at + 2 + int.from_bytes(stored[at : at + 2])
    topic, key, own_id, headers, sticky, mkey = _meta(stored[at + 2 : end])
    rare = msgspec.structs.asdict(_RARE.decode(stored[_HEAD.size : at]) if rare_bytes else _USUAL)
    rare["lane"] = rare["lane"] or (state != _DEAD and topic)
    rare["rank"] = rare["rank"] or rank - RANK_0
    return Record(
        mid=mid,
        topic=topic,
        state=state,
        seq=seq,
        since=since,
        published=published,
        expires=expires or False,
        serial=serial,
        key=key,
        id=own_id,
        mkey=mkey,
        headers=headers,
        sticky=sticky,
        body=stored[end:],
        **rare,
    )


def since_of(stored: bytes) -> int:
    """The *since* of a message, from its record: plain ones end with it."""
    return read_record(0, stored).since if stored[0] == _RICH else int.from_bytes(stored[-7:])


def leases_of(
    found: Sequence[Any],
    runs: Sequence[int],
    bodies: Sequence[Any],
    fence: int,
    nonce: str,
    shards: int,
    shard: int,
) -> list[Lease]:
    """The leases of an answer of `serving.lease`; see `serving.lua` for its parts."""
    leases: list[Lease] = []
    more = dict(zip(bodies[::2], bodies[1::2], strict=True)) if bodies else {}
    pairs = zip(found[::2], found[1::2], strict=True)
    number = fence * shards + shard
    for count, deadline, is_limited in zip(runs[::3], runs[1::3], runs[2::3], strict=True):
        limited = is_limited == 1
        for mid, stored in itertools.islice(pairs, count):
            handle = mid * shards + shard
            if stored[0] == _RICH:
                lease = _lease_of(handle, number, nonce, deadline, stored, limited=limited)
                if (others := more.get(len(leases))) is not None:
                    lease.bodies = [lease.body, *others]
                leases.append(lease)
            else:
                end = 3 + (stored[1] << 8 | stored[2])
                meta = stored[3:end]
                topic, key, own_id, headers, _, _ = _recent_meta.get(meta) or _meta(meta)
                leases.append(
                    Lease(
                        handle,
                        number,
                        own_id or f"{nonce}-{handle:x}",
                        topic,
                        stored[end:-7],
                        deadline,
                        1,
                        1,
                        key,
                        0,
                        headers,
                        int.from_bytes(stored[-7:]),
                        False,
                        None,
                        limited,
                    )
                )
            number += shards
    return leases


def read_batch(content: bytes) -> Batch:
    """
    What the one shard of a namespace leased to a waiting worker; see `scripts/parts/wakeup.lua`.
    """
    end = 4 + int.from_bytes(content[:4])
    now, wake, nonce, fence, mids, sizes, runs, merged = _unpack(content[4:end])

    # Without functions for the parts: an idle worker reads one message, and each call counts.
    found: list[Any] = []
    for mid, size in zip(mids, sizes, strict=True):
        found += mid, content[end : end + size]
        end += size
    bodies: list[Any] = []
    for at, of_one in merged:
        parts = []
        for size in of_one:
            parts.append(content[end : end + size])
            end += size
        bodies += at, parts
    leases = leases_of(found, runs, bodies, fence, nonce, shards=1, shard=0)
    return Batch(leases, now, wake if wake >= 0 else None)


REMEMBERED = 10_000
"""Topics whose decoded records are cached; few workers have more at a time."""

_Meta = tuple[str, str | None, str | None, dict[str, str] | None, bool, str | None]
"""Topic, key, id, headers, whether the id is sticky, merge key."""

_recent_meta: dict[bytes, _Meta] = {}
"""Those of messages that have nothing but a topic."""


def _meta(meta: bytes) -> _Meta:
    """What precedes the body in a message's content. Functions write false where it has none."""
    topic, key, own_id, headers, sticky, mkey = _unpack(meta)
    found = topic, key or None, own_id or None, headers or None, sticky, mkey or None
    if not (key or own_id or headers or sticky or mkey):
        if len(_recent_meta) >= REMEMBERED:
            _recent_meta.clear()
        _recent_meta[meta] = found
    return found


def _lease_of(
    handle: int, fence: int, nonce: str, deadline: int, stored: bytes, *, limited: bool
) -> Lease:
    """The lease of a message that is not plain, without further bodies."""
    _, _, rank, _, _, published, _, rare_bytes = _HEAD.unpack_from(stored)
    at = _HEAD.size + rare_bytes
    end = at + 2 + (stored[at] << 8 | stored[at + 1])
    meta = stored[at + 2 : end]
    topic, key, own_id, headers, _, _ = _recent_meta.get(meta) or _meta(meta)
    rare = _RARE.decode(stored[_HEAD.size : at]) if rare_bytes else _USUAL
    return Lease(
        handle,
        fence,
        own_id or f"{nonce}-{handle:x}",
        topic,
        stored[end:],
        deadline,
        rare.attempts + 1,
        rare.deliveries + 1,
        key,
        -((rare.rank or rank - RANK_0) >> 1),
        headers,
        published,
        rare.suspect,
        None,
        limited,
    )


# Leases, lanes, gates


class Held(msgspec.Struct, array_like=True):
    """A lease. The fields are in the order of `settling.lua`."""

    fence: int
    lane: str
    deadline: int
    granted: int
    charge: int
    started: bool
    gate: str
    empty: bool
    line: str | bool
    gone: bool
    quick: bool
    holder: str
    padding: str = ""


Bytes = bytes  # a lane has a field of that name


class Lane(msgspec.Struct):
    """A lane: the head in the order of `lanes.lua`, the name, the rest, the rare fields."""

    place: int
    number: int
    ready: int
    delayed: int
    parked: int
    leased: int
    listed: int
    bytes: int
    published: int
    delivered: int
    done: int
    tier_queue: int
    wake: int
    vt: int
    seen: int
    lately: int
    before: int
    sorted: int
    latest: Bytes
    name: str
    big: int = 0
    old: int = 0
    busy: int = 0
    slow: int = 0
    tat: int = 0
    group: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0
    throttled: int = 0
    back_off_until: int = 0
    back_off_step: int = 0
    back_off_fence: int = 0
    mean: int = 0
    watched_until: int = 0
    need: int = 0
    owes: int = 0
    held_since: int = 0
    held_until: int = 0
    keys: Any = None
    flow: Flow | None = None

    @property
    def waiting(self) -> int:
        return self.ready + self.delayed + self.parked

    @property
    def first_of_latest(self) -> int | None:
        """The number of the first plain message that is not in the lane's list."""
        return int.from_bytes(self.latest[:7]) if self.latest else None

    @property
    def latest_plain(self) -> list[int]:
        """The numbers of its last plain messages; the others are in its list."""
        return [int.from_bytes(self.latest[at : at + 7]) for at in range(0, len(self.latest), 7)]


_LANE_HEAD = struct.Struct("<BqiiiiiqqqqHqqqiii")
_LANE_REST = struct.Struct("<HIHHqq")
_TIER_QUEUE = 11
"""Which of the fields of a lane's head is the number of its tier queue."""

_HELD = msgspec.msgpack.Decoder(Held)


def read_lane(name: str, stored: bytes) -> Lane:
    latest, rest = _counted(stored, _LANE_HEAD.size)
    values: list[Any] = [*_LANE_HEAD.unpack_from(stored), latest, name]
    rare = None
    if rest < len(stored):
        values += _LANE_REST.unpack_from(stored, rest)
        rare = unpack_first(stored[rest + _LANE_REST.size :], 1)[0]
    lane = Lane(*values, **(rare or {}))
    if lane.group:
        lane.tier_queue = -lane.group
    if lane.flow:
        lane.flow = msgspec.convert(lane.flow, Flow)
    return lane


class LaneCounts(NamedTuple):
    """Where a lane is served, and its recent deliveries."""

    tier_queue: int
    seen: int
    lately: int
    before: int


def read_lane_counts(stored: bytes) -> LaneCounts | None:
    """The part of a lane's record that its rate needs; None: it cannot deliver now."""
    place, *others = _LANE_HEAD.unpack_from(stored)
    if place != RUNNABLE:
        return None
    return LaneCounts(others[_TIER_QUEUE - 1], *others[-4:-1])


def _counted(stored: bytes, at: int) -> tuple[bytes, int]:
    """
    Bytes behind their count, as `struct.pack("I2c0")` of Lua writes them, and where they end.
    """
    begins = at + 2
    ends = begins + int.from_bytes(stored[at:begins], "little")
    return stored[begins:ends], ends


def key_slot(lane: Lane, topic: str, key: str) -> str:
    """The name of a key in a lane, see `key_limits.lua`."""
    folded = f":{topic}" if lane.name[0] == BUCKET else ""
    return f"\x01{lane.number}{folded}\0{key}"


def read_key_state(stored: bytes) -> KeyState:
    """What a key has used of its limits."""
    return KeyState(*unpack_first(stored, 5)[:4])


class GroupRecord(msgspec.Struct, array_like=True):
    """A group in a tier queue of a shard. The fields are in the order of `groups.lua`."""

    name: str
    tier_queue: int
    vt: int
    inner_vt: int
    lanes: int
    runnable: int
    weight: float
    has_heads: Any
    limited: bool


_GROUP = msgspec.msgpack.Decoder(GroupRecord)


def read_group(stored: bytes) -> GroupRecord:
    return _GROUP.decode(b"\xdc" + struct.pack(">H", len(GroupRecord.__struct_fields__)) + stored)


def read_held(stored: bytes) -> Held:
    return _HELD.decode(b"\xdc" + struct.pack(">H", len(Held.__struct_fields__)) + stored)


_NO_LIMITS = (False, False, False)


class GateRecord(msgspec.Struct, array_like=True):
    """
    A gate on a shard. Each layer has the fields of `Gate` in their order, or False; the fields are
    in the order of `gates.lua`, which says what else those of topics have.
    """

    code: Any
    operator: Any
    tat: int
    leased: int
    is_open: bool
    wake: int
    grant: Any
    need: int = 0
    held_until: int = 0
    owes: int = 0
    flow: Any = None
    turn: int = 0
    mean: int = 0
    holder: int = 0
    holder_name: str = ""
    claimed: int = 0
    held_turn: int = 0
    listed: Any = None

    @property
    def known_flow(self) -> Flow | None:
        """What it knows of the destination."""
        return msgspec.convert(self.flow, Flow) if self.flow else None

    @property
    def share(self) -> Share | None:
        """What the shard has of a limit that adapts."""
        limits, here = gate_of(self.code or _NO_LIMITS), self.here
        return gates.share_of(limits, here, self.known_flow, self.leased)

    @property
    def debt(self) -> Debt:
        """What costs leave at it."""
        return Debt(self.need, self.held_until, self.owes, self.holder)

    @property
    def limits(self) -> Gate:
        """The limits that were set; the operator's precede the code's."""
        return gate_of(self.operator or self.code or _NO_LIMITS)

    @property
    def limits_here(self) -> Gate:
        """The part of the limits that this shard has."""
        limits = gate_of(self.code or _NO_LIMITS)
        return gates.adapted(limits, self.here, self.known_flow)

    @property
    def here(self) -> Gate:
        """The same without what adapts."""
        return gate_of(self.grant or self.operator or self.code or _NO_LIMITS)


def gate_of(limits: Sequence[Any]) -> Gate:
    every = [*limits, *[False] * (10 - len(limits))]
    rate, burst, concurrency, weight, least, out_of, max_cost, start, finish, left = every
    return Gate(
        rate or None,
        burst if rate and burst is not False else None,
        concurrency if concurrency is not False else None,
        float(weight) if weight else None,
        least or None,
        out_of or None,
        max_cost or None,
        start or 0.0,
        finish or 0.0,
        left if left is not False else None,
    )


def settings_of(name: str, gate: GateRecord) -> Gate:
    """The limits of a gate, or the settings of a topic group."""
    if gate.code and gate.operator and name.startswith(GROUP):
        return gate_of(gate.operator).over(gate_of(gate.code))
    return gate.limits


_GATE = msgspec.msgpack.Decoder(GateRecord)


def read_gate(stored: bytes) -> GateRecord:
    return _GATE.decode(b"\xdc" + struct.pack(">H", len(GateRecord.__struct_fields__)) + stored)


class Counters(msgspec.Struct, array_like=True):
    """A shard's counters. The fields are in the order of `shard.lua`."""

    layout: int
    nonce: str
    shards: int
    index: int
    version: int
    exact: int = 0
    deaths: int = 0
    dead: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0
    alarm: int = 0
    max_backlog: int | bool = False
    max_backlog_bytes: int | bool = False
    on_full: str = "refuse"
    sweeping: int = 0
    own: int = 0
    marked: int = 0
    groups: int = 0
    copying: int = 0
    tier_queues: list[list[Any]] = []  # pool, tier, vt, carry, mean, delivered
    now: int = 0
    seq: int = 0
    fence: int = 0
    lanes_created: int = 0
    lanes: int = 0
    waiting: int = 0
    bytes: int = 0
    leased: int = 0
    published: int = 0
    delivered: int = 0
    done: int = 0


_COUNTERS = msgspec.msgpack.Decoder(Counters)


def read_counters(stored: bytes) -> Counters:
    return _COUNTERS.decode(b"\xdc" + struct.pack(">H", len(Counters.__struct_fields__)) + stored)


def counters_record(counters: Counters) -> bytes:
    return _pack(counters)[3:]
