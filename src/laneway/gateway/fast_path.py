"""
The fast path: publish requests that are answered without a task of their own.

Most requests of a busy gateway publish one message, and a task, ASGI's events and the coroutines
between them cost more than the store does. A server that knows it offers `FastPath.begin` each
small request that has arrived as a whole. What is unusual takes ASGI's way, with the same answers.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, NoReturn, Protocol

from laneway.gateway import cors
from laneway.gateway.http import Request
from laneway.gateway.problems import Problem
from laneway.gateway.routes import publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from laneway.gateway.access import Caller
    from laneway.gateway.http import Response, Scope
    from laneway.gateway.routing import Route
    from laneway.gateway.services import Services
    from laneway.message import Draft, Receipt

    Respond = Callable[[Response], None]

    class Owner(Protocol):
        """What it needs of its `Gateway`."""

        prefix: str
        cors_origins: frozenset[str]
        services: Services

        def find(self, request: Request) -> tuple[Route, Mapping[str, str]]:
            """The route of a request."""

        def known_caller(self, request: Request, route: Route) -> Caller | None:
            """Who sent it; None: that has to be read."""

        def problem(self, request: Request, route: Route, error: Exception) -> Response:
            """The answer to an error."""


async def _no_events(*_: object) -> NoReturn:
    raise NotImplementedError("a request of the fast path has no events")


class FastPath:
    """Answers publish requests of a gateway."""

    def __init__(self, gateway: Owner) -> None:
        self._gateway = gateway

    def begin(self, scope: Scope, content: bytes, respond: Respond) -> bool:
        """
        Begin to answer a POST whose body is `content`; `respond` gets the answer in a later call
        of the event loop. False: nothing was done, serve it by ASGI.
        """
        gateway = self._gateway
        request = Request(scope, _no_events, _no_events, gateway.prefix)
        try:
            route, parameters = gateway.find(request)
        except Problem:
            return False
        if route.handler is not publishing.publish or not self._is_usual(request):
            return False
        draft: Draft | None = None
        answer: asyncio.Future[Receipt]
        try:
            caller = gateway.known_caller(request, route)
            if caller is None or caller.session is not None:  # ask the store; renew the cookie
                return False
            caller.check_scope("publish")
            topic = parameters["topic"]
            if not caller.sees_all:
                caller.check_topic(topic)
            draft, _ = publishing.read(request, topic, content, is_raw=False)
            answer = asyncio.ensure_future(gateway.services.host.producer.send(draft, 0))
        except Exception as error:  # noqa: BLE001  # every error has an answer
            answer = asyncio.get_running_loop().create_future()
            answer.set_exception(error)
        answer.add_done_callback(functools.partial(self._end, request, route, draft, respond))
        return True

    def _is_usual(self, request: Request) -> bool:
        """Whether the body is JSON, and the answer needs nothing beside it."""
        accepted = request.header_bytes.get(b"accept")
        return (
            request.is_json
            and b"content-encoding" not in request.header_bytes
            and (accepted is None or b"msgpack" not in accepted)
            and not self._gateway.services.host.producer.middlewares
            and not cors.is_allowed(request, self._gateway.cors_origins)
        )

    def _end(
        self,
        request: Request,
        route: Route,
        draft: Draft | None,
        respond: Respond,
        answer: asyncio.Future[Receipt],
    ) -> None:
        if answer.cancelled():  # the event loop ends
            return
        services = self._gateway.services
        try:
            receipt = answer.result()
            if receipt.outcome == "refused":
                assert draft is not None
                room = asyncio.ensure_future(services.host.producer.await_room(draft, receipt, 0))
                room.add_done_callback(functools.partial(self._end, request, route, draft, respond))
                return
            response = publishing.answer_of(receipt)
        except Exception as error:  # noqa: BLE001  # every error has an answer
            response = self._gateway.problem(request, route, error)
        services.answers["POST", route.path, response.status] += 1
        respond(response)
