"""Lease messages, and settle them."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from laneway import arguments, codec, subscriptions, units
from laneway.delivery import (
    Wanted,
    check_subscriptions,
    lease_batch,
    priorities as priorities_of,
)
from laneway.engines.base import FullEngine
from laneway.errors import BacklogFull, BadMessage, UsageError
from laneway.gateway import receipts
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    MAX_WAIT,
    LeaseAnswer,
    LeaseBody,
    SettleAnswer,
    SettleBody,
    SettleOutcome,
    Span,
    TopicMessageBody,
)
from laneway.gateway.wire import delivery_of, draft_of, encode, moment_or_none
from laneway.message import Action, Batch, Draft, Settlement, releases

BAD_RECEIPT = "the receipt is not one of this namespace; it comes from the answer of a lease"


# Lease


async def lease(call: Call) -> Response:
    """
    Lease messages, and wait for the first one.

    If the client disconnects, its messages are released immediately. Settle each by its receipt
    before its deadline; otherwise it is delivered again.
    """
    body: LeaseBody = call.body
    seconds = arguments.seconds("lease", "wait", body.wait)
    if seconds > MAX_WAIT:
        raise Problem(
            "bad-request",
            f"body: wait: expected at most {MAX_WAIT:g} s, got {body.wait!r}",
            pointer="#/wait",
        )
    wanted = wanted_of(
        call, body.pool, body.topics, body.lease, priorities_of(body.priority, body.max_priority)
    )
    services, engine, caller = call.services, call.engine, call.caller
    await check_shared(call, wanted)
    key = await services.receipt_key(caller)
    batch = await services.run(lease_batch, engine, wanted, body.n, call.holder)
    if not batch.leases and wanted.topics is not None:
        await services.run(check_subscriptions, engine, wanted.topics)
    if not batch.leases and seconds > 0:
        waiting = services.long_polls.lease(wanted, body.n, seconds, caller, call.holder)
        batch = await call.request.while_there(waiting)
    if not caller.sees_all:
        batch = seen(call, batch)

    async def give_back() -> None:
        await services.run(engine.settle, releases(batch.leases))

    answer = LeaseAnswer(
        [delivery_of(each, key) for each in batch.leases], moment_or_none(batch.next_wake_us)
    )
    return Response(200, encode(answer), on_lost=give_back if batch.leases else None)


def wanted_of(
    call: Call,
    pool: str,
    named: list[str] | None,
    span: Span | None,
    priorities: tuple[int, int] | None,
) -> Wanted:
    """What a request leases, which the caller may see. Raises UsageError, Problem."""
    caller = call.caller
    topics = arguments.topics("lease", named)
    for topic in topics or ():
        caller.check_topic(topic)
    only = None
    if topics is None and not caller.sees_all:
        if not call.engine.capabilities.only:
            raise Problem(
                "bad-request",
                "body: topics: this store cannot lease by pattern; name the topics",
                pointer="#/topics",
            )
        only = caller.patterns
    return Wanted(
        arguments.pool("lease", pool),
        None if topics is None else tuple(topics),
        priorities,
        only,
        _microseconds("lease", "lease", span),
    )


async def check_shared(call: Call, wanted: Wanted) -> None:
    """Raise Problem if a topic is that of a subscription with one consumer: no lease gets it."""
    copies = [topic for topic in wanted.topics or () if subscriptions.is_copy(topic)]
    if copies:
        await call.services.run(_check_shared, call.engine, copies)


def _check_shared(engine: FullEngine, copies: Sequence[str]) -> None:
    for topic in copies:
        policy = engine.policy_of(topic)
        consumed = policy.consumed_by or topic
        if policy.pool == subscriptions.consumer_pool(consumed):
            path = "/".join(quote(part, safe="*") for part in subscriptions.split(consumed))
            raise Problem(
                "refused",
                f"lease: {topic} has one consumer, which leases it by GET"
                f" /v1/subscriptions/{path}/stream",
            )


def seen(call: Call, batch: Batch) -> Batch:
    """The messages of the caller's topics; the others, which shared a bucket, are released."""
    hidden = [each for each in batch.leases if not call.caller.covers(each.topic)]
    if not hidden:
        return batch
    call.services.long_polls.release(msgspec.structs.replace(batch, leases=hidden))
    left = [each for each in batch.leases if call.caller.covers(each.topic)]
    return msgspec.structs.replace(batch, leases=left)


def _microseconds(call: str, option: str, span: Span | None) -> int | None:
    seconds = arguments.seconds_or_none(call, option, span)
    return None if seconds is None else round(seconds * units.SECOND)


# Settle


class _Item(msgspec.Struct):
    """A settlement of a request that can be sent to the engine. `position`: in the request."""

    position: int
    handle: int
    fence: int
    settlement: Settlement | None = None
    extend_us: int = 0
    publish: list[Draft] = []


async def settle(call: Call) -> Response:
    """
    Settle leased messages, each by its action.

    Answered in the order of the request: a lease that had ended is `lost`. Settlements that publish
    messages are transactions of their own.
    """
    bodies: list[SettleBody] = call.body
    key = await call.services.receipt_key(call.caller)
    answers = [SettleAnswer(body.receipt, "lost", BAD_RECEIPT) for body in bodies]
    items = [
        _item(call.caller, position, body, numbers)
        for position, body in enumerate(bodies)
        if (numbers := receipts.read(key, body.receipt)) is not None
    ]
    for position, outcome, reason in await call.services.run(_settle, call.engine, items):
        answers[position].outcome, answers[position].reason = outcome, reason
    _note_credit(call, items, answers)
    return Response(200, encode(answers))


def _note_credit(call: Call, items: Sequence[_Item], answers: Sequence[SettleAnswer]) -> None:
    """Make room in the streams of these leases."""
    ended = []
    for item in items:
        outcome = answers[item.position].outcome
        if outcome == "extended":
            seconds = item.extend_us / units.SECOND
            call.services.credits.extended([(item.handle, item.fence)], seconds)
        elif outcome != "refused":
            ended.append((item.handle, item.fence))
    call.services.credits.settled(ended)


def _item(caller: Caller, position: int, body: SettleBody, numbers: tuple[int, int]) -> _Item:
    item = _Item(position, *numbers)
    try:
        delay_us = _microseconds("settle", "delay", body.delay)
        if body.action == "extend":
            if delay_us is None:
                raise UsageError("settle: expected delay with extend: for how long")
            item.extend_us = delay_us
            return item
        if body.publish:
            if body.action not in ("ack", "dead"):
                raise UsageError(f"settle: publish needs the action ack or dead, not {body.action}")
            item.publish = [_following(caller, message) for message in body.publish]
    except (UsageError, BadMessage) as error:
        raise Problem(
            "bad-request", f"settlement {position}: {error}", pointer=f"#/{position}"
        ) from error
    action: Action = body.action
    item.settlement = codec.checked(
        Settlement(*numbers, action, delay_us=delay_us, reason=_reason(body), error=body.error)
    )
    return item


def _following(caller: Caller, message: TopicMessageBody) -> Draft:
    caller.check_scope("publish")
    draft = draft_of(message.topic, message)
    caller.check_topic(draft.topic)
    return draft


def _reason(body: SettleBody) -> str | None:
    if body.reason is None and body.action == "dead":
        return "rejected by the consumer"
    return body.reason


Answer = tuple[int, "SettleOutcome", "str | None"]


def _settle(engine: FullEngine, items: Sequence[_Item]) -> list[Answer]:
    """The plain ones in one call, extensions in one for each duration, others separately."""
    answers: list[Answer] = []
    plain = [item for item in items if item.settlement is not None and not item.publish]
    if plain:
        settled = engine.settle([item.settlement for item in plain if item.settlement is not None])
        answers += [
            (item.position, answer, None) for item, answer in zip(plain, settled, strict=True)
        ]
    by_duration: dict[int, list[_Item]] = {}
    for item in items:
        if item.settlement is None:
            by_duration.setdefault(item.extend_us, []).append(item)
        elif item.publish:
            answers.append(_settle_with_messages(engine, item, item.settlement))
    for by_us, some in by_duration.items():
        extended = engine.extend([(item.handle, item.fence) for item in some], by_us)
        answers += [
            (item.position, "extended" if is_extended else "lost", None)
            for item, is_extended in zip(some, extended, strict=True)
        ]
    return answers


def _settle_with_messages(engine: FullEngine, item: _Item, settlement: Settlement) -> Answer:
    try:
        (answer,) = engine.settle([settlement], publish={0: item.publish})
    except (BacklogFull, BadMessage) as error:
        return item.position, "refused", str(error)
    return item.position, answer, None
