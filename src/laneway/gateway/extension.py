"""
What a package adds to a gateway: pages for people, with forms and static files.

```python
class Hello(Extension):
    assets = StaticFiles("/hello/static", files("hello") / "static")

    def __init__(self):
        self.routes = (
            page("GET", "/hello", "read", self.show, query=HelloQuery),
            page("POST", "/hello", "operate", self.rename, form=HelloForm),
            *self.assets.routes,
        )

    def show(self, call):
        \"\"\"A page.\"\"\"
        style = call.request.url(self.assets.url("hello.css"))
        return html(f'<link rel="stylesheet" href="{style}"> Hello {escape(call.query.name)}')

gateway = Gateway(app, extensions=[Hello()])       # `app.asgi(extensions=[Hello()])`
```

A handler gets a `Call`:

- `call.query`: the parameters of the URL, decoded by the `query` struct (numbers and booleans
  too); `call.parameters`: those of the path, `"/hello/{name}"`; `call.topic`: a checked one.
- `call.body`: the fields of the `form` struct. A field that is a list gets all values of its name.
- `call.caller`: who asks. `check_scope`, `covers`, `narrowed` show what they may see. The gateway
  has checked the route's scope. With the scope None it checks nobody: then `caller` is meaningless.
- `call.engine`, `call.services.runtime`: the store and the application.
- `call.request.url("/hello")`: a link, with the prefix under which the gateway is mounted.

A plain function runs in a thread; it may use the store. A coroutine function runs on the event
loop and may return a `Stream` (server-sent events). A handler returns `html(…)`, `redirect(…)`, or
any `Response`. Each form has the hidden field `csrf` with the value `call.caller.csrf`; a form that
htmx sends needs none, and a script sends JSON to the API itself. Changes (`operate`, `admin`) by
plain functions are kept in the audit log.

Errors are pages as well: a browser without a session is sent to `/login` and back; other problems
are shown by `problem` of the first extension that returns an answer. `login` replaces the login's
page in the same way. Every answer has the strict Content-Security-Policy of `http`.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.gateway.call import Call
from laneway.gateway.http import HTML, IMMUTABLE, Request, Response
from laneway.gateway.login.access import Scope
from laneway.gateway.problems import ProblemBody
from laneway.gateway.routing import Route
from laneway.gateway.schema import NoQuery

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


HASH_DIGITS = 12
LEAST_COMPRESSED = 500
"""Files of fewer bytes are sent as they are."""


class Extension:
    """The base class of what a package adds to a gateway. See the module's docstring."""

    routes: Sequence[Route] = ()
    """The routes, of `page` and `StaticFiles`."""

    def problem(self, request: Request, body: ProblemBody) -> Response | None:
        """The page of a problem, or None if another extension shows it."""
        del request, body
        return None

    def login(self, request: Request, following: str, problem: str) -> Response | None:
        """
        The page with the form of a login, which posts `token` and `next` to `/login`, or None if
        another extension shows it.

        Arguments: `following`: the value of `next`. `problem`: why the last login failed, or "".
        """
        del request, following, problem
        return None

    def close(self) -> None:
        """End threads when the gateway stops. The streams of pages have already ended."""


class NoForm(msgspec.Struct, forbid_unknown_fields=True):
    """A form without fields, but for `csrf`."""


def page(
    method: str,
    path: str,
    scope: Scope | None,
    handler: Callable[[Call], Any],
    *,
    query: type[msgspec.Struct] = NoQuery,
    form: type[msgspec.Struct] = NoForm,
    answer_type: str = "text/html",
) -> Route:
    """
    A route for people.

    Arguments: `form`: the fields of a POST. `answer_type`: `text/event-stream` of a stream.
    """
    fields = None if method == "GET" else form
    return Route(
        method,
        path,
        scope,
        handler,
        query=query,
        form=fields,
        answer_type=answer_type,
        is_page=True,
    )


def html(text: str, status: int = 200) -> Response:
    """A page."""
    return Response(status, text.encode(), HTML)


def redirect(url: str) -> Response:
    """Send the browser to a page with GET. `url`: from `call.request.url`."""
    return Response(303, b"", HTML, [(b"location", url.encode("ascii", "xmlcharrefreplace"))])


class StaticFiles:
    """
    The files of a folder and its folders, read once, for browsers to keep.

    The URL of each file has a hash of all files, so relative links between them work, and a changed
    file has a new URL.
    """

    def __init__(self, path: str, folder: Traversable) -> None:
        """`path`: under which they are served, such as `/static`."""
        contents = dict(sorted(_files(folder, "")))
        digest = hashlib.sha256()
        for name, content in contents.items():
            digest.update(b"%s\0%d\0%s" % (name.encode(), len(content), content))
        self._path = f"{path}/{digest.hexdigest()[:HASH_DIGITS]}"
        self._names = frozenset(contents)
        self.routes = tuple(
            page("GET", self.url(name), None, _sender(name, content), answer_type=_type(name))
            for name, content in contents.items()
        )

    def url(self, name: str) -> str:
        """The path of a file, such as `vendor/htmx.min.js`, without the mount point."""
        if name not in self._names:
            raise KeyError(f"{name}: there is no such file; available: {sorted(self._names)}")
        return f"{self._path}/{name}"


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _files(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name, each.read_bytes()


def _type(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _sender(name: str, content: bytes) -> Callable[[Call], Coroutine[Any, Any, Response]]:
    content_type = _type(name).encode()
    compressed = gzip.compress(content, mtime=0) if len(content) >= LEAST_COMPRESSED else content
    vary = (b"vary", b"accept-encoding")

    async def send(call: Call) -> Response:
        """A file of pages."""
        takes_gzip = "gzip" in (call.request.header(b"accept-encoding") or "")
        if takes_gzip and len(compressed) < len(content):
            headers = [vary, (b"content-encoding", b"gzip")]
            return Response(200, compressed, content_type, headers, cache=IMMUTABLE)
        return Response(200, content, content_type, [vary], cache=IMMUTABLE)

    return send
