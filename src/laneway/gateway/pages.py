"""`/docs`: a page about every route, without scripts and requests to other sites."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.gateway import openapi

if TYPE_CHECKING:
    from laneway.gateway.routing import Route

STYLE = """\
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
code, pre { font: 0.9rem/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; border: 1px solid var(--line); padding: 0.5rem; }
details { border-top: 1px solid var(--line); padding: 0.4rem 0; }
summary { cursor: pointer; }
summary:focus-visible { outline: 2px solid; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
"""

HEAD = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Laneway HTTP API</title>'
    '<meta name="viewport" content="width=device-width">'
    '<link rel="stylesheet" href="docs/style.css"></head><body><h1>Laneway HTTP API</h1>'
)


@cache
def page(routes: tuple[Route, ...]) -> bytes:
    """The page as HTML."""
    document = openapi.document(routes)
    schemas = document["components"]["schemas"]
    parts = [
        HEAD,
        f"<p>{escape(openapi.DESCRIPTION)}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a></p>',
        *(_route(route, document["paths"][route.path][route.method.lower()]) for route in routes),
        "<h2>Schemas</h2>",
        *(_schema(name, schema) for name, schema in schemas.items()),
        "</body></html>",
    ]
    return "".join(parts).encode()


def _route(route: Route, operation: dict[str, Any]) -> str:
    scope = f" Scope: <code>{route.scope}</code>." if route.scope is not None else ""
    shown = {
        name: operation[name]
        for name in ("parameters", "requestBody", "responses")
        if name in operation
    }
    return (
        f'<details><summary><span class="method">{route.method}</span> <code>{escape(route.path)}'
        f"</code> {escape(route.summary)}</summary><p>{escape(route.description)}{scope}</p>"
        f"{_json(shown)}</details>"
    )


def _schema(name: str, schema: Any) -> str:
    return (
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"{_json(schema)}</details>"
    )


def _json(value: Any) -> str:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return f"<pre>{escape(text)}</pre>"
