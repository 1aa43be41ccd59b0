"""Publish: one message, many, and a stream of lines."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence

import msgspec

from laneway import codec
from laneway.errors import BadMessage, LanewayError
from laneway.gateway import problems
from laneway.gateway.call import Call
from laneway.gateway.http import JSON_TYPES, NDJSON, Request, Response, Stream, decoded
from laneway.gateway.login.access import Caller
from laneway.gateway.schema import (
    MAX_BATCH,
    LineAnswer,
    MessageBody,
    Messages,
    ReceiptAnswer,
    TopicMessageBody,
)
from laneway.gateway.wire import draft_of, encode, message_of, set_sticky_id
from laneway.message import Draft, Receipt
from laneway.producing.producer import Producer

FORM = "application/x-www-form-urlencoded"
LINES = "application/x-ndjson"

STORED_LATER = ("buffered", "spooled")
PREFIX = b"x-laneway-"
OPTIONS = ("key", "priority", "delay", "at", "ttl", "id", "at_front", "cost")

_message = msgspec.json.Decoder(MessageBody)
_read_messages = msgspec.json.Decoder(Messages).decode
_line = msgspec.json.Decoder(TopicMessageBody)
_write_lines = msgspec.json.Encoder().encode_lines


async def publish(call: Call) -> Response:
    """
    Publish a message.

    The body is a JSON object; or the message's own body, with another content type or `raw=1`, and
    its options in `X-Laneway-…` headers. `Idempotency-Key` is the message's id, which stays known
    for 24 hours. 201: stored; 200: a duplicate; 202: the gateway's buffer or spool has it.
    """
    request, topic, is_raw = call.request, call.parameters["topic"], call.query.raw
    if not call.caller.sees_all:
        call.caller.check_topic(topic)
    content = await request.body(as_sent=is_raw)
    draft, message = read(request, topic, content, is_raw=is_raw)
    producer = call.services.runtime.producer
    if producer.middlewares:
        receipt = await _publish_in_middlewares(producer, draft, message)
    else:
        receipt = await producer.send(draft, 0)
        if receipt.outcome == "refused":
            receipt = await producer.await_room(draft, receipt, 0)
    return answer_of(receipt)


def read(
    request: Request, topic: str, content: bytes, *, is_raw: bool
) -> tuple[Draft, MessageBody]:
    """The message of a request with this body. Raises Problem, BadMessage."""
    raw: bytes | None = None
    if is_raw or request.content_type not in JSON_TYPES:
        message, raw = _raw_message(request, content)
    else:
        message = problems.read_json(_message, content, "body")
    draft = draft_of(topic, message, raw)
    if (sticky_id := request.text(b"idempotency-key")) is not None:
        set_sticky_id(draft, sticky_id)
    return draft, message


def answer_of(receipt: Receipt) -> Response:
    """The answer to a message that was published."""
    status = 200 if receipt.outcome == "duplicate" else 201
    if receipt.outcome in STORED_LATER:
        status = 202
    return Response(status, encode(_answer(receipt)))


async def _publish_in_middlewares(
    producer: Producer, draft: Draft, message: MessageBody
) -> Receipt:
    with producer.middlewares.around(message_of(draft, message)) as passage:
        changed = codec.draft(passage.message)
        changed.sticky = draft.sticky
        passage.receipt = await producer.apublish_draft(changed, 0)
    return passage.receipt


async def publish_many(call: Call) -> Response | Stream:
    """
    Publish many messages: a JSON list of at most 10,000, or lines of `application/x-ndjson`.

    A list is answered in its order, with 207 if a message was refused; if one is not valid, none is
    stored. Lines are stored as they arrive and answered one by one, including invalid ones.
    """
    request = call.request
    if request.content_type == LINES:
        return Stream(_lines(call), NDJSON)
    if request.content_type not in JSON_TYPES:
        raise problems.Problem(
            "unsupported-media",
            f"expected application/json or {LINES}, got {request.content_type:.80}; with curl:"
            f" -H 'content-type: {LINES}'",
        )
    content = await request.body()
    try:
        messages = _read_messages(content)
    except problems.DECODE_ERRORS as error:
        if "length <=" in str(error):
            raise problems.Problem(
                "too-large", f"the list has more than {MAX_BATCH:,} messages; send several lists"
            ) from None
        raise problems.invalid(error, Messages, "body", content) from None
    drafts = [_checked(call.caller, position, message) for position, message in enumerate(messages)]
    receipts = await _put(call, drafts, messages)
    is_refused = any(each.outcome in ("refused", "dropped") for each in receipts)
    return Response(207 if is_refused else 200, encode([_answer(each) for each in receipts]))


def _checked(caller: Caller, position: int, message: TopicMessageBody) -> Draft:
    try:
        draft = draft_of(message.topic, message)
    except BadMessage as error:
        raise problems.Problem(
            "bad-message", f"message {position}: {error}", pointer=f"#/{position}"
        ) from error
    if not caller.sees_all:
        caller.check_topic(draft.topic)
    return draft


async def _put(
    call: Call, drafts: list[Draft], messages: Sequence[TopicMessageBody]
) -> list[Receipt]:
    """Publish in batches, together with other requests'. Nobody waits for a full backlog."""
    producer = call.services.runtime.producer
    if producer.middlewares:
        whole = [message_of(*each) for each in zip(drafts, messages, strict=True)]
        put = functools.partial(producer.publish_many, whole, progress=False, timeout=0)
    else:
        put = functools.partial(producer.publish_drafts, drafts, timeout=0)
    return await call.services.run(put)


async def _lines(call: Call) -> AsyncIterator[bytes]:
    """The answers to the lines, as they arrive."""
    number, request = 0, call.request
    try:
        with call.services.ended_by(functools.partial(request.end_reading, 0.0)):
            async for lines in request.lines():
                for first in range(0, len(lines), MAX_BATCH):
                    part = lines[first : first + MAX_BATCH]
                    answers = await _answer_lines(call, number, part)
                    number += len(part)
                    yield _write_lines(answers)
    except problems.Problem as problem:  # a line that is too large, or does not end in time
        yield encode(LineAnswer(number + 1, problem=str(problem))) + b"\n"


async def _answer_lines(call: Call, number: int, lines: list[bytes]) -> list[LineAnswer]:
    """`number`: of lines before these."""
    answers = [LineAnswer(number + n) for n in range(1, len(lines) + 1)]
    stored, drafts, messages = _read_lines(call.caller, lines, answers)
    try:
        receipts = await _put(call, drafts, messages) if drafts else []
    except LanewayError as error:
        for answer in stored:
            answer.problem = str(error)
        return answers
    for answer, receipt in zip(stored, receipts, strict=True):
        answer.id, answer.outcome = receipt.id, receipt.outcome
        answer.joined, answer.reason = receipt.joined, receipt.reason
    return answers


_Lines = tuple[list[LineAnswer], list["Draft"], list[TopicMessageBody]]


def _read_lines(caller: Caller, lines: list[bytes], answers: list[LineAnswer]) -> _Lines:
    """
    The messages of valid lines, each with its answer; the answers of other lines get a problem.
    """
    try:
        messages = [_line.decode(line) for line in lines]
        drafts = [draft_of(message.topic, message) for message in messages]
    except (*problems.DECODE_ERRORS, BadMessage):
        return _read_each(caller, lines, answers)
    if not caller.sees_all:
        return _read_each(caller, lines, answers)
    return answers, drafts, messages


def _read_each(caller: Caller, lines: list[bytes], answers: list[LineAnswer]) -> _Lines:
    stored: list[LineAnswer] = []
    drafts: list[Draft] = []
    messages: list[TopicMessageBody] = []
    for line, answer in zip(lines, answers, strict=True):
        try:
            message = problems.read_json(_line, line, f"line {answer.line}")
            drafts.append(_checked(caller, answer.line, message))
        except (problems.Problem, LanewayError) as error:
            answer.problem = str(error)
        else:
            messages.append(message)
            stored.append(answer)
    return stored, drafts, messages


def _answer(receipt: Receipt) -> ReceiptAnswer:
    return ReceiptAnswer(receipt.id, receipt.outcome, receipt.joined, receipt.reason)


# A request whose body is the message's


def _raw_message(request: Request, content: bytes) -> tuple[MessageBody, bytes | None]:
    """
    The message with its options in headers, and its body, if that is not JSON.
    """
    if request.content_type == FORM:
        raise problems.Problem(
            "unsupported-media",
            f"the content type {FORM} is what curl sends by default; add -H 'content-type:"
            " application/json', or the body's own type",
        )
    options: dict[str, str] = {}
    headers: dict[str, str] = {}
    for key, encoded in request.headers:
        if key.startswith(PREFIX):
            name, value = key[len(PREFIX) :].decode("latin-1"), decoded(key, encoded)
            if name.startswith("header-"):
                headers[name[len("header-") :]] = value
            elif name.replace("-", "_") in OPTIONS:
                options[name.replace("-", "_")] = value
            else:
                known = ", ".join(f"x-laneway-{each}" for each in OPTIONS).replace("_", "-")
                raise problems.Problem(
                    "unknown-field",
                    f'unknown header "x-laneway-{name[:80]}"; available: {known},'
                    " x-laneway-header-NAME",
                )
    message = problems.converted(options, MessageBody, "headers x-laneway-…")
    message.headers = headers or None
    if request.content_type == JSON_TYPES[0] and not request.is_packed:
        message.body = msgspec.Raw(content)
        return message, None
    return message, content
