"""Message: where one message is, what it waits for, and what happened to it."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import quote

from laneway import arguments
from laneway.engines.base import Explanation
from laneway.gateway import visible_reasons
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.actions import ACTIONS
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages import endpoint
from laneway.gateway.dashboard.queries import MessageQuery
from laneway.gateway.dashboard.view import View
from laneway.policy import check_topic

STEPS = {
    "delayed": ("published", "delayed"),
    "ready": ("published", "ready"),
    "parked": ("published", "parked"),
    "leased": ("published", "ready", "leased"),
    "dead": ("published", "leased", "dead"),
    "finished": ("published", "leased", "finished"),
}
"""The way of a message to its state."""

NEXT = {
    "delayed": ("ready", "leased", "finished"),
    "ready": ("leased", "finished"),
    "parked": ("ready", "leased", "finished"),
    "leased": ("finished",),
}
"""The steps that are to come."""

POSSIBLE = {
    "delayed": ("message_retry", "message_dead", "message_drop", "message_cancel"),
    "ready": ("message_dead", "message_drop", "message_cancel"),
    "parked": ("message_dead", "message_drop", "message_cancel"),
    "leased": ("message_release", "message_cancel"),
    "dead": ("message_retry", "message_drop"),
}
"""The actions by state."""


REPLAYABLE = ("dead", "finished", "unknown")
"""The states in which a message may be sent to its endpoint again."""


def find(view: View) -> tuple[str, str, Explanation]:
    """The topic and the id of the message of the page, and what is known of it. Raises Problem."""
    topic = check_topic(view.query.topic)
    view.caller.check_topic(topic)
    message_id = arguments.name("message", "the id", view.query.id)
    reader = view.reader
    found: Explanation = reader.once(
        ("explain", topic, message_id, view.may("endpoints"), view.caller.sees_all),
        lambda: visible_reasons.of_message(view.engine, view.caller, message_id, topic),
    )
    if found.topic is not None and found.topic != topic:
        view.caller.check_topic(found.topic)  # a generated id is found whatever topic is named
        topic = found.topic
    return topic, message_id, found


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    topic, message_id, found = find(view)
    message, reader = found.message, view.reader
    body, what, is_cut = ("", "", False)
    if message is not None and view.shows_bodies:
        body, what, is_cut = words.body_text(message)
    path = f"/v1/topics/{quote(topic, safe='')}/messages/{quote(message_id, safe='')}"
    return {
        "topic": topic,
        "id": message_id,
        "found": found,
        "message": message,
        "now_us": reader.now_us(),
        "steps": STEPS.get(found.state, ()),
        "next_steps": NEXT.get(found.state, ()),
        "shows_bodies": view.shows_bodies,
        "body": body,
        "body_kind": what,
        "body_is_cut": is_cut,
        "body_bytes": sum(map(len, message.bodies or [message.body])) if message else 0,
        "is_pushed": view.may("endpoints") and endpoint.info_of(view, topic) is not None,
        "can_replay": found.state in REPLAYABLE,
        "command": f"curl {shlex.quote(view.base + path)}",
        "python": f"app.find({message_id!r}, topic={topic!r})",
        "actions": [
            (name, ACTIONS[name].label)
            for name in POSSIBLE.get(found.state, ())
            if view.may("operate")
        ],
    }


PAGE = Page(
    name="message",
    path="/message",
    title="Message",
    build=build,
    query=MessageQuery,
    fragments=("place",),
)
