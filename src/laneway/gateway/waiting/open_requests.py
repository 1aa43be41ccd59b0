"""
Requests that wait or stream end soon after their token is revoked or has expired, or their session
has ended; those without a token end soon after the first token is created.

While there are such requests, their tokens and sessions are read once a second, all together.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from laneway.errors import LanewayError
from laneway.gateway.http import Request
from laneway.gateway.login.access import Caller
from laneway.gateway.login.sessions import Sessions
from laneway.gateway.login.tokens import TokenCheck, token_needed
from laneway.gateway.problems import Problem

log = logging.getLogger("laneway.gateway")

SECONDS = 1.0
"""How often the tokens of open requests are read."""


class OpenRequests:
    """The requests of a gateway that wait or stream, by caller. Its methods belong to the loop."""

    def __init__(self, threads: Executor, tokens: TokenCheck, sessions: Sessions) -> None:
        self._threads = threads
        self._tokens = tokens
        self._sessions = sessions
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
            ended = await loop.run_in_executor(self._threads, self._ended, callers)
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
        tokens = self._tokens.ended(ids)
        of_sessions = {each.session for each in callers if each.session is not None}
        sessions = self._sessions.ended(of_sessions)
        found: dict[Caller, Problem] = {}
        for each in callers:
            problem = tokens.get(each.token or "")
            if problem is None and each.session is not None:
                problem = sessions.get(each.session.id)
            elif each.token is None and self._tokens.read_whether_there():
                problem = token_needed()
            if problem is not None:
                found[each] = problem
        return found
