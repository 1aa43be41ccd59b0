"""`View`: what a page gets to build its content, and `Urls`, which has every path of pages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from laneway.engines.base import FullEngine, TopicStats
from laneway.errors import UsageError
from laneway.gateway.dashboard.collector import Point
from laneway.gateway.dashboard.reader import Reader
from laneway.gateway.extension import StaticFiles
from laneway.gateway.login.access import Caller
from laneway.printable import redacted
from laneway.runtime.runtime import Runtime

ASSETS = StaticFiles("/static", files("laneway.gateway.dashboard") / "static")
"""Styles and scripts, under paths that change with their content."""


class Urls(msgspec.Struct, frozen=True):
    """The paths of pages, under the gateway's prefix. `embed`: they have no menu."""

    prefix: str = ""
    embed: bool = False

    def page(self, path: str, **query: object) -> str:
        """A page by its path; parameters that are None or "" are left out."""
        given = {name: str(value) for name, value in query.items() if value not in (None, "")}
        if self.embed:
            given["embed"] = "true"
        return self.prefix + path + (f"?{urlencode(given)}" if given else "")

    def topic(self, name: str, **query: object) -> str:
        """
        A topic's page. Its name is a parameter: as a segment of the path, browsers would resolve a
        topic `..`, and some proxies decode `%2F`.
        """
        return self.page("/topic", name=name, **query)

    def message(self, topic: str, message_id: str) -> str:
        """A message's page."""
        return self.page("/message", topic=topic, id=message_id)

    def asset(self, name: str) -> str:
        """A static file."""
        return self.prefix + ASSETS.url(name)

    def action(self, name: str) -> str:
        """Where the form of an action is sent."""
        return f"{self.prefix}/actions/{name}"


class Link(NamedTuple):
    """A link to the dashboard of another namespace."""

    name: str
    url: str


def check_link(text: str) -> Link:
    """A link of `NAME=URL`. Raises UsageError."""
    name, _, url = text.partition("=")
    if not name.strip() or not url.startswith(("http://", "https://", "/")):
        raise UsageError(
            '--namespace-link: expected NAME=URL, like "eu=https://queues-eu.example", got'
            f" {text!r:.120}"
        )
    return Link(name.strip(), url)


class View(msgspec.Struct, frozen=True):
    """
    A request for a page, as `build` of the page gets it.

    `path`: the page's path and query. `query`: decoded.
    `base`: the gateway's URL, as the browser knows it. `points`: of a topic, see
    `Collector`. `links`: to the dashboards of other namespaces.
    """

    reader: Reader
    caller: Caller
    urls: Urls
    path: str
    query: Any
    base: str
    namespace: str
    runtime: Runtime
    points: Callable[[TopicStats], list[Point]]
    links: tuple[Link, ...] = ()

    @property
    def engine(self) -> FullEngine:
        """The engine, for what no other page reads."""
        return self.reader.engine

    @property
    def opening(self) -> str:
        """
        The Python line that opens the gateway's store, without its password. Who sees some topics
        only does not learn where it is.
        """
        if not self.caller.sees_all:
            return "app = Laneway(...)"
        url = redacted(self.runtime.url)
        path = url.removeprefix("sqlite:///")
        if path != url and path[:1] not in ("/", ""):  # relative to the folder of the gateway
            url = f"sqlite:///{os.path.abspath(path)}"
        named = "" if self.namespace == "default" else f", namespace={json.dumps(self.namespace)}"
        return f"app = Laneway({json.dumps(url)}{named})"

    @property
    def shows_bodies(self) -> bool:
        """Whether the caller may see bodies of messages."""
        return "bodies" in self.caller.scopes

    def may(self, scope: str) -> bool:
        """Whether the caller has a scope; a page leaves out what it may not do."""
        return scope in self.caller.scopes
