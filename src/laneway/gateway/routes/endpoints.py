"""Endpoints: where the messages of topics are pushed to, their delivery log, and replays."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway import units
from laneway.admin import audit_log
from laneway.errors import LanewayError, Refused
from laneway.gateway.call import Call
from laneway.gateway.endpoint_schema import (
    AttemptAnswer,
    AttemptsAnswer,
    AttemptsQuery,
    DisableBody,
    EndpointAnswer,
    EndpointAttemptsQuery,
    EndpointLineAnswer,
    EndpointsAnswer,
    EndpointsQuery,
    ReplayAnswer,
    ReplayBody,
    RotateAnswer,
    RotateQuery,
    TestAnswer,
)
from laneway.gateway.http import NDJSON, Response, Stream
from laneway.gateway.problems import Problem, read_json
from laneway.gateway.routes.operations import begun
from laneway.gateway.schema import RemovedAnswer
from laneway.gateway.wire import encode, past_us
from laneway.policy import check_pattern, check_topic
from laneway.push import endpoint as endpoints, replay as replays
from laneway.push.delivery_log import AttemptInfo, attempts
from laneway.push.table import EnabledRecently, now

HIDDEN = "…"
"""Stands for a secret in the audit log."""

MOST = 1000
"""Lines that are set together."""

Fields = dict[str, Any]

_fields = msgspec.json.Decoder(Fields)
_write_lines = msgspec.json.Encoder().encode_lines


def list_endpoints(call: Call) -> EndpointsAnswer:
    """List endpoints by topic, with their condition."""
    query: EndpointsQuery = call.query
    check_pattern(query.pattern)
    page, following = endpoints.list_endpoints(
        call.engine,
        call.caller.narrowed(query.pattern),
        limit=query.limit,
        after=query.after or "",
        state=query.state,
    )
    return EndpointsAnswer([_answer(info) for info in page], following)


def show_endpoint(call: Call) -> EndpointAnswer:
    """Show a topic's endpoint, without its secrets."""
    return _answer(endpoint_of(call).info())


def set_endpoint(call: Call) -> EndpointAnswer:
    """
    Create or change a topic's endpoint: the settings of docs/push.md. Those that are left out stay,
    null resets one. A new endpoint gets a secret, which the answer shows once.

    Access to private addresses is given on the command line only.
    """
    fields: dict[str, Any] = dict(call.body)
    _hide_secrets(call.body)
    check_fields(fields)
    found = endpoints.set_endpoint(call.services.runtime, call.topic, fields, is_trusted=False)
    answer = _answer(found.info())
    answer.secret = found.secret
    return answer


def check_fields(fields: dict[str, Any]) -> None:
    """Raise Problem unless a request may set these."""
    if not fields:
        raise Problem("bad-request", "expected settings of the endpoint, such as url; got none")
    if fields.get("allow_private"):
        raise Problem(
            "forbidden",
            "allow_private is set by code and by `laneway endpoint set` only; or name the address"
            " where the sender runs: `laneway push --allow`",
            pointer="#/allow_private",
        )


def remove_endpoint(call: Call) -> RemovedAnswer:
    """Remove a topic's endpoint. Its messages stay, and wait."""
    return RemovedAnswer(endpoint_of(call).remove())


def rotate(call: Call) -> RotateAnswer:
    """Create a new secret, which the answer shows once. The old ones sign for 24 hours more."""
    query: RotateQuery = call.query
    return RotateAnswer(endpoint_of(call).rotate("ed25519" if query.ed25519 else None))


def disable(call: Call) -> EndpointAnswer:
    """Send nothing more to an endpoint: its topic's messages wait."""
    body: DisableBody = call.body
    found = endpoint_of(call)
    found.disable(body.reason)
    return _answer(found.info())


def enable(call: Call) -> EndpointAnswer:
    """Send to an endpoint again: one message as a probe, then the others."""
    found = endpoint_of(call)
    try:
        found.enable()
    except EnabledRecently as error:
        headers = (("retry-after", str(int(error.retry_after) + 1)),)
        raise Problem("refused", str(error), headers=headers) from error
    return _answer(found.info())


def test(call: Call) -> TestAnswer:
    """Send a test request now, past rate and breaker, through the address guard; 6 a minute."""
    answer = msgspec.convert(msgspec.to_builtins(endpoint_of(call).test()), TestAnswer)
    if not call.shows_bodies:
        answer.body = None
    return answer


def endpoint_of(call: Call) -> endpoints.Endpoint:
    """The path's endpoint. Raises Problem if it does not exist."""
    topic = call.topic
    try:
        return endpoints.set_endpoint(call.services.runtime, topic, {})
    except Refused as error:
        raise Problem("not-found", f'the topic "{topic[:80]}" has no endpoint') from error


def _hide_secrets(body: dict[str, Any]) -> None:
    """Hide the secrets in a request's body: the audit log keeps it."""
    if "secret" in body:
        body["secret"] = HIDDEN
    if isinstance(headers := body.get("headers"), dict):
        body["headers"] = dict.fromkeys(headers, HIDDEN)


def _answer(info: endpoints.EndpointInfo) -> EndpointAnswer:
    fields = msgspec.structs.asdict(info)
    for name in ("created", "changed", "failing_since", "busy_since"):
        if fields[name] is not None:
            fields[name] = datetime.fromtimestamp(fields[name], UTC)
    return EndpointAnswer(**fields)


# Many endpoints in one request: a stream of lines


async def set_endpoints(call: Call) -> Stream:
    """
    Create or change many endpoints: lines of `application/x-ndjson`, each with a `topic` and the
    settings as for one endpoint.

    Lines are set as they arrive and answered one by one; a wrong one does not hurt the others.
    """
    expected = NDJSON.decode()
    if call.request.content_type != expected:
        raise Problem(
            "unsupported-media",
            f"expected {expected}, got {call.request.content_type:.80}; with curl:"
            f" -H 'content-type: {expected}' --data-binary @file",
        )
    return Stream(_answers(call), NDJSON)


async def _answers(call: Call) -> AsyncIterator[bytes]:
    services, request = call.services, call.request
    number = count = 0
    try:
        with services.ended_by(functools.partial(request.end_reading, 0.0)):
            async for lines in request.lines():
                for first in range(0, len(lines), MOST):
                    part = lines[first : first + MOST]
                    answers = await services.run(_set, call, number, part)
                    number += len(part)
                    count += sum(answer.problem is None for answer in answers)
                    yield _write_lines(answers)
    except Problem as problem:  # a line that is too large, or does not end in time
        yield encode(EndpointLineAnswer(number + 1, problem=str(problem))) + b"\n"
    finally:
        if count:
            content = encode(f"{count} endpoints by lines")
            stored = services.threads.submit(audit_log.append, call.engine, call.change(content))
            # It is in the log when the answer ends, even if the client has gone.
            await asyncio.shield(asyncio.wrap_future(stored))


def _set(call: Call, number: int, lines: list[bytes]) -> list[EndpointLineAnswer]:
    """Set a part of the lines. `number`: of lines before them."""
    runtime = call.services.runtime
    answers = [EndpointLineAnswer(number + n) for n in range(1, len(lines) + 1)]
    valid: list[tuple[EndpointLineAnswer, str, Fields]] = []
    for answer, line in zip(answers, lines, strict=True):
        try:
            valid.append((answer, *_read_line(call, line, answer.line)))
        except (Problem, LanewayError) as error:
            answer.problem = str(error)
    by_topic: dict[str, endpoints.Endpoint] = {}
    if len({topic for _, topic, _ in valid}) == len(valid):
        try:
            changes = [(topic, fields) for _, topic, fields in valid]
            for each in endpoints.set_each(runtime, changes, is_trusted=False):
                by_topic[each.topic] = each  # has a new secret, which is shown once
        except LanewayError:
            pass  # at least one is invalid: setting them one by one below reports which
    for answer, topic, fields in valid:
        try:
            endpoint = by_topic.get(topic) or endpoints.set_endpoint(
                runtime, topic, fields, is_trusted=False
            )
        except LanewayError as error:
            answer.problem = str(error)
        else:
            answer.topic, answer.secret = topic, endpoint.secret
    return answers


def _read_line(call: Call, line: bytes, number: int) -> tuple[str, Fields]:
    fields = read_json(_fields, line, f"line {number}")
    topic = fields.pop("topic", None)
    if not isinstance(topic, str):
        raise Problem(
            "bad-request", f"line {number}: expected topic to be a name, got {topic!r:.80}"
        )
    call.caller.check_topic(check_topic(topic))
    check_fields(fields)
    return topic, fields


# The delivery log, and replays of its messages


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
    page = attempts(
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
    answers = [_attempt(each, shows_bodies=call.shows_bodies) for each in page.attempts]
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


def _attempt(info: AttemptInfo, *, shows_bodies: bool) -> AttemptAnswer:
    fields = msgspec.structs.asdict(info)
    fields["at"] = datetime.fromtimestamp(info.at, UTC)
    fields["body"] = info.body if shows_bodies else None
    return AttemptAnswer(**fields)
