"""`laneway.presenting` and `laneway.live`: what the command line shares with the demo."""

from __future__ import annotations

import json

import pytest

from laneway import Laneway
from laneway.engines.base import Overview, TierStats, TopicStats
from laneway.live import delivered_between, look, rate_between
from laneway.message import RAW
from laneway.presenting import (
    beginning,
    duration,
    exact_size,
    json_text,
    moment,
    table_lines,
    topic_state,
)


def test_bodies_are_json_or_text() -> None:
    """A JSON body is part of the document; bytes are text; infinity is null."""
    views = [
        {"body": b'{"a": 1}', "headers": {}},
        {"body": b'{"a": 1}', "headers": {"content-type": RAW}},
        {"body": b"\xff", "rate": float("inf")},
    ]
    shown = json.loads(json_text(views))
    assert [view["body"] for view in shown] == [{"a": 1}, '{"a": 1}', "\ufffd"]
    assert shown[2]["rate"] is None


def test_tables_align_numbers_to_the_right() -> None:
    """Columns of numbers are aligned to the right; control characters are escaped."""
    assert table_lines(("topic", "waiting"), [("a\x1b", 1_000), ("b", None)]) == [
        "topic  waiting",
        "a\\x1b    1,000",
        "b            -",
    ]
    assert table_lines(("topic",), []) == ["topic"]
    long = "x" * 61
    assert table_lines(("topic", "state"), [("a", "idle"), (long, "idle")]) == [
        "topic  state",
        "a      idle",
        f"{long}  idle",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0.25, "250 ms"), (90, "90.0 s"), (5_400, "90.0 min"), (200_000, "2.3 d")],
)
def test_durations_are_rounded(seconds: float | None, text: str | None) -> None:
    assert duration(seconds) == text


def test_times_sizes_and_bodies() -> None:
    assert (moment(None), moment(0)) == (None, "1970-01-01 00:00:00Z")
    assert moment(1 << 62) == "9999-12-31 23:59:59Z"
    assert [exact_size(each) for each in (1 << 20, 10**9, 1_001)] == [
        "1 MiB",
        "1 GB",
        "1,001 bytes",
    ]
    assert beginning("x" * 100) == "x" * 57 + "…"


def test_a_topic_with_delayed_messages_only_is_scheduled() -> None:
    assert topic_state(TopicStats("a", state="idle", delayed=1)) == "scheduled"
    assert topic_state(TopicStats("a", state="idle")) == "idle"
    assert topic_state(TopicStats("a", state="paused", delayed=1)) == "paused"


def test_rates_are_changes_between_two_overviews() -> None:
    """A counter that starts over, because the store is new, has the rate 0."""
    tiers = [TierStats("default", "high", 6, delivered=10)]
    before = Overview(now_us=1_000_000, topics=1, done=100, published=500, tiers=tiers)
    later = [
        TierStats("default", "high", 6, delivered=25),
        TierStats("default", "low", 1, delivered=3),
    ]
    now = Overview(now_us=3_000_000, topics=1, done=160, published=10, tiers=later)
    assert rate_between(before, now, "done") == 30.0
    assert rate_between(before, now, "published") == 0.0
    assert delivered_between(before, now) == [15, 3]


def test_a_look_has_the_overview_and_the_first_topics() -> None:
    """The overview, the first topics, and the URL as it may be shown."""
    with Laneway("sqlite://") as app:
        app.publish("push.acme", 1)
        seen = look(app, app.engine.overview(), "backlog", 10)
    assert [topic.topic for topic in seen.topics] == ["push.acme"]
    assert json.loads(json_text(seen.as_dict()))["overview"]["waiting"] == 1
