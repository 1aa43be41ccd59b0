"""Tokens and the audit log."""

from __future__ import annotations

from typing import Any

from laneway.admin import audit_log
from laneway.admin.policies import operator_fields
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.login import tokens
from laneway.gateway.problems import Problem
from laneway.gateway.routes.policies import change_answer
from laneway.gateway.schema import (
    AuditAnswer,
    AuditQuery,
    ChangeAnswer,
    CreatedTokenAnswer,
    ListQuery,
    TokenAnswer,
    TokenBody,
    TokensAnswer,
)
from laneway.gateway.wire import encode, moment, moment_or_none, past_us


def list_tokens(call: Call) -> TokensAnswer:
    """List the tokens, without their secrets."""
    query: ListQuery = call.query
    page = tokens.listed(call.engine, limit=query.limit, after=query.after or "")
    return TokensAnswer(
        [_answer(token_id, token) for token_id, token in page],
        page[-1][0] if len(page) == query.limit else None,
    )


def create_token(call: Call) -> Response:
    """
    Create a token. The answer has its text, which is not shown again.

    It can have no scope that the caller lacks.
    """
    body: TokenBody = call.body
    for scope in body.scopes:
        call.caller.check_scope(scope)
    token_id, text, token = tokens.create(
        call.engine,
        body.name,
        body.scopes,
        topics=body.topics,
        expires=body.expires,
        rate=body.rate,
    )
    answer = CreatedTokenAnswer(token=text, **_fields(token_id, token))
    return Response(201, encode(answer))


def revoke_token(call: Call) -> TokenAnswer:
    """Revoke a token. Gateways refuse it within a second."""
    token_id = call.parameters["id"]
    (record,) = call.engine.record_read("token", [token_id])
    if record is None:
        raise Problem("not-found", f'there is no token with the id "{token_id[:80]}"')
    return _answer(token_id, tokens.revoke(call.engine, token_id))


def _answer(token_id: str, token: tokens.Token) -> TokenAnswer:
    return TokenAnswer(**_fields(token_id, token))


def _fields(token_id: str, token: tokens.Token) -> dict[str, Any]:
    return {
        "id": token_id,
        "name": token.name,
        "scopes": token.scopes,
        "topics": token.topics,
        "rate": token.rate,
        "created": moment(token.created_us),
        "expires": moment_or_none(token.expires_us),
        "last_used": moment_or_none(token.last_used_us),
    }


# Audit


def list_changes(call: Call) -> AuditAnswer:
    """
    List the changes through the API, the newest first: the last 10,000, for 90 days.
    """
    query: AuditQuery = call.query
    found = audit_log.newest(call.engine, query.limit, query.before)
    is_full = len(found) == query.limit and found[-1][0] > 1
    if query.since is not None:
        since_us = past_us("since", query.since, call.engine.time_us())
        is_full = is_full and found[-1][1].at_us >= since_us
        found = [(number, change) for number, change in found if change.at_us >= since_us]
    return AuditAnswer(
        [
            ChangeAnswer(
                number=number,
                at=moment(change.at_us),
                who=change.who,
                token=change.token,
                address=change.address,
                method=change.method,
                path=change.path,
                request=change.request,
                undo=change.undo,
            )
            for number, change in found
        ],
        found[-1][0] if is_full else None,
    )


def undo_change(call: Call) -> Response:
    """Give a policy the operator's fields that it had before a change."""
    number = call.parameters["number"]
    is_number = number.isascii() and number.isdigit() and len(number) <= audit_log.MAX_DIGITS
    change = audit_log.find(call.engine, int(number)) if is_number else None
    if change is None:
        raise Problem("not-found", f'there is no change with the number "{number[:20]}"')
    if change.pattern is None or change.undo is None:
        raise Problem("conflict", f"change {number} is not about a policy; it cannot be undone")
    before = operator_fields(call.engine, change.pattern)
    fields = {**dict.fromkeys(before), **change.undo}
    after = call.engine.policy_set("operator", change.pattern, fields) if fields else {}
    return change_answer(change.pattern, before, after)
