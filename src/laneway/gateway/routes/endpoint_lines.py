"""Many endpoints in one request: a stream of lines."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from laneway.admin import audit_log
from laneway.errors import LanewayError
from laneway.gateway.call import Call
from laneway.gateway.endpoint_schema import EndpointLineAnswer
from laneway.gateway.http import NDJSON, Stream
from laneway.gateway.problems import DECODE_ERRORS, Problem, invalid
from laneway.gateway.routes.endpoints import check_fields
from laneway.gateway.wire import encode
from laneway.policy import check_topic
from laneway.push.endpoint import Endpoint, set_each, set_endpoint

MOST = 1000
"""Lines that are set together."""

Fields = dict[str, Any]

_read = msgspec.json.Decoder(Fields).decode
_write_lines = msgspec.json.Encoder().encode_lines


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
    by_topic: dict[str, Endpoint] = {}
    if len({topic for _, topic, _ in valid}) == len(valid):
        try:
            changes = [(topic, fields) for _, topic, fields in valid]
            for each in set_each(runtime, changes, is_trusted=False):
                by_topic[each.topic] = each  # has a new secret, which is shown once
        except LanewayError:
            pass  # at least one is invalid: setting them one by one below reports which
    for answer, topic, fields in valid:
        try:
            endpoint = by_topic.get(topic) or set_endpoint(runtime, topic, fields, is_trusted=False)
        except LanewayError as error:
            answer.problem = str(error)
        else:
            answer.topic, answer.secret = topic, endpoint.secret
    return answers


def _read_line(call: Call, line: bytes, number: int) -> tuple[str, Fields]:
    try:
        fields = _read(line)
    except DECODE_ERRORS as error:
        raise invalid(error, Fields, f"line {number}", line) from None
    topic = fields.pop("topic", None)
    if not isinstance(topic, str):
        raise Problem(
            "bad-request", f"line {number}: expected topic to be a name, got {topic!r:.80}"
        )
    call.caller.check_topic(check_topic(topic))
    check_fields(fields)
    return topic, fields
