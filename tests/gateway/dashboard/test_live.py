"""Live pages: one sample a second for all viewers, whose cost does not depend on topics."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.gateway.dashboard import collector as collecting
from laneway.gateway.dashboard.menu import PAGES
from laneway.gateway.login import tokens
from tests.gateway.dashboard.conftest import Browser, running
from tests.gateway.dashboard.test_patches import applied

FEW, MANY = 1_000, 100_000
DISTINCT = ("/", "/topics", "/topics?order=age", "/topic?name=cost.0")


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no slow store."""
    monkeypatch.setattr(collecting, "BUDGET_SECONDS", 60.0)


def test_changes_arrive(browser: Browser, app: Laneway) -> None:
    """A change is sent as the lines that changed; nothing else is."""
    app.publish("live.a", 1)
    with browser.live("/topic?name=live.a") as events:
        first = events.until_tick()
        assert set(first) == {"strip", "binds", "curves", "messages", "tick"}
        assert first["tick"]["every"] == 1.0
        for _ in range(3):
            app.publish("live.a", 2)
        text = first["strip"]
        until = time.monotonic() + 20
        while '<div class="figure " title="4">' not in text and time.monotonic() < until:
            found = events.until_tick()
            if "strip" in found:
                assert isinstance(found["strip"], list)
                text = "\n".join(applied(text.split("\n"), found["strip"]))
        assert '<div class="figure " title="4">' in text


def test_viewers_share_a_sample(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    """Twenty viewers of a page cost as much as one, and without viewers nothing runs."""
    assert browser.dashboard is not None
    collector: Any = browser.dashboard.collector
    renders: Counter[str] = Counter()
    original = collector._render

    def counted(watched: Any) -> None:
        renders[watched.render.__qualname__] += 1
        original(watched)

    collector._render = counted
    try:
        streams = [browser.live("/topics") for _ in range(20)]
        entered = [stream.__enter__() for stream in streams]
        for events in entered:
            events.until_tick()
        before = collector.samples
        renders.clear()
        while collector.samples < before + 2:
            time.sleep(0.05)
        assert renders.total() <= collector.samples - before + 2
        for stream in streams:
            stream.__exit__(None, None, None)
        until = time.monotonic() + 20
        while not collector._task.done() and time.monotonic() < until:
            time.sleep(0.05)
        assert collector._task.done()
        assert not collector._watched
        assert not [each for each in caplog.records if each.levelname == "ERROR"]
    finally:
        collector._render = original


def test_a_slow_store_is_asked_less_often(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the budget of time, samples are taken every 5 seconds, and the page says so."""
    monkeypatch.setattr(collecting, "BUDGET_SECONDS", -1.0)
    with browser.live("/topics?order=name") as events:
        while events.until_tick()["tick"]["every"] == 1.0:
            pass
    monkeypatch.undo()


def test_pages_of_one_token(
    browser: Browser,
    app: Laneway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A token watches so many pages, whatever others do, and none that it may not see."""
    monkeypatch.setattr(collecting, "MAX_PAGES", 2)
    monkeypatch.setattr(collecting, "MAX_VIEWERS", 3)
    _, browser.token, _ = tokens.create(app.engine, "ops", ["read"])
    customer = Browser(browser.port)
    _, customer.token, _ = tokens.create(app.engine, "customer", ["read"], topics=["b.*"])
    with contextlib.ExitStack() as streams:
        for order in ("name", "age", "age"):
            events = streams.enter_context(customer.live(f"/topics?order={order}"))
            assert events.next()[0] != "full"
        for order, text in (("dead", "2 other pages"), ("age", "3 viewers")):
            events = streams.enter_context(customer.live(f"/topics?order={order}"))
            name, content = events.next()
            assert (name, text in content) == ("full", True)
        events = streams.enter_context(browser.live("/topics?order=dead"))
        events.until_tick()
        customer.get("/live?of=%2Ftopic%3Fname%3Da.x", status=403)
        events.until_tick()
    assert "a.x" not in caplog.text


def test_tokens_divide_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a token that need more than its part are rendered less often, others' as before."""
    monkeypatch.setattr(collecting, "BUDGET_SECONDS", 0.25)
    collector: Any = collecting.Collector(lambda: None)  # type: ignore[arg-type, return-value]
    for name, viewers, cost_s in (
        ("now", ["ops", "customer"], 0.1),
        ("topics", ["ops"], 0.08),
        ("many", ["customer"], 0.5),
        ("slow", ["other"], 9.0),
    ):
        watched = collecting.Watched(lambda _: {})
        watched.viewers.update(viewers)
        watched.cost_s = cost_s
        collector._watched[name] = watched
    periods = collector._periods()
    found = {name: periods[watched] for name, watched in collector._watched.items()}
    assert found == {"now": 5.0, "topics": 5.0, "many": 30.0, "slow": 30.0}
    del collector._watched["slow"]
    collector._watched["many"].cost_s = 0.05  # all of them together take less than the budget
    assert set(collector._periods().values()) == {1.0}


def test_a_store_that_is_away_is_shown(tmp_path: Path) -> None:
    """A page stays, and says what is wrong, while the store does not answer."""
    with Laneway(f"sqlite:///{tmp_path}/away.db") as app, running(app) as browser:
        app.publish("a", 1)
        with browser.live("/topics") as events:
            assert "problem" not in events.until_tick()["tick"]

            def refuse(*_: Any, **__: Any) -> Any:
                from laneway.errors import EngineUnavailable

                raise EngineUnavailable("the store valkey://:secret@host/0 does not answer")

            app.engine.topic_list = refuse  # type: ignore[method-assign]
            while "problem" not in (tick := events.until_tick()["tick"]):
                pass
            assert "does not answer" in tick["problem"]
            assert "secret" not in tick["problem"]
            del app.engine.topic_list
            while "problem" in events.until_tick()["tick"]:
                pass


def test_streams_of_unknown_pages(browser: Browser) -> None:
    """Only pages are live, with their own parameters."""
    browser.get("/live?of=%2Fnowhere", status=404)
    browser.get("/live?of=%2Ftopics%3Fx%3D1", status=400)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    return {
        count: f"sqlite:///{tmp_path_factory.mktemp('cost')}/{count}.db" for count in (FEW, MANY)
    }


def test_pages_cost_the_same_at_100_000_topics(stores: dict[int, str]) -> None:
    """Each page runs as many statements with 100,000 topics as with 1,000, and reads as much."""
    statements: dict[int, dict[str, int]] = {}
    for count, url in stores.items():
        with Laneway(url, durability="memory") as app:
            app.publish_many((Message(f"cost.{n}", n) for n in range(count)), progress=False)
            with running(app) as browser:
                statements[count] = {path: _statements(app, browser, path) for path in DISTINCT}
    for path in DISTINCT:
        few, many = statements[FEW][path], statements[MANY][path]
        assert 0 < many <= 1.5 * few + 10, (path, few, many)


def _statements(app: Laneway, browser: Browser, path: str) -> int:
    """The statements that a page runs the second time, when caches are warm."""
    assert path.partition("?")[0] in PAGES
    browser.get(path)
    texts: list[str] = []
    connection = app.engine._store.connection  # type: ignore[attr-defined]
    connection.set_trace_callback(texts.append)
    browser.get(path)
    connection.set_trace_callback(None)
    return len(texts)
