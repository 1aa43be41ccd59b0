"""Names that engines assign: lanes, generated ids, merge keys."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable

from laneway.message import Draft
from laneway.policy import Resolved
from laneway.subscriptions import base_of

PARTITION, BUCKET = "\x1f", "\x1e"
"""Separators in the names of partitions and buckets; topics cannot contain them."""

AFTER_PARTITIONS = " "
"""Behind a topic's name: follows the names of all its partitions."""


def lane_name(
    policy: Resolved, topic: str, spread_by: bytes | None, number: int
) -> tuple[str, str]:
    """
    The lane of a message: its name, and the topic or pattern whose policy it has. `spread_by`
    chooses the partition; None: the message's `number` does.
    """
    if policy.buckets is not None and policy.buckets_pattern is not None:
        bucket = zlib.crc32(topic.encode()) % policy.buckets
        pattern = policy.buckets_pattern
        return f"{BUCKET}{pattern}{PARTITION}{bucket}", pattern
    if policy.partitions > 1:
        spread = zlib.crc32(spread_by) if spread_by is not None else number
        return f"{topic}{PARTITION}{spread % policy.partitions}", topic
    return topic, topic


def lane_names(policy: Resolved, topic: str) -> list[str]:
    """All lanes that may have messages of a topic."""
    return [lane_name(policy, topic, None, n)[0] for n in range(policy.partitions)]


MOST_RANGES = 100
"""How many ranges of names a filter may have."""


def lane_ranges(only: Iterable[str] | None, without: Collection[str]) -> list[tuple[str, str]]:
    """
    The names from which and up to which the lanes are that a filter takes, in order, buckets among
    them; none if they may be anywhere, or in too many places. If the first range begins with "",
    the copies of subscriptions in the topics of `without` are left out.
    """
    taken = {"*"} if only is None else set(only).difference(without)
    found = [(BUCKET, PARTITION), *(_range(each) for each in taken if not _is_general(each))]
    if any(map(_is_general, taken)):
        left_out = sorted(_range(each) for each in without if not _is_general(each))
        if not left_out:
            return []
        begin = ""
        for low, high in left_out:
            found.append((begin, max(begin, low)))
            begin = max(begin, high)
        found.append((begin, "\U0010ffff"))
    return sorted(found) if len(found) <= MOST_RANGES else []


def _is_general(pattern: str) -> bool:
    return base_of(pattern) == "*"


def _range(pattern: str) -> tuple[str, str]:
    stem = base_of(pattern).removesuffix("*")
    return (stem, stem[:-1] + "/") if stem.endswith(".") else (pattern, pattern + AFTER_PARTITIONS)


def first_partition_on(shard: int, shards: int, topic: str) -> int:
    """The first partition of a topic on a shard: they are on neighboring shards."""
    return (shard - zlib.crc32(base_of(topic).encode())) % shards


def partitions_on(shard: int, shards: int, topic: str, partitions: int) -> int:
    """How many of a topic's partitions are on a shard."""
    first = first_partition_on(shard, shards, topic)
    return max(0, -(-(partitions - first) // shards))


def generated_id(nonce: str, number: int) -> str:
    """The id of a message without an id of its own."""
    return f"{nonce}-{number:x}"


def parse_generated_id(nonce: str, message_id: str) -> int | None:
    """The number in a generated id (`<nonce>-<number in hex>`); None: it is no id of this store."""
    head, separator, tail = message_id.partition("-")
    if head != nonce or not separator:
        return None
    try:
        number = int(tail, 16)
    except ValueError:
        return None
    return number if 0 < number < 1 << 62 and f"{number:x}" == tail else None


def merge_key(draft: Draft) -> bytes:
    """
    The merge key of a message: its topic (a bucket has several), and its key, else its body. A long
    one is replaced by its digest.
    """
    mark, text = (b"k", draft.key.encode()) if draft.key is not None else (b"b", draft.body)
    text = draft.topic.encode() + b"\0" + text
    return mark + (text if len(text) <= 40 else hashlib.blake2b(text, digest_size=24).digest())


FORWARDED_KEY_BYTES = 8
"""Length of what `forwarded_key` returns."""


def forwarded_key(draft: Draft) -> bytes:
    """What stands for a message of a spool's batch, in the record of what was taken."""
    name = f"{draft.topic}\0{draft.id}".encode()
    return hashlib.blake2b(name, digest_size=FORWARDED_KEY_BYTES).digest()
