"""`/docs`: a page about every route, without scripts and requests to other sites."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

import msgspec

from laneway.gateway import openapi
from laneway.gateway.problems import ProblemBody
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


def document_page(title: str, base: str, content: str) -> str:
    """A page of the gateway itself. `base`: the mount point. `content`: HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)} · Laneway</title>"
        '<meta name="viewport" content="width=device-width">'
        f'<link rel="stylesheet" href="{escape(base)}/docs/style.css"></head>'
        f"<body><main><h1>{escape(title)}</h1>{content}</main></body></html>"
    )


def login_page(base: str, following: str, problem: str = "") -> str:
    """
    The page with the form of a login.

    Arguments: `base`: the mount point. `following`: the path that the login leads to. `problem`:
    why the last one failed.
    """
    shown = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    return document_page(
        "Log in",
        base,
        f'{shown}<form method="post" action="{escape(base)}/login"><p><label>Token <input'
        ' type="password" name="token" required autocomplete="current-password" autofocus></label>'
        f'<input type="hidden" name="next" value="{escape(following)}"> <button>Log in</button></p>'
        "</form><p>Create a token with <code>laneway token create NAME --scope read</code>.</p>",
    )


def problem_page(base: str, problem: ProblemBody) -> str:
    """The page of a problem."""
    return document_page(
        problem.title,
        base,
        f"<p>{escape(problem.detail)}</p><p>{problem.status}, request"
        f" <code>{escape(problem.request_id)}</code></p>",
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
        *(
            _route(route, document["paths"][route.path][route.method.lower()])
            for route in routes
            if not route.is_page
        ),
        "<h2>Schemas</h2>",
        *(_schema(name, schema) for name, schema in schemas.items()),
        "</body></html>",
    ]
    return "".join(parts).encode()


def _route(route: Route, operation: dict[str, Any]) -> str:
    scope = f" Scope: <code>{route.scope}</code>." if route.scope is not None else ""
    if route.own_scopes:
        own = " or ".join(f"<code>{each}</code>" for each in route.own_scopes)
        scope += f" With {own}: what the token itself began."
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
