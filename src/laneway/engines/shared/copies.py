"""
The copies of a message for the subscriptions of its topic.

An engine puts them in the same atomic step as the message, on its shard. Each is a message of the
subscription's topic (`orders#audit`), whose own policy decides whether it merges, expires or waits
for room.

For example, `orders` has the subscriptions `audit`, which takes every message, and `mail`, which
takes those whose header `kind` is `paid`. A message without headers is number 1 in `orders`, and
its copy is number 2 in `orders#audit`. The next message has the header: it is number 3, its copies
are 4 in `orders#audit` and 5 in `orders#mail`. If `orders#mail` has `max_backlog=1` and a message
waits there, the next such message is refused: none of the three is stored.

Why this is correct. Whether each copy has room is asked before the message or any copy is stored,
and after that no copy is refused, so the outcome holds for all of them. Message and copies are
numbered one after the other in one call, so their order is the same in every topic.
"""

from __future__ import annotations

from collections.abc import Sequence

from laneway import headers as control
from laneway.message import Draft, Receipt
from laneway.policy import Resolved
from laneway.subscriptions import SEPARATOR

MOST_AT_ONCE = 1_000
"""
Most messages that one call puts where messages have copies, so that many subscriptions do not keep
a shard from others for long. One message with its copies is never divided.
"""

NOT_COPIED = (control.RESULT_TTL, control.SIGNALS, control.FLOW)
"""Headers that have an effect once only: a copy stores no result, and waits for no signals."""


def is_copied(draft: Draft, policy: Resolved) -> bool:
    """Whether a message may have copies, or is not stored itself. Signals and Laneway's own do."""
    return policy.is_copied and draft.signal is None and not draft.own


def copies_of(draft: Draft, policy: Resolved) -> list[Draft]:
    """The copies for the subscriptions that take the message, by the subscriptions' names."""
    if not is_copied(draft, policy):
        return []
    headers = draft.headers
    kept = headers
    if headers is not None and any(name in headers for name in NOT_COPIED):
        kept = {name: text for name, text in headers.items() if name not in NOT_COPIED}
    start = draft.topic + SEPARATOR
    return [
        Draft(
            start + subscription.name,
            draft.body,
            draft.key,
            draft.priority,
            draft.delay_us,
            draft.at_us,
            draft.ttl_us,
            draft.id,
            kept,
            draft.at_front,
            draft.sticky,
        )
        for subscription in policy.subscriptions
        if subscription.takes(headers)
    ]


def count_copies(draft: Draft, policy: Resolved) -> int:
    """How many copies `copies_of` returns."""
    if not is_copied(draft, policy):
        return 0
    return sum(subscription.takes(draft.headers) for subscription in policy.subscriptions)


def expiries(policy: Resolved) -> dict[str, int]:
    """After how many microseconds subscriptions of a topic are unused, by name."""
    return {
        subscription.name: subscription.expires_us
        for subscription in policy.subscriptions
        if subscription.expires_us is not None
    }


def receipt_of_copies(draft: Draft, receipts: Sequence[Receipt]) -> Receipt:
    """
    The receipt of a message that only subscriptions get: accepted if one of its copies is. Without
    an id of its own it has the id of that copy.
    """
    for outcome in ("accepted", "merged", "duplicate"):
        for receipt in receipts:
            if receipt.outcome == outcome:
                return Receipt(receipt.id, draft.topic, receipt.outcome, receipt.joined)
    return Receipt(draft.id or "", draft.topic, "unrouted")


def count_within(counts: Sequence[int], most: int) -> int:
    """How many messages, each with so many copies, one call takes: at least one."""
    total = 0
    for number, copies in enumerate(counts):
        total += 1 + copies
        if total > most and number:
            return number
    return len(counts)
