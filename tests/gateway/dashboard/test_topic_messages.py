"""The messages on a topic's page: by state, with the keys that are held, and dead ones redriven."""

from __future__ import annotations

from html import unescape

import pytest

from laneway import Laneway, Message
from laneway.gateway.dashboard import collector
from laneway.history import sampling
from laneway.message import Settlement
from tests.gateway.dashboard.conftest import Browser


def test_messages_by_state(browser: Browser, app: Laneway) -> None:
    """Each state that has messages has a tab with its count; leased ones say when a lease ends."""
    app.publish("tabs.a", 1, id="held", key="order-7")
    app.engine.lease(1, topics=["tabs.a"])
    app.publish("tabs.a", 2, id="next")
    app.publish("tabs.a", 3, id="later", delay="1h")
    page = browser.get("/topic?name=tabs.a")
    assert "next ready 1 delayed 1 leased 1 dead" in page.words
    assert "keys held order-7" in page.words
    assert "parked" not in page.words
    for state, ids in (("ready", "next"), ("delayed", "later"), ("leased", "held")):
        page = browser.get(f"/topic?name=tabs.a&show={state}")
        assert [name for name in ("held", "next", "later") if f"id={name}" in page.text] == [ids]
    assert "lease ends" in browser.get("/topic?name=tabs.a&show=leased").words
    assert "No message is parked." in browser.get("/topic?name=tabs.a&show=parked").words


def test_dead_letters_of_a_topic_are_redriven(browser: Browser, app: Laneway) -> None:
    """The tab of dead letters redrives them, at a rate."""
    app.publish("tabs.b", 1)
    (lease,) = app.engine.lease(1).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "dead", reason="no")])
    page = browser.get("/topic?name=tabs.b&show=dead")
    assert "Redrive all at 10/s" in page.words
    back = "/topic?name=tabs.b&show=dead"
    page = browser.submit("redrive", topic="tabs.b", rate="10/s", background="1", back=back)
    assert "notice good" in page.text


def test_the_rate_over_time(
    browser: Browser, app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A topic's page draws its backlog and deliveries: the last hour with a history, else as soon as
    it has two points.
    """
    app.policy("tabs.d", history=True)
    app.publish_many([Message("tabs.c", n) for n in range(50)])
    app.engine.lease(50, topics=["tabs.c"])
    assert "Deliveries per second" not in browser.get("/topic?name=tabs.c").text
    monkeypatch.setattr(collector, "TREND_SECONDS", 0.001)
    browser.get("/topic?name=tabs.c")
    monkeypatch.setattr(collector, "TREND_SECONDS", 10.0)
    page = browser.get("/topic?name=tabs.c")
    assert "Deliveries per second" in page.text
    assert 'app.policy("tabs.c", history=True)' in unescape(page.text)
    for _ in range(2):
        app.publish("tabs.d", 1)
        sampling.take(app.engine)
    assert "history=True" not in browser.get("/topic?name=tabs.d").text


def test_the_store(browser: Browser, app: Laneway) -> None:
    """The store's page names the engine, how fast it answers, and when it is full."""
    app.policy("tabs.*", max_backlog=10)
    app.publish_many([Message("tabs.d", n) for n in range(3)])
    words = browser.get("/store").words
    assert "engine sqlite" in words
    assert "ms for a small read" in words
    assert "limit 10 messages of tabs.d" in words
