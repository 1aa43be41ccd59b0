"""Routes: one declaration each, the source of dispatch, access checks, OpenAPI and pages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from laneway.gateway.http import segments_of
from laneway.gateway.login.access import Caller, Scope
from laneway.gateway.problems import Problem
from laneway.gateway.schema import NoQuery


class Route:
    """
    One method of one path.

    - `path`: segments in braces are parameters: `/v1/topics/{topic}`.
    - `scope`: what the caller needs, or None for no token, as for probes and descriptions.
    - `is_whole`: it concerns the whole namespace, so it is closed to callers of some topics.
    - `own_scopes`: with one of these, the caller sees what it began itself; the handler checks it.
    - `handler`: gets a `Call`; a coroutine function that returns a `Response` or `Stream`; or a
      plain function that returns an answer, and runs in a thread. Its docstring describes the
      route.
    - `body`: the type of the request's body, if the gateway decodes it before the handler runs.
    - `reads`: the same for the documentation, if the handler itself reads or checks the body.
      `body_type`: its media type.
    - `query`: the type of the parameters. `answer`: the type of the answer. `status`: of a success;
      `other_statuses`: those of other successes, and of answers that look like them.
    - `takes_lines`: the body may also be lines (NDJSON). `answer_type`: the answer's media type.
    - `events`: the events of a stream, by name: the type of their JSON.
    - `is_page`: a part of pages for people, made by `extension.page`: no part of the API's
      description. `form`: the type of a form's fields, for such a POST.
    """

    __slots__ = (
        "answer",
        "answer_type",
        "body",
        "body_type",
        "events",
        "form",
        "handler",
        "is_async",
        "is_page",
        "is_whole",
        "method",
        "no_query",
        "other_statuses",
        "own_scopes",
        "parameters",
        "path",
        "query",
        "reads",
        "scope",
        "status",
        "takes_lines",
    )

    def __init__(
        self,
        method: str,
        path: str,
        scope: Scope | None,
        handler: Callable[[Any], Any],
        *,
        is_whole: bool = False,
        own_scopes: tuple[Scope, ...] = (),
        body: Any = None,
        reads: Any = None,
        body_type: str = "application/json",
        query: type[msgspec.Struct] = NoQuery,
        answer: Any = None,
        status: int = 200,
        other_statuses: tuple[int, ...] = (),
        takes_lines: bool = False,
        answer_type: str = "application/json",
        events: Mapping[str, type] | None = None,
        is_page: bool = False,
        form: type[msgspec.Struct] | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.scope = scope
        self.is_whole = is_whole
        self.own_scopes = own_scopes
        self.handler = handler
        self.is_async = inspect.iscoroutinefunction(handler)
        self.body = msgspec.json.Decoder(body) if body is not None else None
        self.reads = body if reads is None else reads
        self.body_type = body_type
        self.query = query
        self.answer = answer
        self.status = status
        self.other_statuses = other_statuses
        self.takes_lines = takes_lines
        self.answer_type = answer_type
        self.events = events or {}
        self.is_page = is_page
        self.form = form
        self.parameters = [name[1:-1] for name in path.split("/") if name.startswith("{")]
        """The names of the path's parameters."""
        try:
            self.no_query: msgspec.Struct | None = query()
        except TypeError:
            self.no_query = None
        """The query of a URL without parameters, or None if it needs some."""

    def check(self, caller: Caller) -> None:
        """Raise Problem if the caller may not use it."""
        if self.scope is not None and caller.scopes.isdisjoint(self.own_scopes):
            caller.check_scope(self.scope)
        if self.is_whole:
            caller.check_everything()

    @property
    def is_change(self) -> bool:
        """Whether the audit log keeps it."""
        return self.scope in ("operate", "endpoints", "admin") and self.method != "GET"

    @property
    def summary(self) -> str:
        """The first line of the handler's docstring."""
        return self.description.partition("\n")[0]

    @property
    def description(self) -> str:
        """The handler's docstring."""
        return inspect.cleandoc(self.handler.__doc__ or "")

    def __repr__(self) -> str:
        return f"<Route {self.method} {self.path}>"


class _Node(msgspec.Struct):
    """One segment of the paths."""

    named: dict[str, _Node] = {}
    any: _Node | None = None
    routes: dict[str, Route] = {}


MOST_PATHS, LONGEST_PATH = 1000, 200
"""The maximum number of paths that are cached with their routes, and of characters of one."""


class Router:
    """Finds the route of a request. A fixed segment precedes a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._known: dict[tuple[str, str], tuple[Route, Mapping[str, str]]] = {}
        for route in routes:
            node = self._root
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    node.any = node = node.any or _Node()
                else:
                    node = node.named.setdefault(segment, _Node())
            if route.method in node.routes:
                raise ValueError(f"{route} is declared twice")
            node.routes[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """
        Return the route of a path, as `Request.path` has it, and the parameters by name.

        Raises Problem if there is no such path, or if it does not support the method.
        """
        found = self._known.get((method, path))
        if found is None:
            found = self._find(method, segments_of(path))
            if len(path) <= LONGEST_PATH:
                if len(self._known) >= MOST_PATHS:
                    self._known.clear()
                self._known[method, path] = found
        return found

    def _find(self, method: str, segments: list[str]) -> tuple[Route, dict[str, str]]:
        values: list[str] = []
        node = self._walk(self._root, segments, 0, values)
        if node is None:
            raise Problem("not-found", "there is no such path; /docs lists all paths")
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*node.routes, *(["HEAD"] if "GET" in node.routes else [])}))
            raise Problem(
                "method-not-allowed",
                f"the path does not support {method[:20]}, only {allowed}",
                headers=(("allow", allowed),),
            )
        if not values:
            return route, {}
        return route, dict(zip(route.parameters, values, strict=True))

    def _walk(self, node: _Node, segments: list[str], at: int, values: list[str]) -> _Node | None:
        if at == len(segments):
            return node if node.routes else None
        segment = segments[at]
        if (named := node.named.get(segment)) is not None:
            found = self._walk(named, segments, at + 1, values)
            if found is not None:
                return found
        if node.any is None or not segment:
            return None
        values.append(segment)
        found = self._walk(node.any, segments, at + 1, values)
        if found is None:
            values.pop()
        return found
