"""Tokens: who may use the gateway."""

from __future__ import annotations

from typing import Any

from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import TokensQuery
from laneway.gateway.dashboard.view import View
from laneway.gateway.login import tokens
from laneway.gateway.login.access import SCOPES

SHOWN = 100


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    found = tokens.listed(view.engine, limit=SHOWN, after=view.query.after)
    now_us = view.reader.now_us()
    return {
        "tokens": [
            {
                "id": token_id,
                "token": token,
                "has_expired": token.expires_us is not None and token.expires_us <= now_us,
                "is_own": token_id == view.caller.token,
            }
            for token_id, token in found
        ],
        "next": found[-1][0] if len(found) == SHOWN else None,
        "scopes": [scope for scope in SCOPES if scope in view.caller.scopes],
    }


PAGE = Page(
    name="tokens",
    path="/tokens",
    title="Tokens",
    key="k",
    build=build,
    query=TokensQuery,
    scope="admin",
    is_whole=True,
)
