"""Who may do what: scopes, topic patterns, and the rule for a gateway without tokens."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from laneway.engines.shared.listing import common_prefix
from laneway.gateway.http import Request
from laneway.gateway.login import origins
from laneway.gateway.problems import Problem
from laneway.policy import is_pattern, matches
from laneway.subscriptions import base_of

SESSION_SECONDS = 12 * 3600
"""How long a cookie is valid."""

LOGIN_SECONDS = 7 * 86_400
"""How long after the login a cookie is valid at most."""


class Session(msgspec.Struct, frozen=True):
    """
    A browser's session. `token`: the id of its token. `login_s`, `renewed_s`: Unix seconds.

    `csrf`: what forms send as `csrf`.
    """

    id: str
    token: str
    login_s: int
    renewed_s: int
    csrf: str

    @property
    def expires_s(self) -> int:
        """When the cookie ends."""
        return min(self.renewed_s + SESSION_SECONDS, self.login_s + LOGIN_SECONDS)


Scope = Literal["publish", "consume", "read", "bodies", "operate", "endpoints", "admin"]
"""
What a token allows.

`publish`: publish. `consume`: lease and settle. `read`: topics, messages without their bodies,
policies, dead letters, workers. `bodies`: bodies of messages. `operate`: change policies, pause,
purge, redrive. `endpoints`: endpoints of push. `admin`: tokens and the audit log.
"""

SCOPES: tuple[Scope, ...] = get_args(Scope)


class Caller(msgspec.Struct, frozen=True):
    """
    Who sent a request. `patterns`: the topics that it may see and change. `token`: its id, or None
    without a token. `session`: that of a logged-in browser, or None if the request had the token
    itself or needed none.
    """

    name: str
    scopes: frozenset[str]
    patterns: tuple[str, ...] = ("*",)
    token: str | None = None
    session: Session | None = None

    @property
    def csrf(self) -> str:
        """What each form of a page sends as its field `csrf`; "" where none is needed."""
        return "" if self.session is None else self.session.csrf

    @property
    def sees_all(self) -> bool:
        """Whether no topic is hidden from it."""
        return "*" in self.patterns

    def check_scope(self, scope: Scope) -> None:
        """Raise Problem if the caller lacks a scope."""
        if scope not in self.scopes:
            raise Problem(
                "forbidden",
                f'the token "{self.name}" lacks the scope {scope}; it has'
                f" {', '.join(sorted(self.scopes)) or 'none'}",
            )

    def covers(self, topic: str) -> bool:
        """Whether the caller may see and change a topic."""
        return self.sees_all or any(matches(pattern, topic) for pattern in self.patterns)

    def check_topic(self, topic: str) -> None:
        """Raise Problem if the caller may not see a topic, or all topics of a pattern."""
        if not self._covers_all(topic):
            raise Problem(
                "forbidden",
                f'the token "{self.name}" is for topics {", ".join(self.patterns)}, not for'
                f" {topic[:80]}",
            )

    def _covers_all(self, name: str) -> bool:
        if self.sees_all or not is_pattern(name):
            return self.covers(name)
        return name != "*" and any(
            is_pattern(own) and name[:-1].startswith(own[:-1]) for own in self.patterns
        )

    def check_everything(self) -> None:
        """Raise Problem if the caller sees some topics only."""
        if not self.sees_all:
            raise Problem(
                "forbidden",
                f'the token "{self.name}" is for topics {", ".join(self.patterns)}; this is about'
                " the whole namespace",
            )

    def narrowed(self, pattern: str) -> list[str]:
        """The patterns that cover what both the caller and a list's pattern cover."""
        if self.sees_all:
            return [pattern]
        found = []
        for own in self.patterns:
            if not is_pattern(own) or not is_pattern(pattern):
                name, cover = (own, pattern) if not is_pattern(own) else (pattern, own)
                found += [name] if matches(cover, name) else []
            elif (prefix := common_prefix(own, base_of(pattern))) is not None:
                found.append(f"{prefix}*{pattern.removeprefix(base_of(pattern))}")
        return sorted(set(found))


EVERYTHING = Caller("local", frozenset(SCOPES))
"""A caller without a token, where the gateway needs none."""


@lru_cache(1000)
def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine only."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


def check_local(request: Request, *, is_page: bool = False) -> None:
    """
    The rule for a gateway without tokens: only clients of this machine, and only if the browser or
    client knows it by a local name. No web page reaches it by a name that points here. Nor does
    a page of another site by the local name: a browser sends what needs no permission, such as a
    POST without a content type, and names its origin. Only a link to a page may be
    followed: opening a page changes nothing.

    Raises Problem.
    """
    if not origins.has_local_name(request):
        host = request.header(b"host") or ""
        raise Problem(
            "forbidden",
            f'without tokens the gateway answers only for localhost, not for "{host[:80]}"; create'
            " one with `laneway token create NAME --scope SCOPE`",
        )
    if request.address and not is_loopback(request.address):
        raise Problem(
            "forbidden",
            "without tokens the gateway answers only clients of its own machine; create one with"
            " `laneway token create NAME --scope SCOPE`",
        )
    if origins.is_of_other_site(request) and not (is_page and origins.is_navigation(request)):
        raise Problem(
            "forbidden",
            "without tokens the gateway answers no page of another site; create one with `laneway"
            " token create NAME --scope SCOPE`",
        )


def check_direct(request: Request) -> None:
    """
    Refuse what a proxy of this machine sends for its clients. Raises Problem.

    A proxy may send nothing that shows it: only a login or a token keeps its clients out.
    """
    if origins.is_forwarded(request):
        raise Problem(
            "forbidden",
            "without tokens the gateway answers no request of a proxy, nor in HTTP/1.0; create one"
            " with `laneway token create NAME --scope SCOPE`",
        )
