"""
Replay: send messages again that were sent to an endpoint.

A message of the delivery log becomes a new message, whose request has the `webhook-id` of the first
one, so that its receiver can recognize it. A dead letter is redriven instead: it still exists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from laneway import units
from laneway.admin import dead_letters
from laneway.arguments import whole
from laneway.engines.base import FullEngine
from laneway.errors import BadPolicy, Refused, UsageError
from laneway.message import Draft
from laneway.push import delivery_log
from laneway.push.delivery_log import Entry, Scan, span_us
from laneway.push.signature import REPLAY_HEADER

MOST = 1_000
SAMPLES = 10
STEP_SECONDS = 2.0
MOST_SPACING_US = 86_400 * units.SECOND

NOT_KEPT = (
    "its body is no longer kept: a dead letter can be replayed as long as the store has it, and a"
    ' message that was sent if the endpoint had log="all"'
)


class ReplayResult(msgspec.Struct, kw_only=True):
    """
    What a replay did, or would do.

    - `replayed`: new messages. `redriven`: dead letters that were put back into their topic.
    - `waiting`: messages that are not replayed, because they still wait or are being sent.
    - `not_kept`: messages whose bodies are not kept. `refused`: by the topic's backlog limit.
    - `ids`: of the first ten messages that are sent again.
    - `next`: for the argument `after`, which continues with older ones, or None at the end.
    """

    replayed: int = 0
    redriven: int = 0
    waiting: int = 0
    not_kept: int = 0
    refused: int = 0
    ids: list[str] = []
    next: str | None = None


def replay_one(engine: FullEngine, topic: str, message_id: str) -> str:
    """
    Send a message again. Returns the id of the new message, or a dead letter's own id.

    Raises Refused if it still waits, or if its body is no longer kept.
    """
    (state,) = engine.lookup(topic, [message_id]).values()
    if state == "dead" and engine.dead_redrive(topic, [message_id]):
        return message_id
    if state in ("waiting", "leased"):
        raise Refused(f"replay {message_id:.80}: it still waits in {topic}, or is being sent")
    for entry in map(delivery_log.read, Scan(engine, topic)):
        if entry.id == message_id and entry.message is not None:
            (receipt,) = engine.put([_draft(topic, entry)])
            if receipt.outcome == "refused":
                raise Refused(f"replay {message_id:.80}: {receipt.reason}")
            return receipt.id
    raise Refused(f"replay {message_id:.80}: {NOT_KEPT}")


def replay_many(
    engine: FullEngine,
    topic: str,
    *,
    since: float | None = None,
    until: float | None = None,
    result: str | None = None,
    limit: int = MOST,
    rate: float | str | None = None,
    dry_run: bool = False,
    after: str | None = None,
) -> ReplayResult:
    """
    Send the messages of a topic again that are in its delivery log, the newest `limit` of them, in
    the order in which they were sent.

    Arguments: `since`, `until`: of their last attempts, Unix seconds. `result`: only those whose
    last attempt was `"acked"`, or that are `"dead"`, or None for both. `rate`: messages a second,
    such as `"10/s"`, or None for all immediately. `dry_run`: only count. `after`: `next` of the
    call before.

    Raises UsageError, BadPolicy for a wrong rate.
    """
    whole("replay", "limit", limit, most=MOST)
    if result not in (None, "acked", "dead"):
        raise UsageError(f"replay: expected result to be acked or dead, got {result!r:.80}")
    span = span_us(since, until)
    return _replay(engine, topic, span, result, limit, _spacing_us(rate), dry_run, after, set())


def _replay(
    engine: FullEngine,
    topic: str,
    span: tuple[int, int | None],
    result: str | None,
    limit: int,
    spacing_us: int,
    dry_run: bool,
    after: str | None,
    seen: set[str],
) -> ReplayResult:
    """
    `replay_many`. `span`: `since` and `until`, µs. `seen`: messages whose last attempts were found
    by calls before; this one adds its own.
    """
    found, next_ = _found(Scan(engine, topic, span, after), limit, result, seen)
    answer = ReplayResult(next=next_)
    states = engine.lookup(topic, [each.id for each in found if each.message is None])
    drafts: list[Draft] = []
    dead: list[str] = []
    for entry in reversed(found):
        state = states.get(entry.id)
        if entry.message is not None:
            drafts.append(_draft(topic, entry))
        elif state == "dead" and result != "acked":
            dead.append(entry.id)
        elif state in ("waiting", "leased"):
            answer.waiting += 1
            continue
        else:
            answer.not_kept += 1
            continue
        if len(answer.ids) < SAMPLES:
            answer.ids.append(entry.id)
    answer.replayed, answer.redriven = len(drafts), len(dead)
    if not dry_run:
        if dead:
            answer.redriven = engine.dead_redrive(
                topic, dead, limit=len(dead), spacing_us=spacing_us
            )
        for n, draft in enumerate(drafts, len(dead)):
            draft.delay_us = n * spacing_us
        receipts = engine.put(drafts) if drafts else []
        answer.refused = sum(receipt.outcome == "refused" for receipt in receipts)
        answer.replayed -= answer.refused
    return answer


def steps(
    engine: FullEngine,
    topic: str,
    *,
    since: float | None,
    until: float | None,
    result: str | None,
    rate: float | str | None,
    pause: Callable[[float], object],
) -> Iterator[int]:
    """
    `replay_many` of all messages; yields how many each step sends again. With a rate, a step has
    about two seconds' messages, and the next one waits until they are due.
    """
    spacing_us = _spacing_us(rate)
    spacing = spacing_us / units.SECOND
    limit = max(1, min(MOST, round(STEP_SECONDS / spacing))) if spacing else MOST
    span = span_us(since, until)
    after: str | None = None
    seen: set[str] = set()
    while True:
        began = time.monotonic()
        done = _replay(engine, topic, span, result, limit, spacing_us, False, after, seen)
        yield done.replayed + done.redriven
        after = done.next
        if after is None:
            return
        due = began + (done.replayed + done.redriven) * spacing
        while (left := due - time.monotonic()) > 0:
            pause(min(left, 1.0))
            yield 0


def _found(
    scan: Scan, limit: int, result: str | None, seen: set[str]
) -> tuple[list[Entry], str | None]:
    """The last attempts of the messages to replay, the newest first, and the next cursor."""
    found: list[Entry] = []
    for entry in map(delivery_log.read, scan):
        message_id = entry.replay_of or entry.id
        if message_id in seen:
            continue
        seen.add(message_id)
        if result in (None, "acked" if entry.result == "acked" else "dead"):
            found.append(entry)
            if len(found) == limit:
                break
    return found, scan.next


def _draft(topic: str, entry: Entry) -> Draft:
    """The message of an attempt, as a new one."""
    message = entry.message
    assert message is not None
    headers = {**(message.headers or {}), REPLAY_HEADER: entry.replay_of or entry.id}
    return Draft(
        topic,
        message.body,
        key=message.key,
        priority=message.priority,
        headers=headers,
    )


def _spacing_us(rate: float | str | None) -> int:
    """The time between two messages, in microseconds. Raises BadPolicy."""
    spacing = dead_letters.spacing_us("replay", rate)
    if spacing > MOST_SPACING_US:
        raise BadPolicy(f"replay: rate: expected at least one message a day, got {rate!r:.80}")
    return spacing
