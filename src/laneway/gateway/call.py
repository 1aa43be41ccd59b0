"""`Call`: a request that has been let in, as its handler gets it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from laneway.admin.audit_log import Change
from laneway.engines.base import FullEngine
from laneway.gateway.http import Request
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.gateway.services import Services
from laneway.policy import check_policy_pattern, check_topic
from laneway.printable import process_name


class Call(msgspec.Struct, frozen=True):
    """
    A request with its caller.

    `parameters`: the path's. `query`, `body`: decoded as the route declares.
    """

    services: Services
    request: Request
    caller: Caller
    parameters: Mapping[str, str]
    query: Any
    body: Any = None

    @property
    def engine(self) -> FullEngine:
        """The engine. Raises EngineUnavailable."""
        return self.services.runtime.engine

    @property
    def topic(self) -> str:
        """The path's topic, which the caller may see. Raises BadMessage, Problem."""
        topic = check_topic(self.parameters["topic"])
        self.caller.check_topic(topic)
        return topic

    @property
    def pattern(self) -> str:
        """The path's pattern, which the caller may see. Raises BadPolicy, Problem."""
        pattern = check_policy_pattern(self.parameters["pattern"])
        self.caller.check_topic(pattern)
        return pattern

    def change(self, content: bytes, undo: tuple[str, dict[str, Any]] | None = None) -> Change:
        """
        The change that it makes, now, for the audit log. `content`: its JSON. `undo`: as in
        `Response`.
        """
        pattern, fields = undo or (None, None)
        return Change(
            at_us=time.time_ns() // 1000,
            who=self.caller.name,
            token=self.caller.token,
            address=self.request.address,
            method=self.request.method,
            path=self.request.scope["path"][:1000],
            request=msgspec.Raw(content),
            pattern=pattern,
            undo=fields,
        )

    @property
    def shows_bodies(self) -> bool:
        """Whether the caller may see bodies of messages."""
        return "bodies" in self.caller.scopes

    @property
    def holder(self) -> str:
        """Who holds the leases of this request, for people."""
        token = f" with token {self.caller.name!r:.80}" if self.caller.token else ""
        through = f"through gateway {process_name()}"
        return f"HTTP client {self.request.address}{token} {through}"

    @property
    def is_dry_run(self) -> bool:
        """Whether nothing is to be changed."""
        return getattr(self.query, "dry_run", False) or getattr(self.body, "dry_run", False)

    def confirm(self, confirmed: str, name: str) -> None:
        """Raise Problem unless the request's `confirm` is the name."""
        if confirmed != name:
            raise Problem(
                "bad-request",
                f'body: confirm: expected the name "{name}", got "{confirmed[:80]}"; nothing was'
                " changed",
                pointer="#/confirm",
            )
