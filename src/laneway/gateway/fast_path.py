"""
The fast path: publish requests that are answered without a task of their own.

Most requests of a busy gateway publish one message, and a task, ASGI's events and the coroutines
between them cost more than the store does. A server that knows it offers `FastPath.begin` each
small request that has arrived as a whole. What is unusual takes ASGI's way, with the same answers.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NoReturn, Protocol

import msgspec

from laneway.gateway import access, cors
from laneway.gateway.http import Request
from laneway.gateway.problems import Problem
from laneway.gateway.routes import publishing

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from laneway.gateway.access import Caller
    from laneway.gateway.http import Response, Scope
    from laneway.gateway.routing import Route
    from laneway.gateway.services import Services
    from laneway.message import Draft, Receipt

    Respond = Callable[[Response], None]

    class Owner(Protocol):
        """What it needs of its `Gateway`."""

        prefix: str
        is_open: bool
        cors_origins: frozenset[str]
        services: Services

        def find(self, request: Request) -> tuple[Route, Mapping[str, str]]:
            """The route of a request."""

        def known_caller(self, request: Request, route: Route) -> Caller | None:
            """Who sent it; None: that has to be read."""

        def problem(self, request: Request, route: Route, error: Exception) -> Response:
            """The answer to an error."""


MOST_HEADS = 1_000
"""How many heads of requests are known; beyond that all are read again."""


async def _no_events(*_: object) -> NoReturn:
    raise NotImplementedError("a request of the fast path has no events")


class _Head(msgspec.Struct, frozen=True):
    """
    What the head of a usual request says: its route and topic, its token and its client's address.
    `token`: None: it has none, and is sent by a client of this machine.
    """

    route: Route
    topic: str
    token: str | None
    address: str


class _Waiting:
    """A request that waits for its message's receipt. A `Waiter` of the producer."""

    __slots__ = ("_draft", "_gateway", "_respond", "_route", "_scope", "_started")

    def __init__(self, gateway: Owner, scope: Scope, route: Route, respond: Respond) -> None:
        self._gateway, self._scope, self._route = gateway, scope, route
        self._respond, self._started = respond, time.perf_counter()

    def send(self, draft: Draft) -> None:
        """Publish the message."""
        self._draft = draft
        self._gateway.services.host.producer.send_to(draft, self)

    def set_result(self, receipt: Receipt) -> None:
        """Answer with the receipt; wait for room if the message was refused."""
        if receipt.outcome == "refused":
            producer = self._gateway.services.host.producer
            room = asyncio.ensure_future(producer.await_room(self._draft, receipt, 0))
            room.add_done_callback(self._have_room)
        else:
            self._answer(publishing.answer_of(receipt))

    def _have_room(self, room: asyncio.Future[Receipt]) -> None:
        if room.cancelled():  # the event loop ends
            return
        error = room.exception()
        if error is None:
            self._answer(publishing.answer_of(room.result()))
        else:
            self.set_exception(error)

    def set_exception(self, error: BaseException) -> None:
        """Answer with what went wrong."""
        request = Request(self._scope, _no_events, _no_events, self._gateway.prefix)
        fault = error if isinstance(error, Exception) else RuntimeError(str(error))
        self._answer(self._gateway.problem(request, self._route, fault))

    def _answer(self, response: Response) -> None:
        self._gateway.services.count_answer(
            "POST", self._route.path, response.status, self._started
        )
        try:
            self._respond(response)
        except Exception as error:  # noqa: BLE001  # the answers to others wait behind it
            context = {"message": "an answer cannot be sent", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


class FastPath:
    """Answers publish requests of a gateway."""

    def __init__(self, gateway: Owner) -> None:
        self._gateway = gateway
        self._heads: dict[Hashable, _Head] = {}
        """Usual heads: a client sends the same again and again."""

    def begin(self, scope: Scope, content: bytes, respond: Respond) -> bool:
        """
        Begin to answer a POST whose body is `content`; `respond` gets the answer in a later call
        of the event loop. False: nothing was done, serve it by ASGI.
        """
        client = scope["client"]
        headers = [header for header in scope["headers"] if header[0] != b"content-length"]
        key = (scope["http_version"], scope["raw_path"], client[0] if client else "", *headers)
        head, request = self._heads.get(key), None
        if head is None:
            request = Request(scope, _no_events, _no_events, self._gateway.prefix)
            head = self._head_of(request)
        if head is None or self._gateway.services.host.producer.middlewares:
            return False
        waiting = _Waiting(self._gateway, scope, head.route, respond)
        try:
            if request is None:
                caller = self._caller(head)
            else:
                caller = self._gateway.known_caller(request, head.route)
            if caller is None or caller.session is not None:  # ask the store; renew the cookie
                return False
            caller.check_scope("publish")
            if not caller.sees_all:
                caller.check_topic(head.topic)
            if request is None:
                draft = publishing.read_json(head.topic, content)
            else:
                self._remember(key, head, request)
                draft, _ = publishing.read(request, head.topic, content, is_raw=False)
            waiting.send(draft)
        except Exception as error:  # noqa: BLE001  # every error has an answer
            asyncio.get_running_loop().call_soon(waiting.set_exception, error)
        return True

    def _head_of(self, request: Request) -> _Head | None:
        """What its head says; None: it is unusual."""
        try:
            route, parameters = self._gateway.find(request)
        except Problem:
            return None
        if route.handler is not publishing.publish or not self._is_usual(request):
            return None
        return _Head(route, parameters["topic"], request.bearer_token, request.address)

    def _is_usual(self, request: Request) -> bool:
        """Whether the body is JSON, and the answer needs nothing beside it."""
        accepted = request.header_bytes.get(b"accept")
        return (
            request.is_json
            and b"content-encoding" not in request.header_bytes
            and (accepted is None or b"msgpack" not in accepted)
            and not cors.is_allowed(request, self._gateway.cors_origins)
        )

    def _remember(self, key: Hashable, head: _Head, request: Request) -> None:
        """The same head may come again, from a caller without a session."""
        if b"idempotency-key" not in request.header_bytes:
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[key] = head

    def _caller(self, head: _Head) -> Caller | None:
        """
        As `Gateway.known_caller`, of a head that is known. Where no token is needed, `known_caller`
        has found nothing wrong with it.
        """
        if self._gateway.is_open:
            return access.EVERYTHING
        tokens = self._gateway.services.tokens
        if head.token is not None:
            return tokens.cached(head.token, head.address)
        return access.EVERYTHING if tokens.are_there() is False else None
