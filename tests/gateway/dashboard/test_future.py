"""What is coming: when delayed messages are due, and what schedules have done last."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from laneway import Laneway, Message
from laneway.gateway.dashboard import words
from laneway.message import Settlement
from laneway.schedules import store
from laneway.schedules.store import Options
from laneway.testing import World, virtual
from tests.gateway.dashboard.conftest import Browser, running

START = datetime(2030, 5, 1, 12, 0, 30, tzinfo=UTC)


@pytest.fixture
def world(app: Laneway) -> Iterator[World]:
    with virtual(app, start=START) as world:
        yield world


@pytest.fixture
def late(app: Laneway, world: World) -> Iterator[Browser]:
    with running(app) as browser:
        yield browser


def test_when_messages_are_due(late: Browser, app: Laneway) -> None:
    """By minute, hour or day, as bars and as a table; what is due later is said."""
    app.publish_many([Message("later.a", n, delay=f"{n}m") for n in (1, 10, 10, 90)])
    app.publish("later.b", 1, delay="3d")
    page = late.get("/future?by=minute")
    assert "messages by minute, at most 2; 2 are due later" in page.words
    assert 'd="M1.5 18v-9.0M10.5 18v-18.0"' in page.text
    assert "by hour, at most 3; 1 is due later" in late.get("/future").words
    words = late.get("/future?by=day&table=true").words
    assert "2030-05-01 00:00:00Z 4" in words
    assert "2030-05-04 00:00:00Z 1 later 0" in words
    late.get("/future?by=year", 400)


def test_many_topics_with_delayed_messages(late: Browser, app: Laneway) -> None:
    """The bars count the messages of 20 topics, and say so if there are others."""
    app.publish_many([Message(f"later.{n}", n, delay="10m") for n in range(20)])
    assert "messages by minute, at most 20 " in late.get("/future?by=minute").words
    app.publish_many([Message(f"later.{n}", n, delay="10m") for n in range(25)])
    with running(app) as browser:
        page = browser.get("/future?by=minute").words
    assert "messages by minute of the 20 topics with most, at most 40 " in page


def test_nothing_is_due(browser: Browser) -> None:
    assert "Nothing is delayed." in browser.get("/future").words


def test_last_firings_of_a_schedule(late: Browser, app: Laneway, world: World) -> None:
    """Each firing of the last day is done, dead, waiting, or did not happen; it can run now."""
    schedule = store.declared("schedule", "sync", Message("cron.sync", 1), {"every": "10m"})
    store.put(app.engine, schedule)
    times = [each.at for each in store.last_firings(app.engine, "sync")]
    assert len(times) == 10
    assert times[-1] == START.replace(second=0)
    app.engine.put([schedule.firing(at) for at in times[7:]])
    (lease, *_) = app.engine.lease(1, topics=["cron.sync"]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "ack")])
    states = [each.state for each in store.last_firings(app.engine, "sync")]
    assert states == ["unknown"] * 7 + ["finished", "waiting", "waiting"]
    words = late.get("/future").words
    assert "not fired done waits waits waits 2030-05-01 12:00:00Z" in words
    page = late.submit("run_schedule", name="sync", back="/future")
    assert "sync: message" in page.words
    assert app.engine.topic_stats("cron.sync").waiting == 3
    assert store.find(app.engine, "sync") is not None
    late.submit("run_schedule", 404, name="none", back="/future")


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"every": "1s"}, 10),
        ({"cron": "0 3 * * *"}, 1),
        ({"cron": "0 3 1 1 *"}, 0),
        ({"cron": "*/5 9-10 * * *"}, 10),
        ({"at": START + timedelta(hours=1)}, 0),
    ],
)
def test_times_before_now(app: Laneway, world: World, options: Options, count: int) -> None:
    """Only times of the last day are listed, and at most ten, the oldest first."""
    store.put(app.engine, store.declared("schedule", "s", Message("cron.s", 1), options))
    times = [each.at for each in store.last_firings(app.engine, "s")]
    assert len(times) == count
    assert times == sorted(times)
    assert all(START - timedelta(days=1) < at <= START for at in times)


@pytest.mark.parametrize(
    ("when", "english"),
    [
        ("every 300 s", "every 5 min"),
        ("every 90 s", "every 1.5 min"),
        ("cron 0 3 * * * (Europe/Berlin)", "every day at 03:00 (Europe/Berlin)"),
        ("cron 5 9 * * 1-5 (UTC)", "Monday to Friday at 09:05"),
        ("cron 5 9 * * 0 (UTC)", "every Sunday at 09:05"),
        ("cron 0 9 * * MON (UTC)", "every Monday at 09:00"),
        ("cron 0 9 * * MON,FRI (UTC)", "cron 0 9 * * MON,FRI (UTC)"),
        ("cron 0 18 L * * (UTC)", "the last day of the month at 18:00"),
        ("cron 0 18 1 * * (UTC)", "day 1 of the month at 18:00"),
        ("cron */15 * * * * (UTC)", "every 15 min"),
        ("cron 30 * * * * (UTC)", "every hour at minute 30"),
        ("cron */15 9-17 * * * (UTC)", "cron */15 9-17 * * * (UTC)"),
        ("cron 0 0 29 2 * (UTC)", "cron 0 0 29 2 * (UTC)"),
        ("at sunrise", "at sunrise"),
    ],
)
def test_rules_in_english(when: str, english: str) -> None:
    assert words.schedule(when) == english
