"""
Reading for administration: topics, messages, cursors, gates. Reads are not a snapshot of one
moment, and they block no worker.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

from laneway.engines.base import (
    HeldState,
    MessageView,
    Overview,
    Tallies,
    Tally,
    TopicStats,
    WaitCounts,
)
from laneway.engines.shared import adaptive, gates as shared_gates, views as shared
from laneway.engines.shared.adaptive import Share
from laneway.engines.shared.naming import BUCKET, PARTITION, lane_names
from laneway.engines.shared.states import (
    DEAD,
)
from laneway.engines.shared.tallies import WAIT_CLASSES, together as added_up
from laneway.engines.shared.views import COUNTED
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.record_formats import Counters, Held, Lane, Record
from laneway.policy import Resolved, is_pattern
from laneway.subscriptions import is_copy
from laneway.topic_groups import GROUP, TOPIC

T = TypeVar("T")

PAGE = 200
MAX_SINCE = (1 << 56) - 1
"""The largest time in the members of sorted sets, in microseconds."""

LAST_NAME = b"\xf4\x8f\xbf\xbf"


class View:
    """
    What one administrative call needs: the policies, and each shard's counters and time when the
    call began.

    `times`: the shards' times, which never go back; `clocks`: the servers' clocks. This machine's
    clock is not used.
    """

    def __init__(self, space: Namespace, now_us: int | None) -> None:
        self.space = space
        self._policies: dict[str, Resolved] = {}
        self.counters: list[Counters] = []
        self.clocks: list[int] = []
        for counters, clock in space.all_counters():
            self.counters.append(counters)
            self.clocks.append(clock if now_us is None else now_us)
        if self.counters[0].version != space.routes.version:
            space.reload()
        self.times = [
            max(counters.now, clock)
            for counters, clock in zip(self.counters, self.clocks, strict=True)
        ]
        self.now = max(self.times)

    def policy(self, topic: str) -> Resolved:
        """What holds for a topic, or for the pattern of a bucket."""
        found = self._policies.get(topic)
        if found is None:
            self.load_policies([topic])
            found = self._policies[topic]
        return found

    def load_policies(self, topics: Iterable[str]) -> None:
        """Read the own policies of these topics, all at once."""
        space = self.space
        policy_table = space.routes.policies
        wanted = [topic for topic in dict.fromkeys(topics) if topic not in self._policies]
        asked = [
            topic
            for topic in wanted
            if not is_pattern(topic)
            and self.counters[space.routes.home(topic)].own
            and not policy_table.layers(topic)
        ]
        own = space.own_layers(asked)
        for topic in wanted:
            layers = own.get(topic)
            self._policies[topic] = (
                policy_table.resolve_own(topic, layers) if layers else policy_table.resolve(topic)
            )


# Reading together

Command = tuple[Any, ...]
Reads = Generator[list[Command], list[Any], T]
"""
A reader in steps: it yields the commands of a step, receives their answers, and returns a result.
"""


def together(view: View, works: Sequence[tuple[int, Reads[T]]]) -> list[T]:
    """Run all readers at once, each on its shard: a step of all is one round trip to a shard."""
    found: dict[int, T] = {}
    answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(works)))
    while answers:
        wanted: dict[int, list[tuple[int, list[Command]]]] = {}
        for n, answer in answers.items():
            shard, work = works[n]
            try:
                wanted.setdefault(shard, []).append((n, work.send(answer)))  # type: ignore[arg-type]  # None: it begins
            except StopIteration as end:
                found[n] = end.value
        answers = {}
        for shard, asked in wanted.items():
            read = iter(
                _read_merged(
                    view, shard, [command for _, commands in asked for command in commands]
                )
            )
            answers |= {n: [next(read) for _ in commands] for n, commands in asked}
    return [found[n] for n in range(len(works))]


def _read_merged(view: View, shard: int, commands: Sequence[Command]) -> list[Any]:
    """Read fields of one hash by one command: many commands cost more than many fields."""
    merged: dict[Any, list[Any]] = {}
    for name, key, *fields in commands:
        if name == "HMGET":
            merged.setdefault(key, []).extend(fields)
    others = [command for command in commands if command[0] != "HMGET"]
    read = iter(
        view.space.read_many(
            shard, [*(("HMGET", key, *fields) for key, fields in merged.items()), *others]
        )
    )
    pages = {key: iter(next(read)) for key in merged}
    return [
        [next(pages[key]) for _ in fields] if name == "HMGET" else next(read)
        for name, key, *fields in commands
    ]


# Lanes


def topic_of_lane(name: str) -> str | None:
    """The topic of a lane's name; None: a bucket."""
    return None if name.startswith(BUCKET) else name.partition(PARTITION)[0]


def lanes_of(view: View, topic: str) -> list[tuple[int, Lane]]:
    """A topic's lanes as they are (a folded topic: its bucket), with their shards."""
    return lanes_of_many(view, [topic])[topic]


def lanes_of_many(view: View, topics: Sequence[str]) -> dict[str, list[tuple[int, Lane]]]:
    wanted = []
    view.load_policies(topics)
    for topic in topics:
        names = lane_names(view.policy(topic), topic)
        routes = view.space.routes
        if is_copy(topic):  # each of its lanes may be on each shard of its topic
            wanted += [(topic, shard, name) for shard in routes.shards_of(topic) for name in names]
            continue
        wanted += [(topic, routes.shard_of(topic, part), name) for part, name in enumerate(names)]
    found: dict[str, list[tuple[int, Lane]]] = {topic: [] for topic in topics}
    stored = read_stored(view, [(shard, name) for _, shard, name in wanted])
    for (topic, shard, name), each in zip(wanted, stored, strict=True):
        if each is not None:
            found[topic].append((shard, record_formats.read_lane(name, each)))
    return found


def read_stored(view: View, wanted: Sequence[tuple[int, str]]) -> list[bytes | None]:
    """The records of lanes by shard and name, of a shard in one command."""
    names: dict[int, list[str]] = {}
    for shard, name in wanted:
        names.setdefault(shard, []).append(name)
    read = {
        shard: iter(view.space.read(shard, "HMGET", "lanes", *those))
        for shard, those in names.items()
    }
    return [next(read[shard]) for shard, _ in wanted]


def read_lane(view: View, shard: int, name: str) -> Lane | None:
    stored = view.space.read(shard, "HGET", "lanes", name)
    return record_formats.read_lane(name, stored) if stored is not None else None


def all_lanes(view: View) -> Iterator[tuple[int, Lane]]:
    for shard in range(view.space.shards):
        for name, stored in view.space.scan(shard, "HSCAN", "lanes"):
            yield shard, record_formats.read_lane(name.decode(), stored)


def held_in(view: View, shard: int) -> Iterator[tuple[int, Held]]:
    """All leases of a shard: there are never more than workers hold."""
    for mid, stored in view.space.scan(shard, "HSCAN", "l"):
        yield int(mid), record_formats.read_held(stored)


# Members of sorted sets: state, rank, position, seq, number; see `scripts/parts/messages.lua`


def _rank_heads(name: str, prefix: bytes = b"") -> Reads[list[bytes]]:
    """
    The beginnings of members, up to their rank, by skipping from one rank to the next; the first
    `MOST_RANKS`.
    """
    after, before = (
        (b"[" + prefix if prefix else b"-"),
        (b"(" + prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"+"),
    )
    heads: list[bytes] = []
    while len(heads) < shared.MOST_RANKS and (
        page := (yield [("ZRANGE", name, after, before, "BYLEX", "LIMIT", 0, 1)])[0]
    ):
        heads.append(prefix + record_formats.rank_code_in(page[0], len(prefix)))
        after = b"(" + heads[-1] + b"\xff" * 22
    return heads


def _ranks(view: View, shard: int, name: str, prefix: bytes = b"") -> list[bytes]:
    return together(view, [(shard, _rank_heads(name, prefix))])[0]


def _under(view: View, shard: int, name: str, head: bytes, start: int, count: int) -> list[bytes]:
    found: list[bytes] = view.space.read(shard, *_page_under(name, head, start, count))
    return found


def _page_under(name: str, head: bytes, start: int, count: int) -> Command:
    return ("ZRANGE", name, b"[" + head, b"[" + head + b"\xff" * 22, "BYLEX", "LIMIT", start, count)


def _priority(head: bytes, prefix: bytes = b"") -> int:
    return -(record_formats.rank_of_code(head[len(prefix) :]) >> 1)


def _mids(members: Iterable[bytes]) -> list[int]:
    return [int.from_bytes(member[-7:]) for member in members]


def plain_mids(view: View, shard: int, lane: Lane, most: int) -> list[int]:
    """The numbers of a lane's first plain messages."""
    found = (
        [int(mid) for mid in view.space.read(shard, "LRANGE", f"q:{lane.number}", 0, most - 1)]
        if lane.listed and most
        else []
    )
    return (found + lane.latest_plain)[:most]


def read_records(view: View, shard: int, mids: Sequence[int]) -> list[Record]:
    if not mids:
        return []
    stored = view.space.read(shard, "HMGET", "m", *mids)
    return [
        record_formats.read_record(mid, each)
        for mid, each in zip(mids, stored, strict=True)
        if each is not None
    ]


def _in_order(record: Record) -> tuple[int, int, int]:
    return (record.rank, record.position, record.seq)


def _by_age(record: Record) -> tuple[int, int]:
    return (record.since, record.seq)


def ready_in(view: View, shard: int, lane: Lane, most: int) -> list[Record]:
    """The first ready messages of a lane, in its order."""
    sorted_ = (
        _mids(view.space.read(shard, "ZRANGE", f"z:{lane.number}", 0, most - 1))
        if lane.sorted
        else []
    )
    return sorted(
        read_records(view, shard, [*plain_mids(view, shard, lane, most), *sorted_]), key=_in_order
    )[:most]


def _aside(view: View, shard: int, name: str, state: bytes, most: int) -> list[Record]:
    """The oldest delayed or parked messages: members are sorted by rank first."""
    members = [
        member
        for head in _ranks(view, shard, name, state)
        for member in _under(view, shard, name, head, 0, most)
    ]
    return sorted(read_records(view, shard, _mids(members)), key=_by_age)[:most]


def oldest_in(lane: Lane) -> Reads[int | None]:
    """The since of the oldest ready message of a lane."""
    if not lane.ready:
        return None
    first = lane.first_of_latest
    if lane.listed:
        listed = (yield [("LRANGE", f"q:{lane.number}", 0, 0)])[0]
        first = int(listed[0]) if listed else first  # else delivered meanwhile
    found = [] if first is None else (yield from _sinces([first]))
    if lane.sorted:
        found += yield from _oldest(f"z:{lane.number}", b"")
    return min(found, default=None)


def oldest_of(view: View, lanes: Sequence[tuple[int, Lane]]) -> list[int | None]:
    """
    The same of many lanes. Most lanes' records have the number of the first message, and these
    messages are read in one round trip. No command reads many: it would hold the server up.
    """
    found: list[int | None] = [None] * len(lanes)
    known: dict[int, dict[int, int]] = {}
    others: list[tuple[int, int, Lane]] = []
    for n, (shard, lane) in enumerate(lanes):
        if lane.listed or lane.sorted:
            others.append((n, shard, lane))
        elif lane.ready and (first := lane.first_of_latest) is not None:
            known.setdefault(shard, {})[n] = first
    for shard, mids in known.items():
        numbers = list(mids.values())
        parts = view.space.read_many(
            shard,
            (("HMGET", "m", *numbers[at : at + PAGE]) for at in range(0, len(numbers), PAGE)),
        )
        for n, stored in zip(mids, chain.from_iterable(parts), strict=True):
            found[n] = record_formats.since_of(stored) if stored is not None else None
    for (n, _, _), since in zip(
        others, together(view, [(shard, oldest_in(lane)) for _, shard, lane in others]), strict=True
    ):
        found[n] = since
    return found


def _sinces(mids: Sequence[int]) -> Reads[list[int]]:
    """The *since* of these messages."""
    if not mids:
        return []
    stored = (yield [("HMGET", "m", *mids)])[0]
    return [record_formats.since_of(each) for each in stored if each is not None]


def _oldest(name: str, prefix: bytes) -> Reads[list[int]]:
    """
    The *since* of the oldest message of each rank. Messages `at_front` are not in the order of age:
    of these, the first `COUNTED` are read.
    """
    heads = yield from _rank_heads(name, prefix)
    if not heads:
        return []
    pages = yield [_page_under(name, head, 0, 1 if head[-1] % 2 else COUNTED) for head in heads]
    return (yield from _sinces(_mids(member for page in pages for member in page)))


def oldest_folded(topic: str) -> Reads[list[int]]:
    """The oldest ready messages of a topic in a bucket, of each rank one."""
    return _oldest(f"t:{topic}", b"r")


# Topics


def topic_stats(view: View, topic: str) -> TopicStats:
    """A topic without its cursors."""
    return many_stats(view, [topic])[0]


def many_stats(view: View, topics: Sequence[str]) -> list[TopicStats]:
    """Several topics, together in a few round trips."""
    space = view.space
    lanes = lanes_of_many(view, topics)
    letters = [
        (shard, _number(("ZCARD", f"dead:{topic}")), topic)
        for topic in topics
        for shard in space.routes.shards_of(topic)
    ]
    dead = dict.fromkeys(topics, 0)
    for (_, _, topic), count in zip(
        letters, together(view, [(shard, work) for shard, work, _ in letters]), strict=True
    ):
        dead[topic] += count
    found = {topic: _begun(view, topic, lanes[topic], dead[topic]) for topic in topics}
    own = [
        (found[topic], shard, lane)
        for topic in topics
        for shard, lane in lanes[topic]
        if topic_of_lane(lane.name) is not None
    ]
    for (stats, _, _), oldest in zip(
        own, oldest_of(view, [(shard, lane) for _, shard, lane in own]), strict=True
    ):
        shared.add_oldest(stats, oldest)
    together(
        view,
        [
            (space.routes.shards_of(topic)[0], _count_folded(found[topic]))
            for topic in topics
            if view.policy(topic).buckets is not None
        ],
    )
    for topic in topics:
        if lanes[topic] and (shares := shares_of(view, topic)):
            found[topic].limit = adaptive.limit_of_all(shares)
    return [shared.finish_topic(found[topic]) for topic in topics]


def shares_of(view: View, topic: str) -> list[Share]:
    """What each shard has of the limit that the topic's partitions share, if it adapts."""
    limits = view.policy(topic).shared
    if limits is None or limits.least is None:
        return []
    name, shards = TOPIC + topic, view.space.routes.shards_of(topic)
    stored = [view.space.read(shard, "HGET", "gates", name) for shard in shards]
    shares = [record_formats.read_gate(each).share for each in stored if each is not None]
    return [share for share in shares if share is not None]


def _number(command: Command) -> Reads[int]:
    return int((yield [command])[0])


def _begun(view: View, topic: str, lanes: Iterable[tuple[int, Lane]], dead: int) -> TopicStats:
    """The part of the stats that the records of lanes have."""
    policy = view.policy(topic)
    stats = shared.empty_topic(topic, policy, dead)
    for shard, lane in lanes:
        is_bucket = topic_of_lane(lane.name) is None
        shared.add_lane(stats, lane, policy, view.times[shard], is_bucket=is_bucket)
    return stats


def _count_folded(stats: TopicStats) -> Reads[None]:
    name = f"t:{stats.topic}"
    letters = {"ready": b"r", "delayed": b"d", "parked": b"p", "leased": b"l"}
    counted: list[Command] = [
        ("ZLEXCOUNT", name, b"[" + letter, b"(" + bytes([letter[0] + 1]))
        for letter in letters.values()
    ]
    *counts, size = yield [*counted, ("HGET", "folded_bytes", stats.topic)]
    for field, count in zip(letters, counts, strict=True):
        setattr(stats, field, count)
    stats.bytes = int(size or 0)
    stats.oldest_us = min((yield from _oldest(name, b"r")), default=None)


# Cursors


def cursors(view: View, topic: str) -> dict[int, tuple[int, int]]:
    """
    Scan and done cursor by priority, computed from the outstanding messages: nothing is stored of
    an idle topic.
    """
    found = shared.Cursors()
    for shard, lane in lanes_of(view, topic):
        for priority, number, was_delivered in _outstanding(view, shard, lane):
            found.add(priority, number, was_delivered=was_delivered)
    return found.below(
        max(view.counters[shard].seq for shard in view.space.routes.shards_of(topic))
    )


def _outstanding(view: View, shard: int, lane: Lane) -> Iterator[tuple[int, int, bool]]:
    """(priority, seq, whether it was delivered) of messages that may have the lowest seq."""
    yield from ((0, mid, False) for mid in plain_mids(view, shard, lane, 1))
    unordered = f"o:{lane.number}"
    for name, prefix in ((f"z:{lane.number}", b""), (f"a:{lane.number}", b"p")):
        for head in _ranks(view, shard, name, prefix):
            number = _first_in_sequence(view, shard, name, head, prefix, unordered)
            if number is not None:
                yield _priority(head, prefix), number, False
    for head in _ranks(view, shard, unordered):
        for letter in (b"u", b"s"):
            first = _under(view, shard, unordered, head + letter, 0, 1)
            if first:
                yield _priority(head), int.from_bytes(first[0][-14:-7]), letter == b"s"
    if not lane.leased:
        return
    leased = [
        mid
        for mid, held in held_in(view, shard)
        if held.lane == lane.name and not held.gone and not held.empty
    ]
    for start in range(0, len(leased), PAGE):
        yield from (
            (record.priority, record.seq, True)
            for record in read_records(view, shard, leased[start : start + PAGE])
        )


def _first_in_sequence(
    view: View, shard: int, name: str, head: bytes, prefix: bytes, unordered: str
) -> int | None:
    """
    The seq of the first message of a rank that is in sequence: those are in the order of seq.
    """
    start, code = 0, head[len(prefix) :]
    while page := _under(view, shard, name, head, start, PAGE):
        places = [code + letter + member[-14:] for member in page for letter in (b"u", b"s")]
        scores = view.space.read(shard, "ZMSCORE", unordered, *places)
        for n, member in enumerate(page):
            if scores[2 * n] is None and scores[2 * n + 1] is None:
                return int.from_bytes(member[-14:-7])
        start += PAGE
    return None


# Messages


def find(view: View, message_id: str, topic: str | None) -> tuple[int, Record] | None:
    """
    A message by its id, and its shard. Without its topic, only a generated id is found.
    """
    space = view.space
    generated = space.generated(message_id)
    if topic is None and generated is not None:
        for record in read_records(view, generated[0], [generated[1]]):
            return generated[0], record
        aliases = (
            space.read(shard, "HGET", "aliases", message_id) for shard in range(space.shards)
        )
        topic = next((alias.decode() for alias in aliases if alias is not None), None)
    for shard in space.routes.shards_of(topic) if topic is not None else ():
        stored = space.read(shard, "HGET", f"i:{topic}", message_id)
        if stored is not None and not stored.startswith(b"f"):
            return next(
                ((shard, record) for record in read_records(view, shard, [int(stored)])), None
            )
    if generated is None:
        return None
    shard, mid = generated
    for record in read_records(view, shard, [mid]):
        if topic in (None, record.topic):
            return shard, record
    return None


def is_finished(view: View, message_id: str, topic: str) -> bool:
    for shard in view.space.routes.shards_of(topic):
        stored = view.space.read(shard, "HGET", f"i:{topic}", message_id)
        if stored is not None and stored.startswith(b"f"):
            until = int(stored[1:])
            return until == 0 or until > view.times[shard]
    return False


def lease_on(view: View, shard: int, mid: int) -> Held | None:
    stored = view.space.read(shard, "HGET", "l", mid)
    held = record_formats.read_held(stored) if stored is not None else None
    return held if held is not None and not held.gone and not held.empty else None


def message_view(view: View, shard: int, record: Record) -> MessageView:
    """A message as administration sees it."""
    space = view.space
    held = lease_on(view, shard, record.mid) if record.state != DEAD else None
    message = shared.message(
        record,
        id=record.id or f"{space.nonce}-{record.mid * space.shards + shard:x}",
        topic=record.topic,
        key=record.key,
        headers=record.headers,
        expires_us=record.expires or None,
        suspect=record.suspect,
        parts=space.read(shard, "LRANGE", f"b:{record.mid}", 0, -1) if record.parts else None,
        history=[
            {"at_us": at, "what": what, "error": error or None}
            for at, what, error in record.history
        ],
    )
    if held is not None:
        shards = space.shards
        shared.set_lease(
            message,
            handle=record.mid * shards + shard,
            fence=held.fence * shards + shard,
            leased_us=held.granted,
            deadline_us=held.deadline,
            holder=held.holder or None,
        )
    if record.death:
        _, message.died_us, _, message.reason, error = record.death
        message.error = error or None
    return message


def all_messages(view: View) -> list[MessageView]:
    found = []
    for shard in range(view.space.shards):
        for mid, stored in view.space.scan(shard, "HSCAN", "m"):
            found.append(message_view(view, shard, record_formats.read_record(int(mid), stored)))
    return sorted(found, key=lambda each: each.seq)


def peek(view: View, topic: str, limit: int, only: HeldState | None = None) -> list[MessageView]:
    """
    Ready messages in order, then the parked, then the delayed by due time. `only`: of this state.
    """
    if only == "leased":
        return _leased(view, topic, limit)
    ready: list[tuple[int, Record]] = []
    aside: dict[bytes, list[tuple[int, Record]]] = {
        code: [] for code, state in _ASIDE.items() if only in (None, state)
    }
    if view.policy(topic).buckets is not None:
        (shard,) = view.space.routes.shards_of(topic)
        if only in (None, "ready"):
            members = view.space.read(
                shard, "ZRANGE", f"t:{topic}", "[r", "(s", "BYLEX", "LIMIT", 0, limit
            )
            ready = [(shard, record) for record in read_records(view, shard, _mids(members))]
        for state, found in aside.items():
            found += [(shard, record) for record in _aside(view, shard, f"t:{topic}", state, limit)]
    else:
        for shard, lane in lanes_of(view, topic):
            if only in (None, "ready"):
                ready += [(shard, record) for record in ready_in(view, shard, lane, limit)]
            for state, found in aside.items():
                found += [
                    (shard, record)
                    for record in _aside(view, shard, f"a:{lane.number}", state, limit)
                ]
    ready.sort(key=lambda each: _in_order(each[1]))
    rest = [
        each
        for found in aside.values()
        for each in sorted(found, key=lambda each: _by_age(each[1]))
    ]
    return [message_view(view, shard, record) for shard, record in [*ready, *rest][:limit]]


_ASIDE: dict[bytes, HeldState] = {b"p": "parked", b"d": "delayed"}


def _leased(view: View, topic: str, limit: int) -> list[MessageView]:
    """The leased messages of a topic by their since; there are no more than workers hold."""
    found: list[tuple[int, Record]] = []
    for shard in dict.fromkeys(shard for shard, lane in lanes_of(view, topic) if lane.leased):
        mids = [
            mid
            for mid, held in held_in(view, shard)
            if not held.gone and not held.empty and topic_of_lane(held.lane) in (topic, None)
        ]
        found += [
            (shard, record)
            for start in range(0, len(mids), PAGE)
            for record in read_records(view, shard, mids[start : start + PAGE])
            if record.topic == topic
        ]
    found.sort(key=lambda each: _by_age(each[1]))
    return [message_view(view, shard, record) for shard, record in found[:limit]]


def delayed_counts(view: View, topic: str, until_us: Sequence[int]) -> list[int]:
    """How many delayed messages of a topic are due in each interval."""
    names: list[tuple[int, str]]
    if view.policy(topic).buckets is not None:
        names = [(shard, f"t:{topic}") for shard in view.space.routes.shards_of(topic)]
    else:
        names = [
            (shard, f"a:{lane.number}") for shard, lane in lanes_of(view, topic) if lane.delayed
        ]
    works = [(shard, _delayed_before(name, until_us)) for shard, name in names]
    before = [sum(each) for each in zip(*together(view, works), strict=True)] or [0] * (
        len(until_us) + 1
    )
    return [count - (before[place - 1] if place else 0) for place, count in enumerate(before)]


def _delayed_before(name: str, until_us: Sequence[int]) -> Reads[list[int]]:
    """How many are due before each of these times, and how many there are."""
    heads = yield from _rank_heads(name, b"d")
    counts = [0] * (len(until_us) + 1)
    for head in heads:
        ends = [b"(" + head + min(max(at, 0), MAX_SINCE).to_bytes(7) for at in until_us]
        page = yield [
            ("ZLEXCOUNT", name, b"[" + head, end) for end in (*ends, b"[" + head + b"\xff" * 22)
        ]
        counts = [count + more for count, more in zip(counts, page, strict=True)]
    return counts


# Dead letters


def dead_list(
    view: View, topic: str | None, limit: int, after: int
) -> list[tuple[int, MessageView]]:
    """Dead letters by number, those of several shards together."""
    space = view.space
    name = "dead" if topic is None else f"dead:{topic}"
    found: list[tuple[int, MessageView]] = []
    for shard in range(space.shards) if topic is None else space.routes.shards_of(topic):
        first = (after - shard) // space.shards + 1  # the first whose number is beyond
        mids = [
            int(mid)
            for mid in space.read(
                shard, "ZRANGE", name, first, "+inf", "BYSCORE", "LIMIT", 0, limit
            )
        ]
        found += [
            (record.death[0] * space.shards + shard, message_view(view, shard, record))
            for record in read_records(view, shard, mids)
        ]
    return sorted(found, key=lambda each: each[0])[:limit]


def drop_edges(view: View, shard: int, topic: str) -> None:
    """Delete the merge windows of a topic that was deleted."""
    prefix = topic.encode() + b"\0"
    for member, _ in view.space.scan(shard, "ZSCAN", "edges"):
        if member.startswith(prefix):
            view.space.read(shard, "ZREM", "edges", member)


# The namespace


def gates(view: View) -> list[dict[str, Any]]:
    """Each gate's limits, and what waits for it on all shards."""
    return shared.gates(
        _gate(view, shard, name.decode(), stored)
        for shard in range(view.space.shards)
        for name, stored in sorted(view.space.scan(shard, "HSCAN", "gates"))
        if not name.startswith(TOPIC.encode())
    )


def _gate(view: View, shard: int, name: str, stored: bytes) -> dict[str, Any]:
    gate = record_formats.read_gate(stored)
    lanes = record_formats.gate_lanes(name, len(view.counters[shard].tier_queues))
    elsewhere = int(view.space.read(shard, "HGET", "gate_lanes", name) or 0)
    waiting = sum(_lanes_in(view, shard, key) for key in lanes) + elsewhere
    return shared_gates.view(
        name,
        record_formats.settings_of(name, gate),
        tat=gate.tat,
        owes=gate.owes,
        leased=gate.leased,
        waiting=min(waiting, COUNTED),
        now_us=view.times[shard],
    )


def _lanes_in(view: View, shard: int, index: str) -> int:
    """
    How many lanes an index of lanes has: those of a tier queue, or those at gates. The lanes of
    groups count, too; at most `COUNTED` lanes and groups are looked at.
    """
    if not view.counters[shard].groups:
        return int(view.space.read(shard, "ZCARD", index))
    members = view.space.read(shard, "ZRANGE", index, 0, COUNTED - 1)
    of_groups = [member for member in members if member[7:8] == GROUP.encode()]
    kind, _, rest = index.partition(":")
    gate = rest.partition(":")[1:]
    counts = view.space.read_many(
        shard,
        [("ZCARD", f"{kind}:-{int.from_bytes(member[:7])}{''.join(gate)}") for member in of_groups],
    )
    return len(members) - len(of_groups) + sum(map(int, counts))


def overview(view: View) -> Overview:
    """The namespace at a glance."""
    tier_queues = [
        (shard, number, tier_queue)
        for shard, counters in enumerate(view.counters)
        for number, tier_queue in enumerate(counters.tier_queues, 1)
    ]
    runnable = together(
        view, [(shard, _number(("ZCARD", f"run:{number}"))) for shard, number, _ in tier_queues]
    )
    if any(counters.groups for counters in view.counters):
        runnable = [_lanes_in(view, shard, f"run:{number}") for shard, number, _ in tier_queues]
    tiers = [
        (pool, tier, delivered, count)
        for (_, _, (pool, tier, _, _, _, delivered)), count in zip(
            tier_queues, runnable, strict=True
        )
    ]
    return shared.overview(view.now, view.counters, shared.tier_stats(tiers, view.space.tiers))


def tallies(view: View) -> Tallies:
    """What was counted on all shards, see scripts/parts/tallies.lua."""
    found: dict[tuple[int, str, str], Tally] = {}
    waits: dict[tuple[int, str], WaitCounts] = {}
    left: dict[tuple[int, str, str], int] = {}
    shards = range(len(view.counters))
    since: list[int] = []
    answers = together(view, [(shard, _fields(("HGETALL", "tallies"))) for shard in shards])
    for shard, fields in zip(shards, answers, strict=True):
        for name, value in zip(fields[::2], fields[1::2], strict=True):
            tier, _, rest = name.decode().partition("\0")
            pattern, has_counter, counter = rest.rpartition("\0")
            if not has_counter:
                since += [int(value)] if name == SINCE else []
                continue
            number = int(value)
            if not pattern:
                counts = waits.setdefault(
                    (shard, tier), WaitCounts(tier, [0] * WAIT_CLASSES, [0] * WAIT_CLASSES)
                )
                place = int(counter) - 1
                classes = counts.others if place < WAIT_CLASSES else counts.noisy
                classes[place % WAIT_CLASSES] += number
                continue
            key = shard, tier, pattern
            tally = found.setdefault(key, Tally(tier, pattern))
            if counter == "left":
                left[key] = number
            else:
                setattr(tally, "throttled_us" if counter == "throttled" else counter, number)
    for key, tally in found.items():
        tally.waiting = tally.published - tally.delivered - left.get(key, 0)
    return added_up(view.now, since, found.values(), waits.values())


SINCE = b"since"


def _fields(command: Command) -> Reads[list[bytes]]:
    found: list[bytes] = (yield [command])[0]
    return found
