"""`app.history`, alarms, and `app.topics(order="repeats")`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from laneway import Alarm, History, Laneway, Message, Reject, UsageError
from laneway.history import records, sampling
from laneway.testing import World, virtual
from laneway.testing.servers import Server, until
from laneway.units import SECOND

START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Laneway:
    app = Laneway(f"sqlite:///{tmp_path}/real.db", tiers={"high": 6, "mid": 3})
    app.policy("push.*", tier="high")

    @app.handler("push.*")
    def push(message: Message) -> None:
        if message.body == "bad":
            raise Reject("bad")

    return app


@pytest.fixture
def world(app: Laneway) -> Iterator[World]:
    with virtual(app, start=START) as world:
        yield world


def sums(history: History) -> tuple[int, int, int, int]:
    """Published, delivered, done and died, of all rows."""
    rows = history.rows
    return (
        sum(row.published for row in rows),
        sum(row.delivered for row in rows),
        sum(row.done for row in rows),
        sum(row.died for row in rows),
    )


def test_what_happened_is_counted_from_the_first_message_on(app: Laneway, world: World) -> None:
    """Also before any sample was taken, and in the interval that still goes on."""
    app.publish("push.a", "bad")
    app.publish_many([Message("push.b", n) for n in range(4)])
    app.publish("mail", 1)
    world.later(2)
    world.run()
    history = app.history.read()
    assert sums(history) == (6, 6, 4, 1)  # mail has no handler, and is returned
    assert (history.waiting, history.step) == (1, 10)
    assert history.inflow == pytest.approx(3.0)
    assert history.outflow == pytest.approx(2.5)
    parts = {(part.tier, part.pattern): part for part in history.parts}
    assert [part.published for part in parts.values()] == [1, 5]
    assert parts["high", "push.*"].died == 1
    assert sums(app.history.read("push.*")) == (5, 5, 4, 1)
    assert sums(app.history.read(tier="mid")) == (1, 1, 0, 0)
    assert asyncio.run(app.history.aread(tier="mid")).waiting == 1


def test_the_first_messages_are_no_flow_of_thousands_a_second(app: Laneway, world: World) -> None:
    """The first second is not measured: three messages in 2 ms are not 1,500/s."""
    app.publish_many([Message("mail", n) for n in range(3)])
    world.later(0.002)
    history = app.history.read()
    assert 0 < history.inflow <= 3.0
    assert history.growth <= 3.0


def test_rows_are_kept_by_10_seconds_minute_and_quarter(app: Laneway, world: World) -> None:
    """Each row says what happened in its interval; longer steps add the shorter ones up."""
    for _ in range(30):
        app.publish("push.a", 1)
        world.run()
        world.later(10)
        app.history.read()
    app.publish("push.a", 1)
    rows = app.history.read(last="5m").rows
    assert len(rows) in (30, 31, 32)
    assert {row.published for row in rows} == {1}
    assert [row.start for row in rows] == sorted(row.start for row in rows)
    minutes = app.history.read(last="1h", step="1m").rows
    assert {row.published for row in minutes[:-1]} == {6}
    assert sums(app.history.read(last="60d")) == (31, 30, 30, 0)
    assert app.history.read(last="60d").step == 900


def test_time_without_samples_is_one_long_row(app: Laneway, world: World) -> None:
    """Nothing is lost where nobody takes samples; the row's rate is that of the whole time."""
    app.publish("mail", 1)
    app.history.read()
    world.later("5h")
    app.publish_many([Message("mail", n) for n in range(17_999)])
    history = app.history.read(last="10m")
    assert sums(history) == (18_000, 0, 0, 0)
    assert max(row.seconds for row in history.rows) == 5 * 3600
    assert history.inflow == pytest.approx(1.0)


def test_the_records_are_bounded(
    app: Laneway, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring's records are replaced, and those of earlier rounds are not shown."""
    monkeypatch.setattr(records, "RINGS", {10: 6, 60: 4, 900: 3})
    monkeypatch.setattr(sampling, "RINGS", records.RINGS)
    names: set[str] = set()
    written = app.engine.history_write

    def write(name: str, before: bytes | None, new: dict[str, bytes]) -> bool:
        names.update(new)
        return bool(written(name, before, new))

    monkeypatch.setattr(app.engine, "history_write", write, raising=False)
    for _ in range(300):
        app.publish("push.a", 1)
        world.later(17)
        sampling.take(app.engine)
    assert len(names) == 6 + 4 + 3 + 2
    stored = app.engine.history_read(sorted(names))
    assert sum(len(record or b"") for record in stored) < 200 * len(names)
    world.later(3600)
    sampling.take(app.engine)
    rows = [records.decode(record, records.Row) for record in stored]
    now_us = int(world.now.timestamp() * SECOND)
    assert not any(row and records.is_in(row, 10, now_us) for row in rows)


def test_where_the_backlog_leads(app: Laneway, world: World) -> None:
    """The time to drain at the present rates, and to a topic's limit at the earliest."""
    app.policy("slow.*", max_backlog=1000)
    app.publish_many([Message("slow.a", n) for n in range(100)])
    world.later(100)
    growing = app.history.read("slow.*")
    assert growing.drain_seconds is None
    assert (growing.max_backlog, growing.full_topic) == (1000, "slow.a")
    assert growing.full_seconds == pytest.approx(900)
    world.later(290)
    app.history.read()
    for _ in range(10):
        world.later(20)
        app.ack_many(app.lease(5))
    drained = app.history.read("slow.*")
    assert drained.waiting == 50
    assert drained.full_seconds is None
    assert drained.drain_seconds is not None
    assert drained.drain_seconds == pytest.approx(50 / drained.outflow)
    app.topic("slow.a").purge()
    assert app.history.read("slow.*").drain_seconds == 0
    assert app.history.read(max_backlog=1).max_backlog == 1


def test_a_backlog_that_falls_does_not_grow(app: Laneway, world: World) -> None:
    """After a flood the last minute counts, and of what waits its slope: retries are in no flow."""
    app.publish_many([Message("slow.a", n) for n in range(1000)])
    app.history.read()
    for _ in range(12):
        world.later(10)
        app.ack_many(app.lease(10))
        app.history.read()
    falling = app.history.read()
    assert falling.waiting == 880
    assert falling.growth == pytest.approx(-1.0)
    assert falling.drain_seconds == pytest.approx(880)
    for _ in range(12):
        world.later(10)
        app.publish("slow.a")
        for delivery in app.lease(2):
            delivery.retry(delay=3600)
        app.history.read()
    growing = app.history.read()
    assert growing.inflow == pytest.approx(0.1)
    assert growing.outflow == 0
    assert growing.growth == pytest.approx(0.1)
    assert growing.drain_seconds is None


def test_a_burst_does_not_count_as_growth_once_the_backlog_falls(
    app: Laneway, world: World
) -> None:
    """More wait than a minute ago, but fewer than 10 to 30 s ago: the forecasts are of that."""
    app.policy("slow.*", max_backlog=1000)
    for _ in range(10):
        world.later(10)
        app.history.read()
    app.publish_many([Message("slow.a", n) for n in range(900)])
    for _ in range(2):
        world.later(10)
        app.ack_many(app.lease(100))
        app.history.read()
    world.later(10)
    app.ack_many(app.lease(100))
    history = app.history.read()
    assert history.waiting == 600
    assert history.inflow > history.outflow
    assert history.growth == pytest.approx(-10)
    assert history.drain_seconds == pytest.approx(60)
    assert history.full_seconds is None
    for _ in range(3):
        app.publish_many([Message("slow.a", n) for n in range(20)])
        world.later(10)
        history = app.history.read()
    assert history.growth > 0
    assert history.drain_seconds is None


def test_waiting_times_of_noisy_topics_are_apart(app: Laneway, world: World) -> None:
    """A flood does not hide how long the others wait."""
    app.publish_many([Message("flood", n) for n in range(1000)])
    world.later(30)
    app.publish_many([Message(f"quiet.{n}", n) for n in range(100)])
    world.later(0.2)
    while app.history.read().waiting > 500:
        app.ack_many(app.lease(100))
    history = app.history.read()
    assert history.others.count == 100
    assert history.others.quantile(0.99) == 0.5
    assert history.noisy.count == 500
    assert history.noisy.quantile(0.5) == 60.0
    assert app.history.read(tier="high").others.quantile(0.5) is None


def test_wrong_arguments_are_errors_that_name_them(app: Laneway, world: World) -> None:
    del world
    for arguments, expected in (
        ({"last": 0}, "last"),
        ({"last": "61d"}, "60 days"),
        ({"step": 7}, "one of 10, 60, 900"),
        ({"step": "10s", "last": "3h"}, "kept for 2 h"),
        ({"tier": "gold"}, "one of high, mid"),
        ({"max_backlog": 0}, "max_backlog"),
    ):
        with pytest.raises(UsageError, match=expected):
            app.history.read(**arguments)
    with pytest.raises(UsageError, match=r"nope\.\*.*push\.\*"):
        app.history.read("nope.*")
    with pytest.raises(UsageError, match=r"push\.a' is not counted apart.*history=True"):
        app.history.read("push.a")
    with pytest.raises(UsageError, match="expected a pattern"):
        app.history.read("push.*#audit")
    with pytest.raises(UsageError, match="expected a limit"):
        app.alarm("none")
    with pytest.raises(UsageError, match="on_alarm"):
        app.on_alarm("no function")  # type: ignore[arg-type]


def test_the_history_of_one_topic(app: Laneway, world: World) -> None:
    """A topic with `history` has figures of its own, which are part of its pattern's."""
    app.policy("push.*", retries=2)
    app.policy("push.all", history=True, max_backlog=10)
    assert app.history.read("push.all").waiting == 0
    app.publish_many([Message(topic, 1) for topic in ("push.all", "push.all", "push.b")])
    world.later("30s")
    (delivery,) = app.lease(topics=["push.all"])
    delivery.ack()
    one, all_ = app.history.read("push.all"), app.history.read("push.*")
    assert [part.pattern for part in one.parts] == ["push.all"]
    assert sum(row.published for row in one.rows) == 2
    assert sum(row.published for row in all_.rows) == 3
    assert (one.waiting, all_.waiting, one.oldest) == (1, 2, 30.0)
    assert (one.max_backlog, one.full_topic) == (10, "push.all")


def test_an_alarm_begins_and_ends_once(app: Laneway, world: World) -> None:
    """However many processes compare: the first that notices it calls its hooks."""
    seen: list[Alarm] = []
    app.alarm("waiting", "push.*", waiting_over=3, oldest_over="1m")
    app.on_alarm(seen.append)
    alarms, engine = app.runtime.handlers.alarms, app.engine
    alarms.check(engine)
    app.publish_many([Message("push.a", n) for n in range(5)])
    for _ in range(3):
        alarms.check(engine)
    world.later("2m")
    alarms.check(engine)
    world.run()
    for _ in range(2):
        alarms.check(engine)
    assert [(alarm.name, alarm.is_active) for alarm in seen] == [
        ("waiting", True),
        ("waiting", False),
    ]
    assert seen[0].reasons == ["5 messages wait (alarm over 3)"]
    assert seen[0].history.waiting == 5


def test_an_alarm_of_no_tier_leaves_the_others(app: Laneway, world: World) -> None:
    """A tier may be removed later; alarms are about patterns, which are counted."""
    del world
    seen: list[Alarm] = []
    app.alarm("gone", tier="nowhere", waiting_over=0)
    app.alarm("waiting", waiting_over=0)
    app.on_alarm(seen.append)
    app.publish("push.a", 1)
    with pytest.raises(UsageError, match="nowhere"):
        app.runtime.handlers.alarms.check(app.engine)
    assert [alarm.name for alarm in seen] == ["waiting"]
    with pytest.raises(UsageError, match="name one subscription"):
        app.alarm("topic", "push.*#audit", waiting_over=0)


def test_alarms_of_one_name_with_other_limits_do_not_end_each_other(
    app: Laneway, world: World
) -> None:
    """Two versions of a program run side by side."""
    del world
    seen: list[Alarm] = []
    app.on_alarm(seen.append)
    app.publish("push.a", 1)
    for _ in range(3):
        for limit in (0, 100):
            app.alarm("waiting", waiting_over=limit)
            app.runtime.handlers.alarms.check(app.engine)
    assert [alarm.is_active for alarm in seen] == [True]


def test_a_hook_that_fails_ends_nothing(app: Laneway, world: World) -> None:
    del world
    seen: list[Alarm] = []

    @app.on_alarm
    def broken(_: Alarm) -> None:
        raise SystemExit

    app.alarm("oldest", waiting_over=0)
    app.on_alarm(seen.append)
    app.publish("push.a", 1)
    app.runtime.handlers.alarms.check(app.engine)
    assert len(seen) == 1


def test_repeats_say_whether_merging_would_pay(app: Laneway, world: World) -> None:
    """By key; without a key by body. Topics without repeats are left out."""
    del world
    for n in range(20):
        app.publish("item.a", {"n": n}, key=f"k{n % 4}")
        app.publish("item.b", {"n": n % 10})
        app.publish("item.c", {"n": n})
    found = app.topics(order="repeats", pattern="item.*")
    assert [(stats.topic, stats.repeats, stats.sampled) for stats in found] == [
        ("item.a", 0.8, 20),
        ("item.b", 0.5, 20),
    ]
    with pytest.raises(UsageError, match="repeats"):
        app.topics(order="repeat")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_workers_write_the_history_and_a_kill_loses_nothing(kind: str, tmp_path: Path) -> None:
    """Samples are taken while a worker runs; what happened after the last one is counted, too."""
    program = tmp_path / "program.py"
    with Server() as server:
        url = server.url if kind == "valkey" else f"sqlite:///{tmp_path}/q.db"
        program.write_text(
            f"from laneway import Laneway\napp = Laneway({url!r})\n"
            "@app.handler('push.*')\ndef push(message): pass\n"
            "app.alarm('waiting', waiting_over=0)\n"
            f"app.on_alarm(lambda alarm: open({str(tmp_path / 'alarm')!r}, 'a').write('x'))\n"
            "app.run_worker()\n"
        )
        with Laneway(url) as app:
            app.policy("push.*", retries=3)
            app.publish("other", 1)
            worker = subprocess.Popen([sys.executable, str(program)])
            try:
                app.publish_many([Message("push.a", n) for n in range(500)])
                until(lambda: app.engine.overview().done == 500, "all done", 60)
                until((tmp_path / "alarm").exists, "the hook of the alarm", 60)
                until(lambda: sampling.last_sample_us(app.engine), "a sample", 60)
                worker.send_signal(signal.SIGKILL)
            finally:
                worker.kill()
                worker.wait()
            assert sums(app.history.read("push.*"))[0::2] == (500, 500)
            assert sums(app.history.read())[0] == 501
