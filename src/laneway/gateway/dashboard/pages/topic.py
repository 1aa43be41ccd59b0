"""Topic: why one topic stands, what binds it, what is in it, and how to change that."""

from __future__ import annotations

from typing import Any, cast

from laneway import presenting
from laneway.admin import subscriptions
from laneway.admin.topic_reasons import TopicExplanation
from laneway.engines.base import HELD_STATES, HeldState, MessageView, TopicStats
from laneway.gateway import visible_reasons
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.pages import endpoint
from laneway.gateway.dashboard.queries import TopicQuery
from laneway.gateway.dashboard.view import View
from laneway.gateway.problems import Problem
from laneway.history import figures
from laneway.policy import DISABLED, FIELDS, check_topic
from laneway.push import table
from laneway.subscriptions import is_copy

PEEKED = 20
DEAD = 20

TABS = ("next", *HELD_STATES, "dead")

MOST_KEYS = 8
"""Keys of leased messages that are named."""

HOUR = 3600.0

SHOWN_SUBSCRIPTIONS = 50
"""Subscriptions that are listed, those with the largest backlogs."""

EDITED = ("rate", "burst", "concurrency", "weight", "tier", "retries", "lease", "ttl")
"""The settings that have a field in the form."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader, name = view.reader, check_topic(view.query.name)
    view.caller.check_topic(name)
    stats, now_us = reader.topic(name), reader.now_us()
    policies = reader.policies()
    settings = reader.once(("why", name), lambda: policies.why(name))
    resolved = reader.once(("policy", name), lambda: view.engine.policy_of(name))
    tab = view.query.show
    if tab not in TABS:
        raise Problem("bad-request", f"show: expected one of {', '.join(TABS)}, got {tab[:80]}")
    target = endpoint.info_of(view, name) if view.may("endpoints") else None
    head, letters = _messages(view, name, tab)
    leased = _peek(view, name, "leased") if stats.leased else []
    keys = list(dict.fromkeys(each.key for each in leased if each.key is not None))
    return {
        "name": name,
        "stats": stats,
        "state": words.topic_state(stats),
        "age": None if stats.oldest_us is None else max(0.0, (now_us - stats.oldest_us) / 1e6),
        "now_us": now_us,
        "rate": resolved.rate,
        "rate_part": stats.rate_now / resolved.rate if resolved.rate else None,
        **_charts(view, stats, has_history=resolved.history),
        "concurrency": resolved.concurrency,
        "settings": [
            {
                "name": name,
                "value": presenting.setting_in_words(name, value),
                "layer": layer,
                "pattern": pattern,
            }
            for name, (value, layer, pattern) in sorted(settings.items())
            if name in FIELDS  # the subscriptions have a table of their own
        ],
        "is_disabled": DISABLED in settings,
        "edited": _edited(settings),
        "cursors": sorted(stats.cursors.items(), reverse=True),
        "tab": tab,
        "messages": head,
        "tabs": _tabs(stats),
        "keys": keys[:MOST_KEYS],
        "keys_left": max(0, len(keys) - MOST_KEYS),
        "peeked": PEEKED,
        "letters": letters,
        "shows_bodies": view.shows_bodies,
        "reasons": reasons_of(view, name).reasons,
        **_subscriptions(view, name),
        "source": name.partition("#")[0] if is_copy(name) else None,
        "may_operate": view.may("operate"),
        "may_publish": view.may("publish"),
        "endpoint": target,
        "trouble": table.troubles(view.engine, [name]).get(name) if target else None,
        "is_known": bool(stats.published or stats.waiting or stats.leased or stats.dead),
    }


def _subscriptions(view: View, name: str) -> dict[str, Any]:
    """The subscriptions with the largest backlogs, and how many others there are."""
    found = (
        []
        if is_copy(name)
        else view.reader.seldom(
            ("subscriptions", name), lambda: subscriptions.find(view.engine, name)
        )
    )
    shown = sorted(found, key=lambda each: (-each.waiting, each.name))[:SHOWN_SUBSCRIPTIONS]
    return {"subscriptions": shown, "subscriptions_left": len(found) - len(shown)}


def _charts(view: View, stats: TopicStats, *, has_history: bool) -> dict[str, Any]:
    """
    Its backlog and deliveries over time: of the last hour if its policy keeps a history, else of
    the last 5 minutes, as far as a page had it.
    """
    points = [(round(each.at), each.waiting, each.rate) for each in view.points(stats)]
    if has_history:
        rows = view.reader.seldom(
            ("topic history", stats.topic),
            lambda: (
                figures.read(
                    view.engine,
                    last=HOUR,
                    pattern=stats.topic,
                    latest=view.reader.latest(),
                    largest=[stats],
                ).rows
            ),
        )
        points = [
            (round(row.start), row.waiting, row.delivered / row.seconds if row.seconds else 0.0)
            for row in rows
        ]
    times, waiting, rates = zip(*points, strict=True) if points else ((), (), ())
    return {
        "x": times,
        "has_history": has_history,
        "charts": [
            ("waiting", "Waiting", "", waiting),
            ("rate", "Deliveries per second", "/s", rates),
        ]
        if len(points) > 1
        else [],
    }


def _messages(
    view: View, name: str, tab: str
) -> tuple[list[MessageView], list[tuple[int, MessageView]]]:
    reader = view.reader
    if tab == "dead":
        return [], reader.once(
            ("dead", name), lambda: view.engine.dead_list(name, limit=DEAD, after=0)
        )
    return _peek(view, name, None if tab == "next" else cast("HeldState", tab)), []


def _peek(view: View, name: str, state: HeldState | None) -> list[MessageView]:
    return view.reader.once(
        ("peek", name, state), lambda: view.engine.topic_peek(name, limit=PEEKED, state=state)
    )


def _tabs(stats: TopicStats) -> list[tuple[str, int | None]]:
    """The tabs, and how many messages each has; `next` is several states."""
    counts = {name: getattr(stats, name) for name in (*HELD_STATES, "dead")}
    return [(name, counts.get(name)) for name in TABS if name in ("next", "dead") or counts[name]]


def reasons_of(view: View, name: str) -> TopicExplanation:
    """Why a topic is blocked, as far as the caller may know."""
    caller = view.caller
    return view.reader.once(
        ("reasons", name, caller.sees_all, "endpoints" in caller.scopes, "admin" in caller.scopes),
        lambda: visible_reasons.of_topic(view.runtime, caller, name),
    )


def _edited(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields of the form, with what is set."""
    found = []
    for name in EDITED:
        value = settings[name][0] if name in settings else None
        found.append({"name": name, "value": "" if value is None else _typed(value)})
    return found


def _typed(value: Any) -> str:
    return str(value).removesuffix(".0")  # with all digits: `:g` has 30 days as 2.592e+06


PAGE = Page(
    name="topic",
    path="/topic",
    title="Topic",
    build=build,
    query=TopicQuery,
    fragments=("strip", "binds", "curves", "messages"),
)
