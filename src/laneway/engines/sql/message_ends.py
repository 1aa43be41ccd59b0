"""
The end of a message: store its outcome, and publish end notices for the jobs that wait for it.

A leaf: everything that ends messages calls it. What is stored can be read by `results`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from laneway.engines.base import ENDED, FLOW_HEADER, TASK_HEADER, result_name
from laneway.engines.shared.naming import generated_id
from laneway.engines.shared.refusals import ended, result_ttls_us
from laneway.engines.sql.rows import Row, read_headers, to_json
from laneway.engines.sql.transaction import Transaction
from laneway.headers import RESULT_TTL
from laneway.message import Draft, Settlement

OUTCOME, PROGRESS = 0, 1
"""`kept.slot`: what a row of `kept` holds."""


def store_outcomes(
    tx: Transaction, settlements: Sequence[Settlement], answers: Sequence[str]
) -> None:
    """Store the outcomes that handlers reported with the settlements that ended their messages."""
    nonce = tx.shard.nonce
    rows = [
        (
            settlement.id,
            settlement.topic,
            OUTCOME,
            tx.now + settlement.outcome_ttl_us,
            int(settlement.id == generated_id(nonce, settlement.handle)),
            bytearray(settlement.outcome),
        )
        for settlement, answer in zip(settlements, answers, strict=True)
        if settlement.outcome is not None
        and settlement.id is not None
        and settlement.topic is not None
        and answer in ("acked", "died")
    ]
    if rows:
        tx.run_rows("kept_write", rows)
        tx.shard.expect_wake(min(row[3] for row in rows))
        tx.changed_results += [result_name(message_id, topic) for message_id, topic, *_ in rows]
        for message_id, topic, *_, outcome in rows:
            _notify_followers(tx, message_id, topic, bytes(outcome))


def _asking_for_end(headers: str | None) -> dict[str, str] | None:
    """These headers if they may ask for a report of the message's end: others are not decoded."""
    if headers is not None and (FLOW_HEADER in headers or RESULT_TTL in headers):
        return read_headers(headers)
    return None


def message_ended(
    tx: Transaction, row: Row, topic: str, status: str, reason: str | None = None
) -> None:
    """
    A message ended by `status` ("expired", "dead" or "cancelled") and no handler reported it: store
    the outcome where its headers ask for that, and publish end notices.
    """
    reported = tx.reported_by_handler
    # Only a death is the handler's: a message that comes back may expire in the same call.
    is_reported = reported is not None and reported[0] == row.mid and status == "dead"
    headers = _asking_for_end(row.headers)
    if headers is None or (is_reported and reported is not None and reported[1]):
        return
    message_id, ttls = tx.id_of(row), result_ttls_us(headers)
    outcome = ended(status, topic, row.published, reason)
    if FLOW_HEADER in headers and not is_reported:
        tx.end_notices.append(
            _end_notice(
                topic,
                {"id": message_id, "outcome": msgspec.Raw(outcome), "body": msgspec.Raw(row.body)},
            )
        )
    if ttls is not None:
        key = (message_id, topic, OUTCOME)
        tx.kept.put(key, tx.now + ttls[1], int(row.id is None), outcome)
        tx.changed_results.append(result_name(message_id, topic))
        _notify_followers(tx, message_id, topic, outcome)


class _Finished(msgspec.Struct, array_like=True):
    """A message that was delivered at most once, as the report of its end needs it."""

    topic: str
    id: str | None
    published: int
    headers: str
    body: bytes


_finished = msgspec.json.Decoder(_Finished).decode


def keep_finished(tx: Transaction, row: Row, topic: str) -> None:
    """
    A message was deleted at its delivery, at most once: until its lease ends, keep what
    `finished_message_ended` reports, if its headers ask for an end. It is the message's note.
    """
    headers = _asking_for_end(row.headers) or {}
    if FLOW_HEADER in headers or result_ttls_us(headers) is not None:
        kept = _Finished(topic, row.id, row.published, row.headers or "", row.body)
        tx.notes.put((row.mid,), None, 0, to_json(kept).decode())


def finished_message_ended(
    tx: Transaction, mid: int, status: str | None, reason: str | None = None
) -> None:
    """
    The lease of a message that was delivered at most once has ended: as `message_ended`. `status`
    None: its handler has reported the end.
    """
    note = tx.notes.get(mid)
    if note is None:
        return
    tx.notes.delete(mid)
    if status is not None:
        kept = _finished(note[2])
        row = Row(mid, 0, 0, 0, 0, kept.published, None, None, kept.id, kept.headers, kept.body)
        message_ended(tx, row, kept.topic, status, reason)


def message_revived(tx: Transaction, row: Row, topic: str) -> None:
    """A dead letter was redriven: forget the outcome of its end."""
    if result_ttls_us(_asking_for_end(row.headers)) is not None:
        message_id = tx.id_of(row)
        tx.run("kept_delete", message_id, topic)
        tx.changed_results.append(result_name(message_id, topic))


def _notify_followers(tx: Transaction, message_id: str, topic: str, outcome: bytes) -> None:
    """Publish one end notice for all that follow the message."""
    followers = tx.all("followers_of", message_id, topic) if tx.has_followers else ()
    if not followers:
        return
    tx.run("followers_delete", message_id, topic)
    content = {
        "id": message_id,
        "outcome": msgspec.Raw(outcome),
        "followers": [msgspec.Raw(body) for (body,) in followers],
    }
    tx.end_notices.append(_end_notice(topic, content))


def is_end_notice(headers: str | None) -> bool:
    """Whether a message with these headers (JSON) reports the end of another one."""
    return (
        headers is not None and ENDED in headers and read_headers(headers).get(TASK_HEADER) == ENDED
    )


def _end_notice(topic: str, content: dict[str, Any]) -> Draft:
    return Draft(topic, to_json(content), headers={TASK_HEADER: ENDED}, at_front=True, own=True)
