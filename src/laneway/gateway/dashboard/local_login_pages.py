"""The login: with a token, or with a one-time code that `laneway dev` or `serve` shows."""

from __future__ import annotations

import msgspec

from laneway.gateway.call import Call
from laneway.gateway.dashboard import rendering
from laneway.gateway.dashboard.view import Urls
from laneway.gateway.extension import Extension, html, page, redirect
from laneway.gateway.http import Request, Response
from laneway.gateway.login import local_login, origins, sessions
from laneway.gateway.login.access import SESSION_SECONDS, check_local
from laneway.gateway.problems import Problem
from laneway.gateway.routes.sessions import is_logged_in, local_path

FORBIDDEN = 403

USED = "This link was used already, or it is older than ten minutes."
OTHER_USER = "The browser belongs to another user of this machine."


class CodeForm(msgspec.Struct, forbid_unknown_fields=True):
    """A one-time login. `next`: the path that it leads to."""

    code: str = ""
    next: str = ""


def login_page(
    request: Request, following: str, problem: str, command: str | None = None
) -> Response:
    """The page of a login. `command`: the one that shows links that log in, or None."""
    variables = {
        "urls": Urls(request.url("")),
        "following": following,
        "problem": problem,
        "command": command,
    }
    return html(rendering.text_of("login.html", variables))


class LocalLoginPages(Extension):
    """The login of `laneway dev` and `laneway serve`."""

    def __init__(self, logins: local_login.LocalLogin) -> None:
        self._logins = logins
        self.routes = (page("POST", "/login/code", None, self.exchange, form=CodeForm),)

    def login(self, request: Request, following: str, problem: str) -> Response:
        """The page with a form, which a script fills in from the link's fragment and sends."""
        return login_page(request, following, problem, self._logins.command)

    async def exchange(self, call: Call) -> Response:
        """Begin a session if the code is valid."""
        request, form = call.request, call.body
        check_local(request)
        if request.header(b"sec-fetch-site") == "none" or origins.is_of_other_site(request):
            raise Problem("forbidden", "a login comes from the gateway's own page")
        following = local_path(form.next)
        if local_login.is_of_other_user(request):
            return self._refused(request, following, OTHER_USER)
        if not self._logins.use_code(form.code.strip()):
            if await is_logged_in(call):
                return redirect(following or request.url("/"))
            return self._refused(request, following, USED)
        value, _ = await call.services.run(call.services.sessions.begin, local_login.SESSION_OWNER)
        answer = redirect(following or request.url("/"))
        answer.headers.append(sessions.cookie_header(request, value, SESSION_SECONDS))
        return answer

    def _refused(self, request: Request, following: str, problem: str) -> Response:
        answer = self.login(request, following, problem)
        answer.status = FORBIDDEN
        return answer
