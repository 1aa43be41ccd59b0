"""`Gateway`: the ASGI application."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_origin
from urllib.parse import quote

import msgspec

from laneway.admin import audit_log
from laneway.gateway import cors, pages, problems
from laneway.gateway.call import Call
from laneway.gateway.extension import Extension, html, redirect
from laneway.gateway.http import (
    JSON_TYPES,
    MAX_HEAD,
    PROBLEM,
    Disconnected,
    Receive,
    Request,
    Response,
    Scope,
    Send,
    Stream,
    security_headers,
)
from laneway.gateway.login import access, origins, sessions
from laneway.gateway.login.local_login import LocalLogin
from laneway.gateway.login.tokens import token_needed, unauthenticated
from laneway.gateway.problems import Problem, ProblemBody
from laneway.gateway.route_table import ROUTES
from laneway.gateway.routing import Route, Router
from laneway.gateway.services import Services
from laneway.gateway.wire import encode
from laneway.runtime.runtime import Application

log = logging.getLogger("laneway.gateway")

HTTP_OK = 200

READ_SECONDS = 10.0
"""How long a request that changes nothing waits for the store."""


LOG_LINES, LOG_SECONDS = 10, 10.0
"""Log lines about failed requests: while a store is away, each request fails."""


class Gateway:
    """
    The HTTP API of an application, as an ASGI application.

    `is_open`: every client may do everything, without a token. `prefix`: of all paths, behind a
    proxy; a program that mounts the application gives it in ASGI's way. `extensions`: what other
    packages add, such as pages. `cors_origins`: of pages of other sites that may send requests
    with a token, such as `https://shop.example`. `embed_origins`: of sites that may show pages (not
    the login) in a frame. `local_login`: a client without a token needs a session that one of its
    codes began, or None if it needs none as long as the namespace has no token.
    """

    def __init__(
        self,
        app: Application,
        *,
        is_open: bool = False,
        prefix: str = "",
        extensions: Sequence[Extension] = (),
        cors_origins: Collection[str] = (),
        embed_origins: Collection[str] = (),
        local_login: LocalLogin | None = None,
    ) -> None:
        self._runtime = app.runtime
        self._local_login = local_login
        self._extensions = tuple(extensions)
        pages = [route for extension in self._extensions for route in extension.routes]
        self._router = Router([*ROUTES, *pages])
        self._limit = _LogLimit()
        self.services = self._new_services()
        self.prefix = prefix
        self.is_open = is_open
        self.cors_origins = frozenset(cors_origins)
        self._embedded = security_headers(embed_origins) if embed_origins else None

    def _new_services(self) -> Services:
        return Services(self._runtime, ROUTES, self._extensions, self._local_login)

    def stop(self) -> None:
        """End the waiting requests, so that the server can stop."""
        self.services.stop()

    def close(self) -> None:
        """Wait for what runs in threads."""
        self.services.close()

    # One request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI calls it."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._exchange(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            event = await receive()
            if event["type"] == "lifespan.startup":
                if self.services.is_closed:  # it was started and stopped before, as in tests
                    self.services = self._new_services()
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self.prefix, self.services.readers)
        try:
            await self._answer_all(request)
        finally:
            if request.was_opened:
                self.services.open_requests.remove(request)

    async def _answer_all(self, request: Request) -> None:
        started = time.perf_counter()
        method, path = request.method if request.method in METHODS else "other", "unknown"
        if self.cors_origins and cors.is_allowed(request, self.cors_origins):
            request.more_headers = cors.headers(request)
            if cors.is_preflight(request):
                await request.respond(Response(204))
                return
        answer: Response | Stream
        route = None
        try:
            route, parameters = self.find(request)
            path = route.path
            if route.is_page and self._embedded is not None:
                request.security = self._embedded
            answer = await self._answer(request, route, parameters)
        except Disconnected:
            request.give_up()
            return
        except Exception as error:  # noqa: BLE001  # every error has an answer
            answer = self.problem(request, route, error)
        self.services.count_answer(method, path, answer.status, started)
        try:
            if isinstance(answer, Stream):
                await request.stream(answer)
            else:
                await request.respond(answer)
        except Disconnected:
            request.give_up()

    def find(self, request: Request) -> tuple[Route, Mapping[str, str]]:
        """The route of a request, and the parameters of its path. Raises Problem."""
        return self._router.find(request.method, request.path())

    async def _answer(
        self, request: Request, route: Route, parameters: Mapping[str, str]
    ) -> Response | Stream:
        if not request.has_bounded_head:
            _check_head(request)
        caller = access.EVERYTHING
        if route.scope is not None:
            caller = self.known_caller(request, route) or await self._read_caller(request, route)
            route.check(caller)
            if not self.is_open:
                request.on_open = functools.partial(self.services.open_requests.add, caller=caller)
        query = route.no_query
        if query is None or request.scope["query_string"]:
            query = problems.converted(request.query, route.query, "query")
        body = None
        if route.body is not None:
            body = await _decoded(request, route)
        elif route.form is not None:
            body = await _form(request, route.form, caller)
        call = Call(self.services, request, caller, parameters, query, body)
        answer: Response | Stream
        if route.is_async:
            answer = await route.handler(call)
        else:
            answer = await self._run_blocking(route, call)
        if caller.session is not None:
            renewed = self.services.sessions.renewed(request, caller.session)
            answer.headers += [renewed] if renewed is not None else []
        return answer

    async def _run_blocking(self, route: Route, call: Call) -> Response:
        """Run a handler in a thread. A read has a limited time; its thread continues to its end."""
        work = self.services.run(run_blocking, route, call)
        if route.is_change:
            return await work
        limit = asyncio.timeout(READ_SECONDS)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise Problem(
                "timeout",
                f"the store took more than {READ_SECONDS:g} s; ask for less, or try again later",
                headers=(("retry-after", "5"),),
            ) from error

    def known_caller(self, request: Request, route: Route) -> access.Caller | None:
        """Who sent the request, or None if that has to be read. Raises Problem."""
        if self.is_open:
            return access.EVERYTHING
        services = self.services
        if (token := request.bearer_token) is not None:
            return services.tokens.cached(token, request.address)
        if services.sessions.has_cookie(request):
            sessions.check(request, route)
            return services.sessions.cached(request)
        if self._local_login is not None:
            raise unauthenticated(self._local_login.hint)
        is_needed = services.tokens.are_there()
        return None if is_needed is None else _local_caller(request, route, is_needed=is_needed)

    async def _read_caller(self, request: Request, route: Route) -> access.Caller:
        """As `known_caller`, which has checked the request, with what the store has now."""
        services = self.services
        if (token := request.bearer_token) is not None:
            return await services.tokens.read(services.run_shared, token, request.address)
        if services.sessions.has_cookie(request):
            return await services.run(services.sessions.read, request)
        is_needed = await services.run_shared(services.tokens.read_whether_there)
        return _local_caller(request, route, is_needed=is_needed)

    def problem(self, request: Request, route: Route | None, error: Exception) -> Response:
        """The answer to an error."""
        body, headers = problems.body_of(error)
        body.instance = request.scope["path"][:1000]
        body.request_id = secrets.token_hex(8)
        if body.status >= problems.CLIENT_ERROR and (left_out := self._limit.take()) is not None:
            log.error(
                "%s %s: %d %s (request %s)%s",
                request.method,
                body.instance,
                body.status,
                error if isinstance(error, Problem) else repr(error),
                body.request_id,
                f"; {left_out:,} more failed since the last line" if left_out else "",
                exc_info=error if body.type == "/problems/internal-error" else None,
            )
        is_page = origins.is_navigation(request) if route is None else route.is_page
        if not is_page:
            return problem_response(body, headers)
        answer = self._problem_page(request, body)
        answer.status = body.status if answer.status == HTTP_OK else answer.status
        answer.headers += encoded_headers(headers)
        return answer

    def _problem_page(self, request: Request, body: ProblemBody) -> Response:
        """What a person sees: where to log in, or the problem as a page."""
        if body.type == "/problems/unauthenticated":
            if origins.is_of_htmx(request):
                found = html("")
                found.headers.append((b"hx-redirect", request.url("/login").encode()))
                return found
            accepts_html = "text/html" in (request.header(b"accept") or "")
            if request.method in origins.SAFE_METHODS and accepts_html:
                return redirect(request.url(f"/login?next={quote(request.target(), safe='')}"))
        for extension in self._extensions:
            if (answer := extension.problem(request, body)) is not None:
                return answer
        return html(pages.problem_page(request.url(""), body))


def _local_caller(request: Request, route: Route, *, is_needed: bool) -> access.Caller:
    """The caller of a request without a token. `is_needed`: it needs one. Raises Problem."""
    if is_needed:
        raise token_needed()
    access.check_local(request, is_page=route.is_page)
    access.check_direct(request)
    return access.EVERYTHING


def run_blocking(route: Route, call: Call) -> Response:
    """Run a blocking handler, and keep a change in the audit log."""
    found = route.handler(call)
    answer = found if isinstance(found, Response) else Response(route.status, encode(found))
    if route.is_change and not call.is_dry_run:
        _keep(call, answer)
    return answer


def _keep(call: Call, answer: Response) -> None:
    content = encode(call.body)
    if len(content) > audit_log.MAX_REQUEST:
        content = b'"a request of %d bytes"' % len(content)
    audit_log.append(call.engine, call.change(content, answer.undo))


METHODS = frozenset(route.method for route in ROUTES) | {"HEAD"}


def problem_response(body: ProblemBody, headers: problems.Headers = ()) -> Response:
    """The answer with a problem."""
    return Response(body.status, encode(body), PROBLEM, encoded_headers(headers))


def encoded_headers(headers: problems.Headers) -> list[tuple[bytes, bytes]]:
    """A problem's headers as they are sent."""
    return [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers]


def _check_head(request: Request) -> None:
    size = len(request.scope["query_string"]) + len(request.scope["path"])
    size += sum(map(len, itertools.chain.from_iterable(request.headers)))
    if size > MAX_HEAD:
        raise Problem(
            "header-too-large", f"the head of the request has more than {MAX_HEAD:,} bytes"
        )


async def _decoded(request: Request, route: Route) -> Any:
    """The decoded body. Raises Problem."""
    if request.content_type not in JSON_TYPES:
        raise Problem(
            "unsupported-media",
            f"expected the content type application/json, got {request.content_type:.80}; with"
            " curl: -H 'content-type: application/json'",
        )
    content = await request.body()
    if not content:
        raise Problem("bad-request", "body: missing; expected JSON")
    assert route.body is not None
    return problems.read_json(route.body, content, "body")


async def _form(request: Request, kind: type[msgspec.Struct], caller: access.Caller) -> Any:
    """The decoded fields of a page's form. Raises Problem."""
    values = await request.form()
    sessions.check_form(request, caller, values.pop("csrf", [""])[0])
    lists = {
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if get_origin(field.type) is list
    }
    fields: dict[str, Any] = {}
    for name, found in values.items():
        if name not in lists and len(found) > 1:
            raise Problem("bad-request", f"form: {name:.80}: given twice; give it once")
        fields[name] = found if name in lists else found[0]
    return problems.converted(fields, kind, "form")


class _LogLimit:
    """Decides whether a line is logged, and counts the lines that were not since the last one."""

    def __init__(self) -> None:
        self._began = 0.0
        self._lines = 0
        self._left_out = 0

    def take(self) -> int | None:
        """How many lines were left out before this one, or None if this one is left out too."""
        now = time.monotonic()
        if now - self._began >= LOG_SECONDS:
            self._began, self._lines = now, 0
        self._lines += 1
        if self._lines > LOG_LINES:
            self._left_out += 1
            return None
        left_out, self._left_out = self._left_out, 0
        return left_out
