"""
Actions of pages. Each is one or more requests of the API, which are made as if the caller had sent
them: the same routes check the same scopes and topics, and write the same audit log. Each can be
shown as a command.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shlex
from collections import OrderedDict
from collections.abc import Callable  # msgspec reads the annotations
from typing import Any
from urllib.parse import quote

import msgspec

from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.policy import FIELDS

LISTS = ("topic", "id", "scope")
"""Fields that a form may have more than once."""

TEXTS = (
    "as",
    "back",
    "background",
    "body",
    "concurrency",
    "confirm",
    "delay",
    "dry",
    "expires",
    "fair_by",
    "fields",
    "fingerprint",
    "key",
    "limit",
    "message",
    "name",
    "number",
    "pattern",
    "patterns",
    "priority",
    "reserve",
    "result",
    "share",
    "since",
    "sure",
    "worker",
)
"""Fields that it has once, besides the settings of policies and what they were (`was_NAME`)."""

NAMES = sorted({*TEXTS, *FIELDS, *(f"was_{name}" for name in FIELDS)} - set(LISTS))

Fields: type[msgspec.Struct] = msgspec.defstruct(
    "Fields",
    [
        *((f"field_{name}", str, "") for name in NAMES),
        *((f"field_{name}", list[str], msgspec.field(default_factory=list)) for name in LISTS),
    ],
    rename=lambda name: name.removeprefix("field_"),
    forbid_unknown_fields=True,
)
"""The form of every action. `as` is no name of a field in Python, so all have a prefix."""


class Form:
    """A form that was sent."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        """A field without white space around it."""
        return self.exact(name).strip()

    def exact(self, name: str) -> str:
        """A field as it is, such as a topic's name."""
        found: str = getattr(self._fields, f"field_{name}")
        return found

    def first(self, name: str) -> str:
        """A field as it is, or the first value of one of `LISTS`; "" without one."""
        return next(iter(self.all(name)), "") if name in LISTS else self.exact(name)

    def all(self, name: str) -> list[str]:
        """All values of a field of `LISTS`."""
        found: list[str] = getattr(self._fields, f"field_{name}")
        return found

    def number(self, name: str) -> int | None:
        """A whole number; None if the field is empty. Raises Problem."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise Problem(
                "bad-request", f"{name}: expected a whole number, got {text:.80}"
            ) from None

    def pairs(self) -> list[tuple[str, str]]:
        """The fields that are not empty, to send them again."""
        return [
            *((name, value) for name in NAMES if (value := self.exact(name)) and name != "as"),
            *((name, value) for name in LISTS for value in self.all(name)),
        ]


MOST_TOPICS = 200
"""Most topics that one action changes."""

_FIELD = re.compile(r"{(\w+)}")


class ApiCall(msgspec.Struct, frozen=True):
    """A request of the API. `body`: as JSON, or None without one."""

    method: str
    path: str
    body: Any = None

    def command(self, base: str) -> str:
        """The request as a command of a shell. `base`: the gateway's URL."""
        parts = ["curl", "-X", self.method, shlex.quote(base + self.path)]
        text = " ".join(parts) + ' \\\n  -H "authorization: Bearer $TOKEN"'
        if self.body is not None:
            content = json.dumps(self.body, ensure_ascii=False)
            text += " \\\n  -H 'content-type: application/json' \\\n  -d " + shlex.quote(content)
        return text


class Action(msgspec.Struct, frozen=True):
    """
    An action. `label`: of its button. `scope`: what it needs. `calls`: its requests, from a form;
    raises Problem. `done`: the text of its result; `{count}` is in some answers. `asks`: what it
    deletes or ends for good: the page asks first. `undo`: the action that undoes it.
    """

    label: str
    scope: str
    calls: Callable[[Form], list[ApiCall]]
    done: Callable[[Form], str]
    asks: str = ""
    undo: str = ""


def _segment(name: str) -> str:
    """A name as a segment of a path."""
    if not name:
        raise Problem("bad-request", "the form lacks a name")
    return quote(name, safe="")


def _topics(form: Form) -> list[str]:
    found = form.all("topic")
    if not found:
        raise Problem("bad-request", "no topic was chosen")
    if len(found) > MOST_TOPICS:
        raise Problem("bad-request", f"expected at most {MOST_TOPICS} topics, got {len(found)}")
    return found


def _named(form: Form) -> str:
    topics = form.all("topic")
    return topics[0] if len(topics) == 1 else f"{len(topics)} topics"


def _request(method: str, path: str, body: Any = None) -> Callable[[Form], list[ApiCall]]:
    """One request; its path has fields of the form: `/v1/gates/{name}/reset`."""
    return lambda form: [ApiCall(method, _filled(path, form), body)]


def _filled(path: str, form: Form) -> str:
    return _FIELD.sub(lambda field: _segment(form.first(field[1])), path)


def _given(**fields: Any) -> dict[str, Any]:
    """The fields of a request's body that have a value."""
    return {name: value for name, value in fields.items() if value not in (None, "", [])}


def _each(step: str) -> Callable[[Form], list[ApiCall]]:
    return lambda form: [
        ApiCall("POST", f"/v1/topics/{_segment(topic)}/{step}") for topic in _topics(form)
    ]


def _typed(name: str, text: str) -> Any:
    """A policy setting as it was typed: a number, a word, or nothing, which removes it."""
    if not text:
        return None
    if name in ("gate", "subscriptions", "backoff") and text[0] in "[{":
        try:
            return json.loads(text)
        except ValueError as error:
            raise Problem("bad-request", f"{name}: {error}") from None
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = float(text)
    except ValueError:
        return text
    return found if math.isfinite(found) else text


def _change_policy(form: Form) -> list[ApiCall]:
    """The settings that differ from those that the page showed (`was_NAME`)."""
    fields = {
        name: _typed(name, form.text(name))
        for name in FIELDS
        if form.text(name) != form.text(f"was_{name}")
    }
    if not fields:
        raise Problem("bad-request", "nothing was changed in the form")
    query = "?dry_run=true" if form.text("dry") else ""
    return [
        ApiCall("PATCH", f"/v1/policies/{_segment(topic)}{query}", fields)
        for topic in _topics(form)
    ]


def _put_policy(form: Form) -> list[ApiCall]:
    try:
        fields = json.loads(form.text("fields") or "{}")
    except ValueError as error:
        raise Problem("bad-request", f"fields: {error}") from None
    return [ApiCall("PUT", _filled("/v1/policies/{pattern}", form), fields)]


def _purge(form: Form) -> list[ApiCall]:
    confirmed = {"confirm": form.text("confirm")}
    return [ApiCall("POST", _filled("/v1/topics/{topic}/purge", form), confirmed)]


def _publish(form: Form) -> list[ApiCall]:
    text = form.text("body")
    try:
        content = json.loads(text) if text else None
    except ValueError as error:
        raise Problem("bad-request", f'body: expected JSON ({error}); quote a text: "…"') from None
    options = _given(
        key=form.text("key"), delay=form.text("delay"), priority=form.number("priority")
    )
    path = _filled("/v1/topics/{topic}/messages", form)
    return [ApiCall("POST", path, {"body": content, **options})]


def _letters(step: str) -> Callable[[Form], list[ApiCall]]:
    """For all topics, or each one that is given: a fingerprint and ids belong to a topic."""

    def calls(form: Form) -> list[ApiCall]:
        body = _given(
            ids=form.all("id"),
            limit=form.number("limit"),
            fingerprint=form.text("fingerprint"),
            rate=_typed("rate", form.text("rate")) if step == "redrive" else None,
            dry_run=bool(form.text("dry")) or None,
            background=bool(form.text("background")) or None,
        )
        topics: list[str | None] = [*_topics(form)] if form.all("topic") else [None]
        return [ApiCall("POST", f"/v1/dead/{step}", body | _given(topic=topic)) for topic in topics]

    return calls


def _replay(form: Form) -> list[ApiCall]:
    return [
        ApiCall("POST", _filled("/v1/endpoints/{topic}/replay", form), {"id": form.first("id")})
    ]


def _replay_many(form: Form) -> list[ApiCall]:
    body = _given(
        since=form.text("since"),
        result=form.text("result"),
        rate=form.text("rate"),
        limit=form.number("limit"),
        dry_run=bool(form.text("dry")) or None,
    )
    return [ApiCall("POST", _filled("/v1/endpoints/{topic}/replay", form), body)]


def _replayed(form: Form) -> str:
    before = "Nothing was sent. It would be: " if form.text("dry") else ""
    return (
        f"{before}Messages sent again: {{replayed}}; dead letters put back: {{redriven}};"
        " waiting anyway: {waiting}; without a body in the log: {not_kept}."
    )


def _back_off(form: Form) -> list[ApiCall]:
    body = {"delay": _typed("delay", form.text("delay") or "0")}
    return [
        ApiCall("POST", f"/v1/topics/{_segment(topic)}/back-off", body) for topic in _topics(form)
    ]


def _set_tier(form: Form) -> list[ApiCall]:
    reserve = _given(reserve=_typed("reserve", form.text("reserve")))
    body = {"share": _typed("share", form.text("share")), **reserve}
    return [ApiCall("PUT", _filled("/v1/tiers/{name}", form), body)]


def _set_gate(form: Form) -> list[ApiCall]:
    body = _given(rate=_typed("rate", form.text("rate")), concurrency=form.number("concurrency"))
    return [ApiCall("PUT", _filled("/v1/gates/{name}", form), body)]


def _cancel_job(form: Form) -> list[ApiCall]:
    topic = form.exact("pattern")
    query = f"?topic={quote(topic, safe='')}" if topic else ""
    return [ApiCall("DELETE", _filled("/v1/jobs/{id}", form) + query)]


def _undo_change(form: Form) -> list[ApiCall]:
    return [ApiCall("POST", f"/v1/audit/{form.number('number') or 0}/undo")]


def _create_token(form: Form) -> list[ApiCall]:
    patterns = re.split(r"[,\s]+", form.text("patterns"))
    options = _given(
        topics=[each for each in patterns if each], expires=_typed("expires", form.text("expires"))
    )
    body = {"name": form.text("name"), "scopes": form.all("scope"), **options}
    return [ApiCall("POST", "/v1/tokens", body)]


def _message_action(label: str, step: str, asks: str = "", undo: str = "") -> Action:
    calls = _request("POST", f"/v1/topics/{{topic}}/messages/{{id}}/{step}")
    return Action(
        label, "operate", calls, lambda form: f"{form.all('id')[0]}: {{done}}.", asks, undo
    )


ACTIONS: dict[str, Action] = {
    "pause": Action(
        "Pause",
        "operate",
        _each("pause"),
        lambda form: f"{_named(form)}: paused.",
        undo="resume",
    ),
    "resume": Action(
        "Resume",
        "operate",
        _each("resume"),
        lambda form: f"{_named(form)}: resumed.",
        undo="pause",
    ),
    "change_policy": Action(
        "Change", "operate", _change_policy, lambda form: f"{_named(form)}: the policy was changed."
    ),
    "put_policy": Action(
        "Undo",
        "operate",
        _put_policy,
        lambda form: f"{form.exact('pattern')}: the policy is as it was before.",
    ),
    "purge": Action(
        "Purge", "operate", _purge, lambda form: f"{_named(form)}: messages removed: {{count}}."
    ),
    "publish": Action(
        "Publish", "publish", _publish, lambda form: f"{_named(form)}: message {{id}}, {{outcome}}."
    ),
    "redrive": Action("Redrive", "operate", _letters("redrive"), lambda _: "{count} redriven."),
    "drop": Action(
        "Drop",
        "operate",
        _letters("drop"),
        lambda _: "{count} dropped.",
        asks="Dropped dead letters are deleted, with their bodies.",
    ),
    "drain_worker": Action(
        "Drain",
        "operate",
        _request("POST", "/v1/workers/{worker}/drain?timeout=5"),
        lambda form: f"{form.exact('worker')}: {{answer}}",
        asks="The worker takes no more messages, and ends when its running handlers have ended.",
    ),
    "dump_stacks": Action(
        "Stacks",
        "operate",
        _request("POST", "/v1/workers/{worker}/stack-dump?timeout=5"),
        lambda form: f"{form.exact('worker')}:\n{{answer}}",
    ),
    "set_tier": Action(
        "Change", "operate", _set_tier, lambda form: f"Tier {form.exact('name')}: changed."
    ),
    "set_gate": Action(
        "Change", "operate", _set_gate, lambda form: f"Gate {form.exact('name')}: changed."
    ),
    "reset_gate": Action(
        "Reset",
        "operate",
        _request("POST", "/v1/gates/{name}/reset"),
        lambda form: f"Gate {form.exact('name')}: reset.",
    ),
    "pause_schedule": Action(
        "Pause",
        "operate",
        _request("POST", "/v1/schedules/{name}/pause"),
        lambda form: f"{form.exact('name')}: paused.",
        undo="resume_schedule",
    ),
    "resume_schedule": Action(
        "Resume",
        "operate",
        _request("POST", "/v1/schedules/{name}/resume"),
        lambda form: f"{form.exact('name')}: resumed.",
        undo="pause_schedule",
    ),
    "run_schedule": Action(
        "Run now",
        "operate",
        _request("POST", "/v1/schedules/{name}/run"),
        lambda form: f"{form.exact('name')}: message {{id}}, {{outcome}}.",
    ),
    "run_doctor": Action(
        "Run the doctor",
        "admin",
        _request("POST", "/v1/doctor"),
        lambda _: "The doctor has begun.",
    ),
    "stop_operation": Action(
        "Stop",
        "operate",
        _request("DELETE", "/v1/operations/{id}"),
        lambda form: f"{form.all('id')[0]}: it stops.",
    ),
    "cancel_job": Action(
        "Cancel",
        "operate",
        _cancel_job,
        lambda form: f"{form.all('id')[0]}: cancelled.",
        asks="A cancelled job does not run. If it runs now, its handler is asked to stop.",
    ),
    "undo_change": Action(
        "Undo", "admin", _undo_change, lambda form: f"Change {form.text('number')}: undone."
    ),
    "create_token": Action(
        "Create",
        "admin",
        _create_token,
        lambda form: f"Token {form.text('name')}: created.",
    ),
    "message_retry": _message_action("Retry now", "retry"),
    "message_dead": _message_action("Move to dead letters", "dead", undo="redrive"),
    "message_drop": _message_action(
        "Delete", "drop", "The message is deleted, with its body. Nobody is told its outcome."
    ),
    "message_cancel": _message_action(
        "Cancel",
        "cancel",
        "The message is not delivered again. A running handler is asked to stop.",
    ),
    "message_release": _message_action("Release", "release"),
    "back_off": Action(
        "Back off",
        "operate",
        _back_off,
        lambda form: f"{_named(form)}: backs off for {form.text('delay') or 'no time'}.",
    ),
    "enable_endpoint": Action(
        "Enable",
        "endpoints",
        _request("POST", "/v1/endpoints/{topic}/enable"),
        lambda form: f"{_named(form)}: enabled; one message is sent as a probe first.",
    ),
    "disable_endpoint": Action(
        "Disable",
        "endpoints",
        _request("POST", "/v1/endpoints/{topic}/disable", {"reason": "by hand"}),
        lambda form: f"{_named(form)}: disabled; its messages wait.",
        undo="enable_endpoint",
    ),
    "test_endpoint": Action(
        "Test",
        "endpoints",
        _request("POST", "/v1/endpoints/{topic}/test"),
        lambda form: f"Test of {_named(form)}: {{tested}}",
    ),
    "rotate_secret": Action(
        "Rotate",
        "endpoints",
        _request("POST", "/v1/endpoints/{topic}/rotate"),
        lambda form: f"{_named(form)}: rotated.",
    ),
    "replay": Action(
        "Replay",
        "endpoints",
        _replay,
        lambda form: f"{form.all('id')[0]}: sent again, as message {{new_id}}.",
    ),
    "replay_many": Action("Replay", "endpoints", _replay_many, _replayed),
    "revoke_token": Action(
        "Revoke",
        "admin",
        _request("DELETE", "/v1/tokens/{name}"),
        lambda form: f"Token {form.exact('name')}: revoked.",
        asks="Programs and people that use the token are refused from now on.",
    ),
}
"""The actions by name."""


# The results of actions, which the next page shows


MAX_NOTICES = 1000
"""Results of actions that are kept until the next page shows them."""


class Notice(msgspec.Struct, frozen=True):
    """
    The result of an action, for the page after it. `kind`: "good" or "bad". `undo`: the action that
    undoes it, and the fields of its form. `command`: the same as a command. `failed`, `typed`: the
    action that was refused, and what was typed in its form.
    """

    text: str
    kind: str = "good"
    command: str = ""
    undo: tuple[str, dict[str, Any]] | None = None
    failed: str = ""
    typed: dict[str, str] = {}


class Notices:
    """The results of actions, each for the caller who made it."""

    def __init__(self) -> None:
        self._notices: OrderedDict[str, tuple[Caller, Notice]] = OrderedDict()

    def add(self, caller: Caller, notice: Notice) -> str:
        """Keep a result. Returns its name."""
        name = secrets.token_urlsafe(12)
        self._notices[name] = caller, notice
        while len(self._notices) > MAX_NOTICES:
            self._notices.popitem(last=False)
        return name

    def find(self, caller: Caller, name: str) -> Notice | None:
        """The caller's result with that name, if this gateway has it."""
        owner, notice = self._notices.get(name, (None, None))
        return notice if owner is not None and owner.token == caller.token else None
