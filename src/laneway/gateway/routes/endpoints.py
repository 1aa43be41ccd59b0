"""Endpoints: where the messages of topics are pushed to."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.errors import Refused
from laneway.gateway.call import Call
from laneway.gateway.endpoint_schema import (
    DisableBody,
    EndpointAnswer,
    EndpointsAnswer,
    EndpointsQuery,
    RotateAnswer,
    RotateQuery,
    TestAnswer,
)
from laneway.gateway.problems import Problem
from laneway.gateway.schema import RemovedAnswer
from laneway.policy import check_pattern
from laneway.push import endpoint
from laneway.push.endpoint import Endpoint, EndpointInfo
from laneway.push.table import EnabledRecently

HIDDEN = "…"
"""Stands for a secret in the audit log."""


def list_endpoints(call: Call) -> EndpointsAnswer:
    """List endpoints by topic, with their condition."""
    query: EndpointsQuery = call.query
    check_pattern(query.pattern)
    found: dict[str, EndpointInfo] = {}
    following: list[str] = []
    for pattern in call.caller.narrowed(query.pattern):
        page, next_ = endpoint.list_endpoints(
            call.engine, pattern, limit=query.limit, after=query.after or "", state=query.state
        )
        found |= {info.topic: info for info in page}
        following += [next_] if next_ is not None else []
    topics = sorted(found)[: query.limit]
    is_cut = len(found) > len(topics)
    end = topics[-1] if is_cut else min(following, default=None)
    return EndpointsAnswer([_answer(found[topic]) for topic in topics], end)


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
    found = endpoint.set_endpoint(call.services.runtime, call.topic, fields, is_trusted=False)
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


def endpoint_of(call: Call) -> Endpoint:
    """The path's endpoint. Raises Problem if it does not exist."""
    topic = call.topic
    try:
        return endpoint.set_endpoint(call.services.runtime, topic, {})
    except Refused as error:
        raise Problem("not-found", f'the topic "{topic[:80]}" has no endpoint') from error


def _hide_secrets(body: dict[str, Any]) -> None:
    """Hide the secrets in a request's body: the audit log keeps it."""
    if "secret" in body:
        body["secret"] = HIDDEN
    if isinstance(headers := body.get("headers"), dict):
        body["headers"] = dict.fromkeys(headers, HIDDEN)


def _answer(info: EndpointInfo) -> EndpointAnswer:
    fields = msgspec.structs.asdict(info)
    for name in ("created", "changed", "failing_since", "busy_since"):
        if fields[name] is not None:
            fields[name] = datetime.fromtimestamp(fields[name], UTC)
    return EndpointAnswer(**fields)
