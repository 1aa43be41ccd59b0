"""The gateway itself: whether it is up, whether its store answers, and what its API is."""

from __future__ import annotations

import asyncio

import msgspec

from laneway.errors import LanewayError
from laneway.gateway import openapi, pages
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.problems import KINDS, Problem
from laneway.gateway.schema import HealthAnswer
from laneway.printable import without_passwords

READY_SECONDS = 1.0
"""How long the store may take to answer."""

OK = msgspec.json.encode(HealthAnswer("ok"))


async def health(call: Call) -> Response:
    """Whether the process is up."""
    del call
    return Response(200, OK)


async def ready(call: Call) -> Response:
    """
    Whether the store answers within a second; else 503, with the reason.
    """
    try:
        async with asyncio.timeout(READY_SECONDS):
            await call.services.ask_store()
    except TimeoutError:
        return _unavailable(f"the store did not answer within {READY_SECONDS:g} s")
    except LanewayError as error:
        return _unavailable(without_passwords(str(error)))
    return Response(200, OK)


def _unavailable(detail: str) -> Response:
    return Response(503, msgspec.json.encode(HealthAnswer("unavailable", detail)))


async def problem_kind(call: Call) -> Response:
    """What a kind of problem means."""
    kind = call.parameters["kind"]
    if kind not in KINDS:
        raise Problem("not-found", f'there is no kind of problem "{kind[:80]}"')
    status, title = KINDS[kind]
    return Response(200, msgspec.json.encode({"type": kind, "status": status, "title": title}))


# The API's description


async def show_openapi(call: Call) -> Response:
    """The OpenAPI 3.1 document of the API."""
    return Response(200, openapi.encoded(call.services.routes))


async def show_docs(call: Call) -> Response:
    """A page about every route."""
    return Response(200, pages.page(call.services.routes), b"text/html; charset=utf-8")


async def show_style(call: Call) -> Response:
    """The style of the page."""
    del call
    return Response(200, pages.STYLE.encode(), b"text/css; charset=utf-8")
