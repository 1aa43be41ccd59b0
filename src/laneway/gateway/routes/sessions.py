"""Log in and out with a browser."""

from __future__ import annotations

import contextlib
import re

import msgspec

from laneway.gateway import problems
from laneway.gateway.call import Call
from laneway.gateway.extension import html, redirect
from laneway.gateway.http import FORM, Response
from laneway.gateway.login import origins, sessions
from laneway.gateway.login.access import SESSION_SECONDS, Caller, Session
from laneway.gateway.pages import login_page
from laneway.gateway.schema import LoginAnswer, LoginBody, LoginQuery
from laneway.gateway.wire import encode, moment
from laneway.units import SECOND

MAX_LOGIN = 8 << 10
"""Most bytes of a login."""

_login = msgspec.json.Decoder(LoginBody)
_LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")
"""A path without spaces, control characters and backslashes, which no browser takes for a host."""


def local_path(path: str) -> str:
    """Where a login leads: a path of the gateway. That of another site becomes the first page."""
    return path if _LOCAL_PATH.fullmatch(path) else ""


async def show_login(call: Call) -> Response:
    """The page on which a person logs in. A browser that already has a session continues."""
    query: LoginQuery = call.query
    following = local_path(query.next)
    if following and await is_logged_in(call):  # by another tab
        return redirect(following)
    return _page(call, following)


async def is_logged_in(call: Call) -> bool:
    """Whether the browser has a session."""
    request, kept = call.request, call.services.sessions
    if not kept.has_cookie(request):
        return False
    try:
        return kept.cached(request) is not None or bool(await call.services.run(kept.read, request))
    except problems.Problem:
        return False


def _page(call: Call, following: str, problem: str = "") -> Response:
    for extension in call.services.extensions:
        if (found := extension.login(call.request, following, problem)) is not None:
            return found
    return html(login_page(call.request.url(""), following, problem))


async def log_in(call: Call) -> Response:
    """
    Log a browser in: the answer's cookie stands for the token from now on.

    The browser may send JSON, or a form with the fields `token` and `next` (a path), whose answer
    leads there. The session ends 12 hours after its last use, 7 days after the login, at
    `POST /logout`, and when the token is revoked or expires.
    """
    request = call.request
    if request.header(b"sec-fetch-site") == "none" or origins.is_of_other_site(request):
        raise problems.Problem("forbidden", "a login comes from the gateway's own page")
    sessions.check_secure(request)
    if request.content_type == FORM:
        return await _by_form(call)
    if request.content_type != "application/json":
        raise problems.Problem(
            "unsupported-media",
            f"expected the content type application/json, got {request.content_type:.80}",
        )
    body = problems.read_json(_login, await request.body(MAX_LOGIN), "body")
    caller = await _caller(call, body.token)
    session, cookie = await _begin(call, caller)
    answer = LoginAnswer(
        name=caller.name,
        scopes=sorted(caller.scopes),
        topics=None if caller.sees_all else list(caller.patterns),
        expires=moment(session.expires_s * SECOND),
        csrf=session.csrf,
    )
    return Response(200, encode(answer), headers=[cookie])


async def _by_form(call: Call) -> Response:
    form = await call.request.form()
    following = local_path(form.get("next", [""])[0])
    try:
        caller = await _caller(call, form.get("token", [""])[0].strip())
    except problems.Problem as problem:
        status, _ = problems.KINDS[problem.kind]
        page = _page(call, following, str(problem))
        page.status = status
        return page
    _, cookie = await _begin(call, caller)
    first = "/" if call.services.extensions else "/docs"
    answer = redirect(following or call.request.url(first))
    answer.headers.append(cookie)
    return answer


async def _caller(call: Call, token: str) -> Caller:
    services, address = call.services, call.request.address
    caller = services.tokens.cached(token, address)
    if caller is None:
        caller = await services.tokens.read(services.run_shared, token, address)
    return caller


async def _begin(call: Call, caller: Caller) -> tuple[Session, tuple[bytes, bytes]]:
    assert caller.token is not None
    value, session = await call.services.run(call.services.sessions.begin, caller.token)
    header = sessions.cookie_header(call.request, value, SESSION_SECONDS)
    return session, header


async def log_out(call: Call) -> Response:
    """End the session of a browser, at all gateways within a second."""
    request, kept = call.request, call.services.sessions
    is_form = request.content_type == FORM
    caller = None
    if kept.has_cookie(request):
        if not origins.is_same_origin(request):
            raise problems.Problem("forbidden", "a logout comes from the gateway's own page")
        with contextlib.suppress(problems.Problem):  # it has ended already
            caller = kept.cached(request)
            if caller is None:
                caller = await call.services.run(kept.read, request)
    if caller is not None and caller.session is not None:
        if request.content_type != "application/json":
            form = await request.form() if is_form else {}
            sessions.check_form(request, caller, form.get("csrf", [""])[0])
        await call.services.run(kept.end, caller.session)
    answer = redirect(request.url("/login")) if is_form else Response(200, b"{}")
    answer.headers.append(sessions.cookie_header(request, "", 0))
    return answer
