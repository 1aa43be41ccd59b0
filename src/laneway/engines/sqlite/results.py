"""
What is kept under a message's id after its end, and of how far its handler is; and messages that
wait for signals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway import headers as control
from laneway.engines.base import ABORT, ENDED, FLOW_HEADER, TASK_HEADER, UNTIL_SIGNALLED_US
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.shared.refusals import ended, explicit_due, nobody_follows, result_ttls_us
from laneway.engines.shared.states import DEAD, DELAYED
from laneway.engines.sqlite import messages, settling, views
from laneway.engines.sqlite.rows import Held
from laneway.message import Draft, Receipt, StoredResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.sqlite.rows import Lane, Row
    from laneway.engines.sqlite.transaction import Transaction
    from laneway.message import ProgressReport, Settlement

OUTCOME, PROGRESS = 0, 1
"""`kept.slot`."""

_dumps = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(dict[str, str]).decode


def keep(tx: Transaction, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
    """The outcomes of those that ended their messages."""
    rows = [
        (settlement.id, OUTCOME, tx.now + settlement.outcome_ttl_us, bytearray(settlement.outcome))
        for settlement, answer in zip(settlements, answers, strict=True)
        if settlement.outcome is not None
        and settlement.id is not None
        and answer in ("acked", "died")
    ]
    if rows:
        tx.insert("kept_write", rows)
        tx.changed_ids += [row[0] for row in rows]
        if tx.one("followers_any") is not None:
            for message_id, _, _, outcome in rows:
                _tell_followers(tx, message_id, bytes(outcome))


def _tell_followers(tx: Transaction, message_id: str, outcome: bytes) -> None:
    """Whoever waits for its end hears of it by a message."""
    found = tx.all("followers_of", message_id)
    if not found:
        return
    tx.run("followers_delete", message_id)
    said = {
        "id": message_id,
        "outcome": msgspec.Raw(outcome),
        "followers": [msgspec.Raw(body) for _, body in found],
    }
    tx.end_notices.append(_end_notice(found[0][0], said))


def _end_notice(topic: str, said: dict[str, Any]) -> Draft:
    return Draft(topic, _dumps(said), headers={TASK_HEADER: ENDED}, at_front=True, own=True)


def on_end(tx: Transaction, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
    """Have something told when a message ends; its outcome where it has. Raises UsageError."""
    outcome = read(tx, [message_id])[0].outcome
    if outcome is not None:
        return outcome
    row = views.find(tx, message_id, topic)
    if (
        row is None
        or row.state == DEAD
        or row.headers is None
        or result_ttls_us(_headers(row.headers)) is None
    ):
        raise nobody_follows(message_id)
    tx.run(
        "follower_write",
        messages.id_of(tx, row),
        messages.topic_of(row, tx.lane(row.lane)),
        follower,
    )
    return None


def report_progress(tx: Transaction, reports: Sequence[ProgressReport]) -> list[bool]:
    """Keep what is said of messages whose leases are held, or from outside."""
    held = {
        row[0]: Held(*row)
        for row in tx.all("leases_read", _dumps([each.fence for each in reports]))
    }
    answers: list[bool] = []
    for each in reports:
        lease = held.get(each.fence)
        is_held = not each.fence or (
            lease is not None and lease.mid == each.handle and not lease.gone
        )
        if is_held:
            tx.run("kept_write", each.id, PROGRESS, tx.now + each.ttl_us, each.body)
            tx.changed_ids.append(each.id)
        answers.append(is_held)
    return answers


def read(tx: Transaction, ids: Sequence[str]) -> list[StoredResult]:
    """What is kept of these."""
    found = [StoredResult() for _ in ids]
    for n, slot, body in tx.all("kept_read", _dumps(ids), tx.now):
        if slot == OUTCOME:
            found[n].outcome = body
        else:
            found[n].progress = body
    return found


def ends(tx: Transaction, row: Row, topic: str, status: str, reason: str | None = None) -> None:
    """
    A message comes to an end that no handler told; where it is wanted, that is kept, and told.
    """
    handler = tx.reported_by_handler
    is_told = (
        handler is not None and handler[0] == row.mid and status == "dead"
    )  # one that comes back may have expired meanwhile
    if row.headers is None or (is_told and handler is not None and handler[1]):
        return
    headers = _headers(row.headers)
    message_id, times = messages.id_of(tx, row), result_ttls_us(headers)
    outcome = ended(status, topic, row.published, reason)
    if FLOW_HEADER in headers and not is_told:
        tx.end_notices.append(
            _end_notice(
                topic,
                {"id": message_id, "outcome": msgspec.Raw(outcome), "body": msgspec.Raw(row.body)},
            )
        )
    if times is not None:
        tx.run("kept_write", message_id, OUTCOME, tx.now + times[1], outcome)
        tx.changed_ids.append(message_id)
        _tell_followers(tx, message_id, outcome)


def begins_again(tx: Transaction, row: Row) -> None:
    """A dead letter was put back: it has not ended after all."""
    if row.headers is not None and result_ttls_us(_headers(row.headers)) is not None:
        message_id = messages.id_of(tx, row)
        tx.run("kept_delete", message_id)
        tx.changed_ids.append(message_id)


# Taking one message out


def cancel(tx: Transaction, message_id: str, topic: str | None) -> str:
    """Cancel what waits, abort what is leased."""
    row = views.find(tx, message_id, topic)
    if row is None:
        return "unknown"
    if row.state == DEAD:
        return "dead"
    lane = tx.lane(row.lane)
    its_topic = messages.topic_of(row, lane)
    found = tx.one("lease_of_message", row.mid)
    ends(tx, row, its_topic, "cancelled")
    if found is None:
        messages.withdraw(tx, lane, row, its_topic)
        tx.place(lane)
        return "cancelled"
    held = Held(*found)
    tx.run("lease_delete", held.fence)
    tx.lane_cache.handed.pop(held.fence, None)
    settling.end_of_lease(tx, lane, held, tx.now - held.granted)
    messages.take_out(tx, lane, row, its_topic)
    tx.place(lane)
    tx.changed_ids.append(ABORT + messages.id_of(tx, row))
    return "aborted"


# Signals


def signal(tx: Transaction, draft: Draft) -> tuple[Receipt, Lane | None]:
    """
    One more signal for a message that waits for some; told again, or for one that does not wait, it
    is a duplicate.
    """
    message_id = draft.id or ""
    duplicate = Receipt(message_id, draft.topic, "duplicate")
    found = tx.one("ident_read", message_id, draft.topic)
    mid = found[0] if found is not None else parse_generated_id(tx.shard.nonce, message_id)
    row = messages.read(tx, mid) if mid is not None else None
    if row is None or row.state != DELAYED or row.since != UNTIL_SIGNALLED_US:
        return duplicate, None
    lane = tx.lane(row.lane)
    if messages.topic_of(row, lane) != draft.topic or not tx.run(
        "came_once", row.mid, draft.signal
    ):
        return duplicate, None
    needed = control.signals_needed(_headers(row.headers or "{}"))
    tx.run("part_insert", row.mid, row.parts + 1, draft.body)
    row.parts += 1
    if draft.signal and row.parts < needed:
        tx.run("message_signalled", row.parts, row.mid)
        lane.bytes += len(draft.body)
        tx.shard.bytes += len(draft.body)
        tx.touch(lane)
        return Receipt(message_id, draft.topic), None
    lane.bytes += len(draft.body)  # `end_waiting` takes away what is in the file now
    tx.shard.bytes += len(draft.body)
    messages.end_waiting(tx, lane, row)
    tx.run("came_delete", row.mid)
    row.since = explicit_due(draft, tx.now) or tx.now
    ttl = tx.policy(draft.topic).ttl
    row.expires = (
        row.published + draft.ttl_us
        if draft.ttl_us is not None
        else tx.now + ttl
        if ttl is not None
        else None
    )
    messages.begin_waiting(tx, lane, row)
    messages.save(tx, row)
    return Receipt(message_id, draft.topic), lane
