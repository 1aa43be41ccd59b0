"""The API's description of itself: `/openapi.json` and `/docs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.gateway import openapi, pages
from laneway.gateway.http import Response

if TYPE_CHECKING:
    from laneway.gateway.call import Call


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
