"""The delivery log of endpoints, and replays of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from laneway import units
from laneway.gateway.call import Call
from laneway.gateway.endpoint_schema import (
    AttemptAnswer,
    AttemptsAnswer,
    AttemptsQuery,
    EndpointAttemptsQuery,
    ReplayAnswer,
    ReplayBody,
)
from laneway.gateway.http import Response
from laneway.gateway.problems import Problem
from laneway.gateway.routes.endpoints import endpoint_of
from laneway.gateway.routes.operations import begun
from laneway.gateway.wire import past_us
from laneway.policy import check_pattern
from laneway.push import replay as replays
from laneway.push.delivery_log import AttemptInfo, search
from laneway.push.table import now


def list_attempts(call: Call) -> AttemptsAnswer:
    """Search the delivery log, the newest attempts first; at most 10,000 are read for a page."""
    query: AttemptsQuery = call.query
    check_pattern(query.pattern)
    return _search(call, call.caller.narrowed(query.pattern), query)


def list_of_endpoint(call: Call) -> AttemptsAnswer:
    """List the attempts to send to an endpoint, the newest first."""
    return _search(call, [call.topic], call.query)


def _search(call: Call, patterns: Sequence[str], query: EndpointAttemptsQuery) -> AttemptsAnswer:
    if not patterns:
        return AttemptsAnswer([], None, False)
    page = search(
        call.engine,
        patterns,
        limit=query.limit,
        after=query.after,
        since=_seconds("since", query.since),
        until=_seconds("until", query.until),
        result=query.result,
        status=query.status,
        message_id=query.id,
        key=query.key,
    )
    answers = [_answer(each, shows_bodies=call.shows_bodies) for each in page.attempts]
    return AttemptsAnswer(answers, page.next, page.is_truncated)


def replay(call: Call) -> ReplayAnswer | Response:
    """
    Send messages of an endpoint again, with the same `webhook-id`: one by `id`, or those of a time.
    Dead letters are put back; a message that was sent is a new one, if the delivery log has it.
    In the background (202): all of a time, and `/v1/operations` shows the progress.
    """
    body: ReplayBody = call.body
    endpoint = endpoint_of(call)
    if body.background and body.id is None and not body.dry_run:
        if body.after is not None:
            raise Problem(
                "bad-request",
                "body: after: a replay in the background has no pages; give until instead",
                pointer="#/after",
            )
        return _in_background(call, body)
    if body.id is None:
        result = endpoint.replay_many(
            since=_seconds("since", body.since),
            until=_seconds("until", body.until),
            result=body.result,
            limit=body.limit,
            rate=body.rate,
            dry_run=body.dry_run,
            after=body.after,
        )
        return msgspec.convert(msgspec.to_builtins(result), ReplayAnswer)
    others = [name for name in body.__struct_fields__ if name not in ("id", "limit")]
    if given := [name for name in others if getattr(body, name)]:
        raise Problem(
            "bad-request",
            f"body: {given[0]}: a replay by id has no other fields",
            pointer=f"#/{given[0]}",
        )
    new = endpoint.replay(body.id)
    is_redriven = new == body.id
    return ReplayAnswer(
        replayed=int(not is_redriven),
        redriven=int(is_redriven),
        waiting=0,
        not_kept=0,
        refused=0,
        ids=[new],
        next=None,
    )


def _in_background(call: Call, body: ReplayBody) -> Response:
    topic = endpoint_of(call).topic
    since, until = _seconds("since", body.since), _seconds("until", body.until)
    # What is wrong is an error of this request.
    replays.replay_many(call.engine, topic, limit=1, rate=body.rate, dry_run=True)
    operation_id = call.services.operations.begin(
        call.caller,
        "replay",
        lambda engine, pause: replays.steps(
            engine,
            topic,
            since=since,
            until=until,
            result=body.result,
            rate=body.rate,
            pause=pause,
        ),
        topic=topic,
    )
    answer = ReplayAnswer(
        replayed=0,
        redriven=0,
        waiting=0,
        not_kept=0,
        refused=0,
        ids=[],
        next=None,
        operation=operation_id,
    )
    return begun(call, operation_id, answer)


def _seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    return max(past_us(name, text, now()), 0) / units.SECOND


def _answer(info: AttemptInfo, *, shows_bodies: bool) -> AttemptAnswer:
    fields = msgspec.structs.asdict(info)
    fields["at"] = datetime.fromtimestamp(info.at, UTC)
    fields["body"] = info.body if shows_bodies else None
    return AttemptAnswer(**fields)
