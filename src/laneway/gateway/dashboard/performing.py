"""Performing an action: its requests use the API's routes, with the caller's rights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

import msgspec

from laneway.gateway import problems
from laneway.gateway.call import Call
from laneway.gateway.gateway import run_blocking
from laneway.gateway.http import Request, Response
from laneway.gateway.problems import Problem
from laneway.gateway.route_table import ROUTES
from laneway.gateway.routing import Router

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from laneway.gateway.dashboard.actions import ApiCall
    from laneway.gateway.login.access import Caller
    from laneway.gateway.services import Services

API = Router(ROUTES)


async def perform(services: Services, outer: Request, caller: Caller, call: ApiCall) -> Response:
    """Make a request of the API for a caller. Raises what the route raises."""
    path, _, query_text = call.path.partition("?")
    request = _request(outer, call, path, query_text)
    route, parameters = API.find(call.method, path)
    route.check(caller)
    query = msgspec.convert(dict(parse_qsl(query_text)), route.query, strict=False)
    body = None
    if route.body is not None:
        try:
            body = route.body.decode(msgspec.json.encode(call.body))
        except problems.DECODE_ERRORS as error:
            raise problems.invalid(error, route.reads, "form") from None
    inner = Call(services, request, caller, parameters, query, body)
    if route.is_async:
        answer: Response = await route.handler(inner)
        return answer
    return await services.run(run_blocking, route, inner)


def _request(outer: Request, call: ApiCall, path: str, query: str) -> Request:
    """The request as the API's routes and the audit log see it."""
    content = b"" if call.body is None else msgspec.json.encode(call.body)
    scope = {
        **outer.scope,
        "method": call.method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"content-type", b"application/json")],
        "extensions": {},  # the server's are about the outer request
    }

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(_: MutableMapping[str, Any]) -> None:
        raise Problem("internal-error", "an action's request cannot answer on its own")

    return Request(scope, receive, send)
