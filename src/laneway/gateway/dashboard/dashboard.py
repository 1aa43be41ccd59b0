"""`Dashboard`: the pages of a gateway, what keeps them live, and the actions of their forms."""

from __future__ import annotations

import csv
import functools
import gzip
import io
import json
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from laneway.engines.base import MessageView
from laneway.gateway import problems
from laneway.gateway.call import Call
from laneway.gateway.dashboard import rendering
from laneway.gateway.dashboard.actions import (
    ACTIONS,
    Action,
    ApiCall,
    Fields,
    Form,
    Notice,
    Notices,
)
from laneway.gateway.dashboard.collector import Collector
from laneway.gateway.dashboard.local_login_pages import login_page
from laneway.gateway.dashboard.menu import ALL, MENU, PAGES
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages import message
from laneway.gateway.dashboard.queries import ExportQuery, LiveQuery, MessageQuery
from laneway.gateway.dashboard.reader import Reader
from laneway.gateway.dashboard.view import ASSETS, Link, Urls, View
from laneway.gateway.extension import Extension, html, page, redirect
from laneway.gateway.gateway import run_blocking
from laneway.gateway.http import JSON, Request, Response, Stream
from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.gateway.route_table import ROUTES
from laneway.gateway.routing import Router
from laneway.gateway.services import Services
from laneway.message import RAW
from laneway.runtime.runtime import Application
from laneway.units import counted

NO_PAGE = Page(name="", path="", title="", build=lambda _: {})
"""What answers to forms show: nothing of it is kept live, and it is not in the menu."""

LEAST_COMPRESSED = 1000
"""Pages of fewer bytes are sent as they are."""

STREAM_SECONDS = 60.0
"""A stream's maximum duration. The browser opens it again, and its token's rights are checked."""


class Dashboard(Extension):
    """
    The dashboard of an application's namespace: `app.asgi(extensions=[Dashboard(app)])`.

    `links`: to the dashboards of other namespaces, for the menu.

    Raises UsageError if Jinja2 is not installed.
    """

    def __init__(self, app: Application, links: Sequence[Link] = ()) -> None:
        rendering.environment()
        self._runtime = app.runtime
        self._links = tuple(links)
        self.collector = Collector(lambda: self._runtime.engine)
        self.notices = Notices()
        self.routes = (
            *(
                page(
                    "GET",
                    each.path,
                    each.scope,
                    functools.partial(self.show, each),
                    query=each.query,
                )
                for each in ALL
            ),
            page(
                "GET", "/live", "read", self.live, query=LiveQuery, answer_type="text/event-stream"
            ),
            page("GET", "/export", "read", self.export, query=ExportQuery, answer_type="text/csv"),
            page("GET", "/message/body", "bodies", self.body, query=MessageQuery),
            page("GET", "/embed/topics/{topic}", "read", self.embed),
            page("POST", "/actions/{action}", "read", self.act, form=Fields),
            *ASSETS.routes,
        )

    # Pages

    def show(self, shown: Page, call: Call) -> Response:
        """A page."""
        if shown.is_whole and not call.caller.sees_all:
            if shown.path == "/":  # the first page of a caller with some topics is their list
                return redirect(Urls(call.request.url(""), call.query.embed).page("/topics"))
            call.caller.check_everything()
        query = {name: value for name, value in call.request.query.items() if name != "did"}
        view = self._view(call, self.collector.reader(), Urls().page(shown.path, **query))
        notice = self.notices.find(call.caller, call.query.did) if call.query.did else None
        text = rendering.page_text(
            shown, view, self._menu(call.caller), csrf=call.caller.csrf, notice=notice
        )
        return compressed(call.request, html(text))

    def embed(self, call: Call) -> Response:
        """A topic for the frame of a portal: its endpoint, if it has one, else the topic."""
        topic, urls = call.topic, Urls(call.request.url(""), embed=True)
        if "endpoints" in call.caller.scopes:
            (record,) = call.engine.record_read("endpoint", [topic])
            if record is not None:
                return redirect(urls.page("/endpoint", topic=topic))
        return redirect(urls.topic(topic))

    def _view(
        self, call: Call, reader: Reader, path: str, query: Any = None, *, embed: bool = False
    ) -> View:
        query = call.query if query is None else query
        return View(
            reader=reader,
            caller=call.caller,
            urls=Urls(call.request.url(""), embed or getattr(query, "embed", False)),
            path=path,
            query=query,
            links=self._links,
            base=_base(call.request),
            namespace=self._runtime.namespace,
            runtime=self._runtime,
            points=self.collector.points,
        )

    @staticmethod
    def _menu(caller: Caller) -> list[Page]:
        """The pages in the menu that a caller may see."""
        return [
            each
            for each in MENU
            if each.scope in caller.scopes and (caller.sees_all or not each.is_whole)
        ]

    def problem(self, request: Request, body: problems.ProblemBody) -> Response | None:
        """The page of a problem."""
        variables = {"body": body, "urls": Urls(request.url(""))}
        return compressed(request, html(rendering.text_of("problem.html", variables), body.status))

    def login(self, request: Request, following: str, problem: str) -> Response | None:
        """The page on which a person logs in with a token."""
        return login_page(request, following, problem)

    # Live updates

    async def live(self, call: Call) -> Stream:
        """Keep a page live, as server-sent events."""
        parts = _split(call.query.of)
        watched = PAGES.get(parts.path)
        if watched is None or not watched.fragments:
            raise Problem("not-found", f"no page with the path {parts.path:.80} is live")
        path, query = _checked(call, watched, parts.query)

        def render(reader: Reader) -> Mapping[str, str]:
            return rendering.fragment_texts(watched, self._view(call, reader, path, query))

        caller, services = call.caller, call.services
        key = path, _base(call.request), caller.patterns, caller.scopes
        page = await self.collector.open(services, key, render)
        token, wait = caller.token or caller.name, call.request.while_there
        events = self.collector.watch(services, key, page, token, wait, STREAM_SECONDS)
        headers = [(b"x-accel-buffering", b"no")]
        return Stream(events, b"text/event-stream", headers=headers)

    # Export

    def export(self, call: Call) -> Response:
        """What a page's table shows, as CSV or JSON."""
        parts = _split(call.query.of)
        shown = PAGES.get(parts.path)
        if shown is None or shown.export is None:
            raise Problem("not-found", f"no page with the path {parts.path:.80} has an export")
        path, query = _checked(call, shown, parts.query)
        rows = shown.export(shown.build(self._view(call, self.collector.reader(), path, query)))
        found = exported(shown.name, rows, as_csv=call.query.format == "csv")
        return compressed(call.request, found)

    def body(self, call: Call) -> Response:
        """The whole body of a message, as a file."""
        call.caller.check_scope("read")
        view = self._view(call, self.collector.reader(), "/message")
        _, _, found = message.find(view)
        if found.message is None:
            raise Problem("not-found", f"the message {call.query.id[:80]} no longer exists")
        return compressed(call.request, body_file(found.message))

    # Actions

    async def act(self, call: Call) -> Response:
        """Perform an action of a page, or show it as a command."""
        name = call.parameters["action"]
        action = ACTIONS.get(name)
        if action is None:
            raise Problem("not-found", f"there is no action {name[:80]}")
        form = Form(call.body)
        try:
            calls = action.calls(form)
        except Problem as error:  # of what was typed
            return self._back(call, form, self._refusal(call, form, error))
        asks = action.asks and not (form.text("sure") or form.text("dry"))
        if asks or form.text("as") == "command":
            return await call.services.run(self._show_command, call, action, form, calls)
        return await self._perform(call, action, form, calls)

    def _show_command(
        self, call: Call, action: Action, form: Form, calls: Sequence[ApiCall]
    ) -> Response:
        view = self._view(call, self.collector.reader(), "/", embed=_is_embedded(form))
        variables = {
            **self._frame(call, view),
            "label": action.label,
            "action": call.parameters["action"],
            "scope": action.scope,
            "command": _commands(call, calls),
            "asks": "" if form.text("as") == "command" else action.asks,
            "fields": form.pairs(),
            "back": _back(call, form),
        }
        return compressed(call.request, html(rendering.text_of("command.html", variables)))

    def _show_secret(self, call: Call, form: Form, secret: str, *, is_token: bool) -> Response:
        # Immediately, not on the next page: with the first token, that page needs a login.
        view = self._view(call, self.collector.reader(), "/tokens", embed=_is_embedded(form))
        variables = {
            **self._frame(call, view),
            "name": form.text("name") or ", ".join(form.all("topic")),
            "secret": secret,
            "is_token": is_token,
            "back": _back(call, form),
        }
        return compressed(call.request, html(rendering.text_of("secret.html", variables)))

    def _frame(self, call: Call, view: View) -> dict[str, Any]:
        return {
            "page": NO_PAGE,
            "menu": self._menu(call.caller),
            "notice": None,
            "rendered_us": None,
            "view": view,
            "urls": view.urls,
            "csrf": call.caller.csrf,
        }

    async def _perform(
        self, call: Call, action: Action, form: Form, calls: Sequence[ApiCall]
    ) -> Response:
        done, count, undo = 0, 0, None
        if action.undo:
            undo = (
                action.undo,
                {"name": form.exact("name")} | {each: form.all(each) for each in ("topic", "id")},
            )
        answer: dict[str, Any] = {}
        try:
            for each in calls:
                response = await perform(call.services, call.request, call.caller, each)
                answer, done = _answer_of(response), done + 1
                count += answer.get("count", 0)
                answer |= {"count": count}
                if response.undo is not None and len(calls) == 1:
                    pattern, fields = response.undo
                    undo = "put_policy", {"pattern": pattern, "fields": json.dumps(fields)}
            if secret := answer.get("token") or answer.get("secret"):
                show = functools.partial(self._show_secret, is_token="token" in answer)
                return await call.services.run(show, call, form, secret)
            is_dry = bool(answer.get("dry_run"))
            text = _dry_text(answer) if is_dry else _filled(action.done(form), answer)
            notice = Notice(text, command=_commands(call, calls), undo=None if is_dry else undo)
        except Exception as error:  # noqa: BLE001  # raised again if it is not about the form
            before = f" ({done} of {len(calls)} were done before)" if done else ""
            notice = self._refusal(call, form, error, before)
        finally:
            self.collector.forget()
        return self._back(call, form, notice)

    @staticmethod
    def _refusal(call: Call, form: Form, error: Exception, before: str = "") -> Notice:
        """The error of an action, with what was typed. Raises it if the form is not at fault."""
        body, _ = problems.body_of(error)
        if body.status >= problems.CLIENT_ERROR:
            raise error
        failed = call.parameters["action"]
        return Notice(body.detail + before, "bad", failed=failed, typed=dict(form.pairs()))

    def _back(self, call: Call, form: Form, notice: Notice) -> Response:
        """The page that the form is on, with a result."""
        back = _back(call, form)
        name = self.notices.add(call.caller, notice)
        return redirect(f"{back}{'&' if '?' in back else '?'}did={name}")


def compressed(request: Request, answer: Response) -> Response:
    """The answer, compressed if it is worth it and the browser can read that."""
    answer.headers.append((b"vary", b"accept-encoding"))
    if len(answer.body) >= LEAST_COMPRESSED and "gzip" in (
        request.header(b"accept-encoding") or ""
    ):
        answer.body = gzip.compress(answer.body, 5, mtime=0)
        answer.headers.append((b"content-encoding", b"gzip"))
    return answer


def _checked(call: Call, shown: Page, text: str) -> tuple[str, Any]:
    """
    The path of a page with its query, and the query decoded, of a caller who may see it. Raises
    Problem, including for a query that is not valid.
    """
    call.caller.check_scope(shown.scope)
    if shown.is_whole:
        call.caller.check_everything()
    given = dict(parse_qsl(text, keep_blank_values=True))
    query = problems.converted(given, shown.query, "query")
    return Urls().page(shown.path, **given), query


def _commands(call: Call, calls: Sequence[ApiCall]) -> str:
    return "\n".join(each.command(_base(call.request)) for each in calls)


def _base(request: Request) -> str:
    host = request.header(b"host") or "localhost:7878"
    return f"{request.scope.get('scheme', 'http')}://{host[:253]}{request.url('')}"


def _back(call: Call, form: Form) -> str:
    """The page that the form is on. Nothing else: this is no way to other sites."""
    parts = _split(form.exact("back"))
    urls = Urls(call.request.url(""))
    if parts.scheme or parts.netloc or parts.path not in PAGES:
        return urls.page("/")
    return urls.page(parts.path, **dict(parse_qsl(parts.query, keep_blank_values=True)))


def _split(text: str) -> SplitResult:
    """A path with a query; what is no URL, such as `//[`, is a path that no page has."""
    try:
        return urlsplit(text)
    except ValueError:
        return SplitResult("", "", text, "", "")


def _is_embedded(form: Form) -> bool:
    """Whether the page that the form is on has no menu."""
    return "embed" in dict(parse_qsl(_split(form.exact("back")).query))


def _answer_of(response: Response) -> dict[str, Any]:
    found = json.loads(response.body) if response.body else {}
    return found if isinstance(found, dict) else {}


def _filled(text: str, answer: Mapping[str, Any]) -> str:
    counts = ("replayed", "redriven", "waiting", "not_kept")
    for name in ("count", "id", "outcome", "done", "answer", *counts):
        text = text.replace(f"{{{name}}}", str(answer.get(name, "")))
    if answer.get("operation"):
        return "It continues in the background; this page shows its progress."
    if "{new_id}" in text:
        text = text.replace("{new_id}", "".join(answer.get("ids", [])[:1]))
    return text.replace("{tested}", _tested(answer)) if "{tested}" in text else text


def _tested(answer: Mapping[str, Any]) -> str:
    """The answer to a test request: what it means, how long it took, and its body."""
    took = max(answer.get("milliseconds", {}).values(), default=0.0)
    lines = [f"{answer.get('text', '')}, after {took:.0f} ms"]
    lines += [f"{name}: {value}" for name, value in answer.get("headers", {}).items()]
    return "\n".join([*lines, "", answer["body"]] if answer.get("body") else lines)


def _dry_text(answer: Mapping[str, Any]) -> str:
    if "fields" not in answer:
        return f"Nothing was changed. It would be {counted(answer['count'], 'message')}."
    fields = json.dumps(answer.get("fields", {}), ensure_ascii=False)
    return f"Nothing was changed. The operator's policy would be {fields}."


# Performing an action: its requests use the API's routes, with the caller's rights


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
        body = problems.read_json(route.body, msgspec.json.encode(call.body), "form")
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


# What a page's table shows, as CSV or JSON


OCTETS = b"application/octet-stream"

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A text that begins so would be a formula in a spreadsheet."""


def exported(name: str, rows: Sequence[dict[str, Any]], *, as_csv: bool) -> Response:
    """The rows of a table as a file. `name`: of the page."""
    ending, kind = ("csv", b"text/csv; charset=utf-8") if as_csv else ("json", b"application/json")
    body = _csv(rows).encode(errors="replace") if as_csv else msgspec.json.encode(rows)
    disposition = f'attachment; filename="laneway-{name}.{ending}"'.encode()
    return Response(200, body, kind, [(b"content-disposition", disposition)])


def body_file(view: MessageView) -> Response:
    """
    The whole body of a message as a file; bodies that were merged are one after the other, a line
    each. A browser saves it, and shows none of it as a page.
    """
    body = b"\n".join(view.bodies or [view.body])
    is_raw = (view.headers or {}).get("content-type") == RAW
    ending, kind = ("bin", OCTETS) if is_raw or not _is_json(view) else ("json", JSON)
    disposition = f'attachment; filename="laneway-message.{ending}"'.encode()
    return Response(200, body, kind, [(b"content-disposition", disposition)])


def _is_json(view: MessageView) -> bool:
    try:
        for each in view.bodies or [view.body]:
            msgspec.json.decode(each, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return len(view.bodies or "1") == 1


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    if rows:
        writer = csv.writer(file)
        writer.writerow(rows[0])
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    value = msgspec.to_builtins(value)
    if isinstance(value, (list, dict)):
        value = msgspec.json.encode(value).decode()
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
