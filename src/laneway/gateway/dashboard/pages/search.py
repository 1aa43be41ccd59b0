"""Search: a topic by its name, a message by its id, or by topic and id or key."""

from __future__ import annotations

from typing import Any

from laneway.admin import top_topics
from laneway.engines.base import MessageView, TopicStats
from laneway.errors import LanewayError
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages import endpoint
from laneway.gateway.dashboard.pages.topic import reasons_of
from laneway.gateway.dashboard.queries import SearchQuery
from laneway.gateway.dashboard.view import View
from laneway.policy import check_pattern, check_topic, is_pattern

MOST = 20
EXPLAINED = 3
"""The maximum number of topics for which the page explains why they wait."""

LOOKED_AT = 100
"""Messages of a topic in which a key is looked for."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    text = view.query.q.strip()
    first, _, rest = text.partition(" ")
    rest = rest.strip()
    topics = _topics(view, first) if first else []
    messages = _messages(view, text, first, rest) if text else []
    exact = [] if rest else [each for each in topics if is_named(each.topic, first)][:EXPLAINED]
    return {
        "explained": [(each, reasons_of(view, each.topic).reasons) for each in exact],
        "searched": text,
        "topics": topics,
        "messages": messages,
        "has_key": bool(rest),
        "looked_at": LOOKED_AT,
    }


def is_named(topic: str, name: str) -> bool:
    """Whether a topic has this name, or ends with it behind a dot, as `push.acme` with `acme`."""
    return topic == name or topic.endswith(f".{name}")


def _topics(view: View, name: str) -> list[TopicStats]:
    """
    The topic with this name, those whose names begin with it and a dot, and those that have it in
    place of the star of a policy's pattern: `acme` finds `push.acme` where there is `push.*`.
    """
    found: dict[str, TopicStats] = {}
    for beginning in ("", *top_topics.beginnings(view.reader.policies())):
        _add_topic(view, beginning + name, found, is_typed=not beginning)
    for pattern in (name if is_pattern(name) else "", f"{name.rstrip('.')}.*"):
        try:
            check_pattern(pattern)
        except LanewayError:
            continue
        for own in view.caller.narrowed(pattern):
            if is_pattern(own):
                for stats in view.reader.topics("name", (own,), MOST):
                    found[stats.topic] = stats
            else:
                _add_topic(view, own, found)
    return list(found.values())[:MOST]


def _add_topic(
    view: View, name: str, found: dict[str, TopicStats], *, is_typed: bool = False
) -> None:
    """Add a topic that the caller may see, if something is known of it."""
    try:
        check_topic(name)
    except LanewayError:
        return
    if view.caller.covers(name):
        stats = view.reader.topic(name)
        is_pushed = view.may("endpoints") and endpoint.info_of(view, name) is not None
        if is_pushed or top_topics.is_known(stats) or (is_typed and _says_more(view, name)):
            found[name] = stats


def _says_more(view: View, name: str) -> bool:
    """Whether more can be said of a topic than that nothing waits."""
    return any(each.cause != "empty" for each in reasons_of(view, name).reasons)


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
