"""Search: a topic by its name, a message by its id, or by topic and id or key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.errors import LanewayError
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import SearchQuery
from laneway.policy import check_pattern, check_topic, is_pattern

if TYPE_CHECKING:
    from laneway.engines.base import MessageView, TopicStats
    from laneway.gateway.dashboard.view import View

MOST = 20
LOOKED_AT = 100
"""Messages of a topic in which a key is looked for."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    text = view.query.q.strip()
    first, _, rest = text.partition(" ")
    rest = rest.strip()
    topics = _topics(view, first) if first else []
    messages = _messages(view, text, first, rest) if text else []
    return {
        "searched": text,
        "topics": topics,
        "messages": messages,
        "has_key": bool(rest),
        "looked_at": LOOKED_AT,
    }


def _topics(view: View, name: str) -> list[TopicStats]:
    """The topic with this name, and those whose names begin with it and a dot."""
    found: dict[str, TopicStats] = {}
    for pattern in (name, f"{name.rstrip('.')}.*"):
        try:
            check_pattern(pattern)
        except LanewayError:
            continue
        for own in view.caller.narrowed(pattern):
            if is_pattern(own):
                for stats in view.reader.topics("name", (own,), MOST):
                    found[stats.topic] = stats
            else:
                stats = view.reader.topic(own)
                if stats.published or stats.waiting or stats.leased or stats.dead:
                    found[stats.topic] = stats
    return list(found.values())[:MOST]


def _messages(view: View, text: str, topic: str, rest: str) -> list[MessageView]:
    """Messages by id, or by topic and id or key, that the caller may see."""
    found: list[MessageView | None] = []
    if not rest:
        found = [view.engine.find(text)] if len(text) <= 200 and text.isprintable() else []
    else:
        try:
            check_topic(topic)
        except LanewayError:
            return []
        if view.caller.covers(topic):
            by_id = view.engine.find(rest, topic)
            found = [by_id] if by_id is not None else [*_by_key(view, topic, rest)]
    return [each for each in found if each is not None and view.caller.covers(each.topic)]


def _by_key(view: View, topic: str, key: str) -> list[MessageView]:
    waiting = view.engine.topic_peek(topic, limit=LOOKED_AT)
    dead = [letter for _, letter in view.engine.dead_list(topic, limit=LOOKED_AT)]
    return [each for each in (*waiting, *dead) if each.key == key][:MOST]


PAGE = Page(name="search", path="/search", title="Search", build=build, query=SearchQuery)
