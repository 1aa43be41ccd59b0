"""`Page`: one declaration of each page, the source of routes, the menu and live updates."""

from __future__ import annotations

from collections.abc import Callable  # msgspec reads the annotations
from typing import Any

import msgspec

from laneway.gateway.dashboard.view import View  # as above
from laneway.gateway.login.access import Scope  # as above
from laneway.gateway.schema import NoQuery


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """
    A page.

    - `name`: of its template. `path`, `title`: as people see them.
    - `build`: the variables of its template.
    - `fragments`: the template's blocks that are kept live, each in the element with that id.
    - `query`: the type of its parameters.
    - `key`: with `g` before it opens the page; "": the page is not in the menu.
    - `scope`: what the caller needs. `is_whole`: it is about the whole namespace, so not for
      callers who see some topics only.
    - `export`: the rows of its table, from what `build` returns, as programs read them, or None
      without an export.
    """

    name: str
    path: str
    title: str
    build: Callable[[View], dict[str, Any]]
    fragments: tuple[str, ...] = ()
    query: type[msgspec.Struct] = NoQuery
    key: str = ""
    scope: Scope = "read"
    is_whole: bool = False
    export: Callable[[dict[str, Any]], list[dict[str, Any]]] | None = None
