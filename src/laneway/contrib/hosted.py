"""
The dashboard and the HTTP API inside another web application, which decides who may do what.

A browser sends the application's cookie for requests of other sites' pages too, so requests are
checked as those of the gateway's own sessions are: a change has to come from a page of the same
origin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from laneway import Laneway
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.gateway import Gateway
from laneway.gateway.http import Request
from laneway.gateway.login import sessions
from laneway.gateway.login.access import SCOPES, Caller
from laneway.gateway.problems import Problem
from laneway.gateway.routing import Route

READ = frozenset({"read"})
CHANGE = READ | {"operate", "publish"}
EVERYTHING = frozenset(SCOPES)

__all__ = ["CHANGE", "EVERYTHING", "READ", "Caller", "HostedGateway"]


class HostedGateway(Gateway):
    """
    A gateway with the dashboard, to be mounted in another ASGI application.

    `caller_of`: returns for a request's ASGI scope who sends it and what they may do, or None to
    forbid the request.
    """

    def __init__(
        self, app: Laneway, caller_of: Callable[[Mapping[str, Any]], Caller | None]
    ) -> None:
        super().__init__(app, is_open=True, extensions=[Dashboard(app)])
        self._caller_of = caller_of

    def known_caller(self, request: Request, route: Route) -> Caller:
        """Who sent the request. Raises Problem."""
        caller = self._caller_of(request.scope)
        if caller is None:
            raise Problem("forbidden", "log in, or ask for the permission to see this page")
        sessions.check(request, route)
        return caller
