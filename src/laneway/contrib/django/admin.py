"""Dead letters in Django's admin, and the dashboard under its login."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponse, HttpResponseRedirect, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import path, re_path, reverse
from django.views.decorators.csrf import csrf_exempt

from laneway import DeadLetter as Letter, LanewayError
from laneway.contrib.django.application import application
from laneway.contrib.django.models import Dashboard, DeadLetter
from laneway.contrib.wsgi import LoopThread
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.contrib.hosted import Caller, HostedGateway

PAGE = 50
"""Dead letters of a page."""


class _Outside(admin.ModelAdmin):
    """What is not in Django's database."""

    def has_add_permission(self, request: Any) -> bool:
        """Nothing is added here."""
        del request
        return False

    def context(self, request: Any, **more: Any) -> dict[str, Any]:
        """What the admin's templates need."""
        return {**self.admin_site.each_context(request), "opts": self.opts, **more}


@admin.register(DeadLetter)
class DeadLetterAdmin(_Outside):
    """List dead letters, read their errors, redrive and delete them."""

    def get_urls(self) -> list[Any]:
        """The list and a letter."""
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name="laneway_deadletter_changelist"),
            path("<int:number>/", view(self.letter_view), name="laneway_deadletter_change"),
        ]

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """The list, or what its form asks for."""
        del extra_context
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            return self.act(request)
        topic, after = request.GET.get("topic") or None, _number(request.GET.get("after"))
        try:
            letters = application().dead_letters.list(topic, after=after, limit=PAGE + 1)
        except LanewayError as error:
            letters = []
            self.message_user(request, str(error), messages.ERROR)
        context = self.context(
            request,
            title="Dead letters",
            letters=[_shown(letter) for letter in letters[:PAGE]],
            following=letters[PAGE - 1].number if len(letters) > PAGE else None,
            heads=("Topic", "Message", "Reason", "Attempts", "Died"),
            topic=topic or "",
            may_redrive=self.has_change_permission(request),
            may_delete=self.has_delete_permission(request),
        )
        return TemplateResponse(request, "admin/laneway/dead_letters.html", context)

    def letter_view(self, request: Any, number: int) -> Any:
        """One letter: its error, history and body."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = application().dead_letters.list(after=max(0, number - 1), limit=1)
        if not found or found[0].number != number:
            raise Http404
        context = self.context(
            request,
            title=f"Dead letter {found[0].message.id}",
            letter=_shown(found[0]),
            may_redrive=self.has_change_permission(request),
            may_delete=self.has_delete_permission(request),
        )
        return TemplateResponse(request, "admin/laneway/dead_letter.html", context)

    def act(self, request: Any) -> Any:
        """Redrive or delete the chosen dead letters."""
        action = request.POST.get("action")
        allowed = {"redrive": self.has_change_permission, "delete": self.has_delete_permission}
        if action not in allowed or not allowed[action](request):
            raise PermissionDenied
        chosen = request.POST.getlist("letter")
        if action == "delete" and chosen and "confirmed" not in request.POST:
            context = self.context(request, title="Delete dead letters", chosen=chosen)
            return TemplateResponse(request, "admin/laneway/confirm.html", context)
        by_topic: dict[str, list[str]] = {}
        for topic, message_id in map(json.loads, chosen):
            by_topic.setdefault(topic, []).append(message_id)
        nouns = application().dead_letters
        call = nouns.redrive if action == "redrive" else nouns.drop
        try:
            count = sum(call(topic, ids) for topic, ids in by_topic.items())
        except LanewayError as error:
            self.message_user(request, str(error), messages.ERROR)
        else:
            done = "put back into their topics" if action == "redrive" else "deleted"
            self.message_user(request, f"{count} {done}.", messages.SUCCESS)
        return HttpResponseRedirect(reverse("admin:laneway_deadletter_changelist"))


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _shown(letter: Letter) -> dict[str, Any]:
    message = letter.message
    return {
        "letter": letter,
        "value": json.dumps([message.topic, message.id]),
        "died_at": datetime.fromtimestamp(letter.died_at, UTC),
        "body": json.dumps(message.body, indent=2, default=repr),
        "history": [
            (
                datetime.fromtimestamp(each.get("at_us", 0) / SECOND, UTC),
                each.get("what", ""),
                str(each.get("error") or each.get("reason") or "").partition("\n")[0],
            )
            for each in letter.history
        ],
    }


@admin.register(Dashboard)
class DashboardAdmin(_Outside):
    """
    Laneway's dashboard. `view_dashboard` shows all but bodies of messages, `change_dashboard` also
    changes topics and policies; superusers see and change everything.
    """

    def get_urls(self) -> list[Any]:
        """All paths below it."""
        view = self.admin_site.admin_view(csrf_exempt(self.serve), cacheable=True)
        return [
            path("", view, name="laneway_dashboard_changelist"),
            re_path("^(?P<rest>.*)$", view),
        ]

    def serve(self, request: Any, rest: str = "") -> Any:
        """Answer by the gateway, which has the strict checks of its own sessions for changes."""
        caller = self._caller(request)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": request.scheme,
            "root_path": request.path[: len(request.path) - len(rest) - 1],
            "path": request.path,
            "raw_path": quote(request.path).encode(),
            "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in {**request.headers, "Host": request.get_host()}.items()
                if name != "Cookie"
            ],
            "client": (request.META.get("REMOTE_ADDR", ""), 0),
            "laneway.caller": caller,
        }
        exchange = _loop.begin(_gateway(), scope, request.body)
        if ("content-type", "text/event-stream") in exchange.headers:
            parts = exchange.aparts() if hasattr(request, "scope") else exchange.parts()
            response: Any = StreamingHttpResponse(parts, status=exchange.status)
        else:
            response = HttpResponse(b"".join(exchange.parts()), status=exchange.status)
        for name, value in exchange.headers:
            response.headers[name] = value
        return response

    def _caller(self, request: Any) -> Caller:
        from laneway.contrib import hosted  # noqa: PLC0415  # needs the extra "gateway"

        if not self.has_view_permission(request):
            raise PermissionDenied
        scopes = hosted.CHANGE if self.has_change_permission(request) else hosted.READ
        if request.user.is_superuser:
            scopes = hosted.EVERYTHING
        return hosted.Caller(request.user.get_username(), scopes)


_loop = LoopThread()


@functools.cache
def _gateway() -> HostedGateway:
    from laneway.contrib.hosted import HostedGateway  # noqa: PLC0415

    return HostedGateway(application(), _caller_of)


def _caller_of(scope: Mapping[str, Any]) -> Caller:
    caller: Caller = scope["laneway.caller"]
    return caller
