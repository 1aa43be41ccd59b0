"""Names that engines give: lanes, messages, what a message merges by."""

from __future__ import annotations

import hashlib
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.message import Draft
    from laneway.policy import Resolved

PARTITION, BUCKET = "\x1f", "\x1e"
"""Signs in the names of lanes that are not simply topics; topics cannot hold them."""


def lane_name(
    policy: Resolved, topic: str, spread_by: bytes | None, number: int
) -> tuple[str, str]:
    """
    The lane of a message: its name, and what its policy is resolved for. `number`: the message's,
    where nothing else picks the partition.
    """
    if policy.buckets is not None and policy.buckets_pattern is not None:
        bucket = zlib.crc32(topic.encode()) % policy.buckets
        pattern = policy.buckets_pattern
        return f"{BUCKET}{pattern}{PARTITION}{bucket}", pattern
    if policy.partitions > 1:
        spread = zlib.crc32(spread_by) if spread_by is not None else number
        return f"{topic}{PARTITION}{spread % policy.partitions}", topic
    return topic, topic


def generated_id(nonce: str, number: int) -> str:
    """The id of a message that has none of its user's."""
    return f"{nonce}-{number:x}"


def parse_generated_id(nonce: str, message_id: str) -> int | None:
    """The number of the message that an id of our own making (`<nonce>-<number in hex>`) names."""
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
    What a message merges by: its topic (buckets hold several), and its key, else its body. Long
    ones by their digest.
    """
    mark, text = (b"k", draft.key.encode()) if draft.key is not None else (b"b", draft.body)
    text = draft.topic.encode() + b"\0" + text
    return mark + (text if len(text) <= 40 else hashlib.blake2b(text, digest_size=24).digest())
