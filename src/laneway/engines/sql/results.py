"""
What other programs read and wait for by a message's topic and id: outcomes, progress, followers,
signals.

Outcomes are stored by `endings`, when messages end.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from laneway import headers as control
from laneway.engines.base import UNTIL_SIGNALLED_US, result_name
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.shared.refusals import (
    explicit_due,
    nobody_follows,
    result_ttls_us,
)
from laneway.engines.shared.states import DEAD, DELAYED
from laneway.engines.sql import leases, messages
from laneway.engines.sql.message_ends import OUTCOME, PROGRESS
from laneway.engines.sql.rows import Lane, Row, read_headers
from laneway.engines.sql.transaction import Transaction
from laneway.message import Draft, ProgressReport, Receipt, StoredResult


def read(tx: Transaction, ids: Sequence[tuple[str, str | None]]) -> list[StoredResult]:
    """The outcome and the progress that are stored of each of these messages: (id, topic)."""
    named = with_topics(tx, ids)
    found = _stored(tx, named)
    return [
        StoredResult(found.get((*each, OUTCOME)), found.get((*each, PROGRESS))) for each in named
    ]


def _stored(
    tx: Transaction, messages: Sequence[tuple[str, str]]
) -> dict[tuple[str, str, int], bytes]:
    return {
        (message_id, topic, slot): body
        for message_id, topic, slot, until, body in (
            tx.all_rows("kept_read", messages) if messages else ()
        )
        if until > tx.now
    }


def with_topics(tx: Transaction, ids: Sequence[tuple[str, str | None]]) -> list[tuple[str, str]]:
    """Add the topics of results that are stored under generated ids, or ""."""
    unknown = [message_id for message_id, topic in ids if topic is None]
    found = dict(tx.all("kept_topics", tx.array(unknown))) if unknown else {}
    return [
        (message_id, found.get(message_id, "") if topic is None else topic)
        for message_id, topic in ids
    ]


def report_progress(tx: Transaction, reports: Sequence[ProgressReport]) -> list[bool]:
    """
    Store progress reports; answers which were stored. One that names a lease is stored only while
    that lease is held, one with `before` only if that is stored.
    """
    held = leases.by_fence(tx, (report.fence for report in reports))
    stored = _stored(
        tx, [(report.id, report.topic) for report in reports if report.before is not UNSET]
    )
    answers: list[bool] = []
    for report in reports:
        may_store = not report.fence or leases.is_held(held.get(report.fence), report.handle)
        key = (report.id, report.topic, PROGRESS)
        if report.before is not UNSET:
            may_store = may_store and stored.get(key) == report.before
        if may_store:
            tx.kept.put(key, tx.now + report.ttl_us, 0, report.body)
            stored[key] = report.body
            tx.changed_results.append(result_name(report.id, report.topic))
        answers.append(may_store)
    return answers


def on_end(tx: Transaction, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
    """
    Store a follower, which the end notice of the message will carry. Returns the outcome if the
    message has already ended, else None.

    Raises UsageError if the message is not there, or its outcome will not be stored.
    """
    outcome = read(tx, [(message_id, topic)])[0].outcome
    if outcome is not None:
        return outcome
    row = messages.find(tx, message_id, topic)
    if (
        row is None
        or row.state == DEAD
        or row.headers is None
        or result_ttls_us(read_headers(row.headers)) is None
    ):
        raise nobody_follows(message_id)
    tx.run(
        "follower_write",
        tx.id_of(row),
        messages.topic_of(row, tx.lane(row.lane)),
        follower,
    )
    return None


# Signals


def signal(tx: Transaction, draft: Draft) -> tuple[Receipt, Lane | None]:
    """
    Deliver a signal to a message that waits for some; the last one makes it due, and its lane is
    returned.

    A signal that came before, or whose message does not wait for one, is a duplicate.
    """
    message_id = draft.id or ""
    duplicate = Receipt(message_id, draft.topic, "duplicate")
    row = _blocked_message(tx, message_id, draft.topic)
    if row is None:
        return duplicate, None
    lane = tx.lane(row.lane)
    came = (row.mid, draft.signal)
    if messages.topic_of(row, lane) != draft.topic or tx.signals.get(*came) is not None:
        return duplicate, None
    tx.signals.put(came)
    row.parts += 1
    tx.parts.add(row.mid, row.parts, draft.body)
    messages.resize(tx, lane, row, len(draft.body))
    if draft.signal and row.parts < control.signals_needed(read_headers(row.headers or "{}")):
        tx.messages.save(row)
        tx.touch(lane)
        return Receipt(message_id, draft.topic), None
    _unblock(tx, lane, row, draft)
    return Receipt(message_id, draft.topic), lane


def _blocked_message(tx: Transaction, message_id: str, topic: str) -> Row | None:
    known = tx.idents.get(message_id, topic)
    mid = known[0] if known is not None else parse_generated_id(tx.shard.nonce, message_id)
    row = tx.messages.get(mid) if mid is not None else None
    if row is None or row.state != DELAYED or row.since != UNTIL_SIGNALLED_US:
        return None
    return row


def _unblock(tx: Transaction, lane: Lane, row: Row, draft: Draft) -> None:
    """The message has all its signals: it is due, and its ttl begins."""
    messages.end_waiting(tx, lane, row)
    tx.run("came_delete", row.mid)
    row.since = explicit_due(draft, tx.now) or tx.now
    # A ttl of its own counts from the publish, the policy's from now.
    ttl_begins = tx.now if draft.ttl_us is None else row.published
    row.expires = tx.policy(draft.topic).expires_us(draft.ttl_us, ttl_begins)
    messages.begin_waiting(tx, lane, row)
    tx.messages.save(row)
