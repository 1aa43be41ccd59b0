"""A test request to an endpoint: now, past its rate, its backlog and its breaker."""

from __future__ import annotations

import asyncio
import os
import shlex
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from laneway import units
from laneway.engines.base import FullEngine
from laneway.errors import Refused, UsageError
from laneway.message import Lease
from laneway.push import breaker, payloads, secret_store, table
from laneway.push.address_guard import PROXY_VARIABLE, of_process
from laneway.push.answers import Answer, judge
from laneway.push.attempt import hidden, shown

if TYPE_CHECKING:
    from laneway.push.targets import Target

TESTS, TEST_SECONDS = 6, 60
"""The maximum number of tests of an endpoint within this number of seconds."""


class TrialResult(msgspec.Struct, kw_only=True):
    """
    The answer to a test request.

    - `ok`: whether a message would be acked. `text`: what the answer means.
    - `status`: the HTTP status, or 0 without an answer; `error` is the cause.
    - `milliseconds`: until the name was resolved, connected, encrypted, answered, ended.
    - `headers`, `body`: of the answer: up to 16 headers, and the first 4 KiB.
    - `request_headers`: what was sent.

    Signatures and values of secret headers are hidden in all of them, as in the delivery log.
    """

    ok: bool
    text: str
    status: int
    error: str | None
    milliseconds: dict[str, float]
    headers: dict[str, str]
    body: str
    request_headers: dict[str, str]


def send_test(engine: FullEngine, url: str, topic: str) -> TrialResult:
    """
    Send `{"type": "laneway.test"}` to a topic's endpoint, through the address guard. Blocks until
    it is answered.

    Raises Refused without an endpoint, or after six tests within a minute.
    """
    try:
        from laneway.push import targets  # noqa: PLC0415  # it needs the extra
    except ImportError as error:
        raise UsageError(
            'endpoint: a test needs the package pycurl; install it: pip install "laneway[push]"'
        ) from error
    record = _counted(engine, topic)
    target = targets.Target(b"", record, breaker.Window())
    targets.fill(target, topic, of_process(), secret_store.of_process(url))
    if target.problem is not None:
        raise Refused(f"endpoint {topic}: {target.problem}")
    with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
        return thread.submit(asyncio.run, _send(target, topic)).result()


def _counted(engine: FullEngine, topic: str) -> table.Record:
    """The endpoint's record, with this test counted."""
    now_us = table.now()

    def counted(record: table.Record) -> table.Record:
        since = now_us - TEST_SECONDS * units.SECOND
        tests = [each for each in record.tests_us if each > since]
        if len(tests) >= TESTS:
            raise Refused(
                f"endpoint {topic}: {TESTS} tests were sent within {TEST_SECONDS} s; try again in"
                f" {(tests[0] - since) // units.SECOND + 1} s"
            )
        return msgspec.structs.replace(record, tests_us=[*tests, now_us])

    return table.change(engine, topic, counted)


async def _send(target: Target, topic: str) -> TrialResult:
    from laneway.push.targets import destination_of, headers_for  # noqa: PLC0415  # as above
    from laneway.push.transport import Request, Transport  # noqa: PLC0415

    loop, record, now_us = asyncio.get_running_loop(), target.record, table.now()
    body = {"type": "laneway.test", "timestamp": datetime.now(UTC).isoformat(), "data": {}}
    lease = Lease(0, 0, f"test-{now_us}", topic, msgspec.json.encode(body), 0, published_us=now_us)
    content, content_type = payloads.of_lease(lease, record.content, record.template)
    headers = headers_for(target, lease, content, content_type, now_us)
    guard = of_process()
    transport = Transport(loop, guard.opened() if record.allow_private else guard)
    answered: asyncio.Future[Answer] = loop.create_future()
    try:
        transport.start(
            Request(
                destination=destination_of(target, os.environ.get(PROXY_VARIABLE) or None),
                headers=headers,
                body=content,
                finished=answered.set_result,
            )
        )
        answer = await answered
    finally:
        transport.close()
    return _result(answer, headers, topic, record)


def _still(topic: str, record: table.Record) -> str:
    """What keeps messages from an endpoint although it takes the test request."""
    quoted, state = shlex.quote(topic), table.state_of(record)
    if state == "disabled":
        return f"; it is disabled: `laneway endpoint enable {quoted}`"
    if state == "open":
        return f"; its breaker is still open: `laneway back-off {quoted} 0` sends a message now"
    if state == "busy":
        return f"; it asked for a pause before: `laneway back-off {quoted} 0` ends that"
    return ""


def _result(answer: Answer, headers: list[bytes], topic: str, record: table.Record) -> TrialResult:
    verdict = judge(
        answer, dead_on=record.dead_on, duplicate_ok=record.duplicate_ok, now=table.now() / 1e6
    )
    kept, content = hidden(answer, headers, record)
    names = ("resolved", "connected", "encrypted", "answered", "ended")
    ok = verdict.effect == "ack"
    return TrialResult(
        ok=ok,
        text=(verdict.text or f"HTTP {answer.status}") + (_still(topic, record) if ok else ""),
        status=answer.status,
        error=answer.error,
        milliseconds={
            name: each
            for name, each in zip(names, answer.milliseconds, strict=False)
            if answer.status or name != "answered"
        },
        headers=kept,
        body=content,
        request_headers=dict(shown(headers, record)),
    )
