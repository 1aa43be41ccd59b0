"""
Requests that wait or stream end soon after their token is revoked or has expired, or their session
has ended; those without a token end soon after the first token is created.

While there are such requests, their tokens and sessions are read once a second, all together.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, TypeVar

from laneway.errors import LanewayError
from laneway.gateway.login.tokens import token_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from laneway.gateway.http import Request
    from laneway.gateway.login.access import Caller
    from laneway.gateway.login.browser_session import Session
    from laneway.gateway.problems import Problem

    T = TypeVar("T")

    class Services(Protocol):
        """What is needed of the gateway's services."""

        @property
        def tokens(self) -> Tokens:
            """The tokens."""

        @property
        def sessions(self) -> Sessions:
            """The sessions."""

        async def run(self, function: Callable[..., T], /, *arguments: object) -> T:
            """Run a blocking function in a thread."""

    class Tokens(Protocol):
        """Which tokens are no longer valid."""

        def ended(self, token_ids: Collection[str]) -> dict[str, Problem]:
            """The tokens that have been revoked or have expired, with the problem to answer."""

        def read_whether_there(self) -> bool:
            """Whether there are tokens, so that each request needs one."""

    class Sessions(Protocol):
        """Which sessions are no longer valid."""

        def ended(self, sessions: Collection[Session]) -> dict[str, Problem]:
            """The ids of sessions that have ended, with the problem to answer."""


log = logging.getLogger("laneway.gateway")

SECONDS = 1.0
"""How often the tokens of open requests are read."""


class OpenRequests:
    """The requests of a gateway that wait or stream, by caller. Its methods belong to the loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[Request, Caller] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, request: Request, caller: Caller) -> None:
        """
        End a request as soon as its caller's token or session has ended, or if it has neither, as
        soon as there are tokens.
        """
        self._open[request] = caller
        loop = asyncio.get_running_loop()
        if self._timer is None or self._loop is not loop:
            self._loop = loop
            self._timer = loop.call_later(SECONDS, self._begin, loop)

    def remove(self, request: Request) -> None:
        """The request has been answered."""
        self._open.pop(request, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._look(loop))

    async def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        callers = set(self._open.values())
        try:
            ended = await self._services.run(self._ended, callers)
        except LanewayError as error:
            log.debug("open requests: the store does not answer; trying again: %s", error)
        except Exception:
            log.exception("open requests: their tokens could not be read; trying again")
        else:
            for request, caller in list(self._open.items()):
                problem = ended.get(caller)
                if problem is not None:
                    request.end(problem)
        self._timer = loop.call_later(SECONDS, self._begin, loop) if self._open else None

    def _ended(self, callers: set[Caller]) -> dict[Caller, Problem]:
        """The callers that may no longer do what they do, with the problem to answer. Blocks."""
        ids = {each.token for each in callers if each.token is not None}
        tokens = self._services.tokens.ended(ids)
        of_sessions = {each.session for each in callers if each.session is not None}
        sessions = self._services.sessions.ended(of_sessions)
        found: dict[Caller, Problem] = {}
        for each in callers:
            problem = tokens.get(each.token or "")
            if problem is None and each.session is not None:
                problem = sessions.get(each.session.id)
            elif each.token is None and self._services.tokens.read_whether_there():
                problem = token_needed()
            if problem is not None:
                found[each] = problem
        return found
