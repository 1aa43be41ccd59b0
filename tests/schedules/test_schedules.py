"""
Schedules of an application: in the store, fired once by however many workers, changed, paused,
missed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from laneway import BadMessage, Laneway, LeaseLost, Message, Receipt, UsageError
from laneway.message import Draft
from laneway.testing import World, virtual
from tests.conformance.valkey_setups import server
from tests.working.support import Running, until

START = datetime(2030, 1, 1, tzinfo=UTC)


class Clockwork:
    """An application with a task that notes when it ran."""

    def __init__(self, url: str = "sqlite:///nowhere.db") -> None:
        self.app = Laneway(url)
        self.world: World | None = None
        self.seen: list[tuple[str, Any]] = []

        @self.app.task(name="tick")
        def tick(name: str) -> None:
            self.seen.append((name, self.world.now - START if self.world else None))

        self.tick = tick

    def minutes(self, name: str) -> list[int]:
        return [at // timedelta(minutes=1) for each, at in self.seen if each == name]


@pytest.fixture
def clockwork() -> Iterator[Clockwork]:
    instance = Clockwork()
    with virtual(instance.app, start=START) as world:
        instance.world = world
        yield instance


def test_it_comes_again_and_again(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("ten", clockwork.tick, every="10m", args=("ten",))
    app.schedule("mail", Message("mail", {"to": "all"}, key="k", priority=3), cron="5 * * * *")
    world.run()
    assert [
        (each.name, each.when, each.next_at - START, each.topic) for each in app.schedules.list()
    ] == [
        ("mail", "cron 5 * * * * (UTC)", timedelta(minutes=5), "mail"),
        ("ten", "every 600 s", timedelta(minutes=10), "task.tick"),
    ]
    world.run_all(within="35m", schedules=True)
    assert clockwork.minutes("ten") == [10, 20, 30]
    (mail,) = world.waiting("mail")
    assert (mail.body, mail.key, mail.priority) == ({"to": "all"}, "k", 3)
    assert (mail.headers or {})["laneway-schedule"] == "mail"
    assert mail.id == "mail@2030-01-01T00:05:00+00:00"


@pytest.mark.parametrize(
    ("missed", "expected"), [("one", [130]), ("all", [130] * 13), ("skip", [])]
)
def test_what_was_missed(clockwork: Clockwork, missed: str, expected: list[int]) -> None:
    """No worker ran for two hours, and ten minutes after the last firing one comes."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("ten", clockwork.tick, every="10m", args=("ten",), missed=missed)
    world.run()
    world.later("2h")
    world.later("9m")
    world.later("1m")  # 130 minutes: the firing of just now is none that was missed
    world.run()
    found = clockwork.minutes("ten")
    assert found == (expected or [130])
    world.later("70s")
    world.later("7m")
    world.run()
    assert clockwork.minutes("ten") == found
    world.run_all(within="3m", schedules=True)
    assert clockwork.minutes("ten") == [*found, 140]


def test_skip_skips_what_is_late(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("hourly", clockwork.tick, every="1h", args=("skip",), missed="skip")
    app.schedule("hourly one", clockwork.tick, every="1h", args=("one",), missed="one")
    world.run()
    world.later("90m")
    world.run()
    assert clockwork.minutes("skip") == []
    assert clockwork.minutes("one") == [90]
    world.run_all(within="31m", schedules=True)
    assert clockwork.minutes("skip") == [120]


def test_paused_and_removed(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    assert app.schedules.add("ten", clockwork.tick, every="10m", args=("ten",)) is True
    assert app.schedules.add("ten", clockwork.tick, every="10m", args=("ten",)) is False
    app.schedules.pause("ten")
    assert app.schedules.list()[0].is_paused
    world.later("25m")
    assert world.run().acked == 0
    app.schedules.resume("ten")
    world.run()
    assert clockwork.minutes("ten") == [25]
    assert app.schedules.remove("ten") is True
    assert app.schedules.remove("ten") is False
    assert app.schedules.list() == []
    assert app.schedules.add("ten", clockwork.tick, every="10m", args=("ten",)) is True
    assert len(app.schedules.list()) == 1, "also the same again, which was removed"
    assert app.schedules.remove("ten") is True
    world.later("1h")
    assert world.run().acked == 0


def test_it_is_changed(clockwork: Clockwork) -> None:
    """The new one replaces the old, also where the old one is due at the moment."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("it", clockwork.tick, every="10m", args=("old",))
    world.run()
    world.later("10m")
    (due,) = app.lease(1)
    app.schedule("it", clockwork.tick, every="15m", args=("new",))
    with pytest.raises(LeaseLost):
        due.release()
    world.run_all(within="36m", schedules=True)
    assert clockwork.minutes("old") == []
    assert clockwork.minutes("new") == [15, 30, 45]
    assert len(app.schedules.list()) == 1


def test_it_is_removed_while_it_fires(clockwork: Clockwork) -> None:
    """Nothing follows."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedules.add("it", clockwork.tick, every="10m", args=("it",))
    world.run()
    world.later("10m")

    def remove(drafts: list[Draft]) -> list[Receipt]:
        receipts = put(drafts)
        if drafts[0].topic == "task.tick":
            assert [each.name for each in app.schedules.list()] == ["it"]
            assert app.schedules.remove("it") is True
        return receipts

    put = app.engine.put
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.engine, "put", remove)
        world.run()
    assert app.schedules.list() == []
    assert app.schedules.remove("it") is False
    world.run_all(within="1h", schedules=True)
    assert clockwork.minutes("it") == [10]


def test_it_moves_while_it_is_removed(clockwork: Clockwork) -> None:
    """It fires between the steps of the deletion: what follows is removed, too."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedules.add("it", clockwork.tick, every="10m", args=("it",))
    world.later("10m")
    (due,) = app.lease(1)
    purge, calls = app.engine.topic_purge, iter(range(100))

    def fires_behind_it(topic: str, **options: Any) -> int:
        removed = purge(topic, **options)
        if next(calls) == 0:
            due.ack(publish=[Message("laneway.schedule.it", due.body, delay="10m")])
        return removed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app.engine, "topic_purge", fires_behind_it)
        assert app.schedules.remove("it") is True
    assert app.schedules.list() == []


def test_once(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("party", clockwork.tick, at=START + timedelta(hours=2), args=("party",))
    assert (
        app.schedules.add("past", clockwork.tick, at=START - timedelta(hours=2), args=("past",))
        is False
    )
    world.run_all(schedules=True)
    assert clockwork.minutes("party") == [120]
    assert app.schedules.list() == []
    world.run()
    assert clockwork.minutes("party") == [120], "a worker that starts later does not bring it back"


def test_a_million_hourly_jobs_do_not_come_at_once(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    for n in range(60):
        app.schedules.add(f"customer {n}", clockwork.tick, every="1h", args=(f"{n}",), spread="50m")
    world.run_all(within="119m", schedules=True)
    minutes = sorted(at // timedelta(minutes=1) for _, at in clockwork.seen)
    assert len(minutes) == 60, "each once in its hour"
    assert len(set(minutes)) > 25
    assert (minutes[0], minutes[-1]) >= (60, 90)
    first = dict(clockwork.seen)
    clockwork.seen.clear()
    world.run_all(within="60m", schedules=True)  # from the last event on
    assert {name: at + timedelta(hours=1) for name, at in first.items()} == dict(clockwork.seen), (
        "and always at the same minute"
    )


def test_handled_twice_it_fires_once(clockwork: Clockwork) -> None:
    """Its worker was killed after it had published, before it could say so."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.schedule("ten", clockwork.tick, every="10m", args=("ten",))
    world.run()
    world.later("10m")
    (due,) = app.lease(1)
    app.runtime.handlers.find(due.lease).function(due.message)  # type: ignore[union-attr]
    due.release()
    world.run_all(within="11m", schedules=True)
    assert clockwork.minutes("ten") == [10, 20]


def test_a_full_topic_is_waited_for(clockwork: Clockwork) -> None:
    """For hours, with a try a minute; then it goes on, and makes up for the last firing."""
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.policy("task.tick", max_backlog=1, paused=True)
    app.schedule("ten", clockwork.tick, every="10m", args=("ten",))
    world.run_all(within="5h", schedules=True)
    assert app.topic("task.tick").stats().waiting == 1
    assert len(app.schedules.list()) == 1, "one entry, however long it waits"
    assert app.dead_letters.list() == []
    app.policy("task.tick", max_backlog=None, paused=None)
    world.run_all(within="21m", schedules=True)
    assert len(clockwork.minutes("ten")) >= 3
    assert clockwork.minutes("ten")[-1] >= 310


def test_they_are_listed_page_by_page(clockwork: Clockwork) -> None:
    app = clockwork.app
    for n in range(25):
        app.schedules.add(f"s{n:02}", clockwork.tick, every="1h", args=("x",))
    first = app.schedules.list(limit=20)
    assert [each.name for each in (*first, *app.schedules.list(after=first[-1].name))] == [
        f"s{n:02}" for n in range(25)
    ]
    with pytest.raises(UsageError, match="expected limit to be"):
        app.schedules.list(limit=0)
    with pytest.raises(UsageError, match='unknown option "evry"; did you mean "every"'):
        app.schedule("x", clockwork.tick, evry="10m")  # type: ignore[call-arg]


def test_what_is_no_schedule_is_a_dead_letter(clockwork: Clockwork) -> None:
    app, world = clockwork.app, clockwork.world
    assert world is not None
    app.publish("laneway.schedule.x", {"what": 1})
    assert world.run().died == 1
    assert "the body is not a schedule" in app.dead_letters.list()[0].reason
    assert app.schedules.list() == []


@pytest.mark.parametrize(
    ("options", "refusal", "kind"),
    [
        ({"missed": "perhaps"}, "expected missed to be one of skip, one, all", UsageError),
        ({"call": "tick"}, "expected a Message or a task, got 'tick'", UsageError),
        ({"call": Message("t"), "args": (1,)}, "args and kwargs are a task's", UsageError),
        ({"call": Message("t", delay=5)}, "leave them out", BadMessage),
        ({"name": "a@b"}, 'expected a name without "@"', UsageError),
        ({"args": ()}, "missing a required argument", BadMessage),
        ({"every": None}, "one of every, cron, sun and at, got 0", UsageError),
    ],
)
def test_what_cannot_be(
    clockwork: Clockwork, options: dict[str, Any], refusal: str, kind: type[Exception]
) -> None:
    given = {"name": "x", "call": clockwork.tick, "every": "10m", "args": ("x",), **options}
    if isinstance(given["call"], Message) and "args" not in options:
        given["args"] = ()
    with pytest.raises(kind) as error:
        clockwork.app.schedule(given.pop("name"), given.pop("call"), **given)
    assert refusal in str(error.value)


@pytest.mark.parametrize("engine", ["sqlite", "valkey"])
def test_several_workers_fire_each_once(tmp_path: Path, engine: str) -> None:
    """Three workers on a real store and its clock, all of which have put the schedule there."""
    url = f"sqlite:///{tmp_path}/laneway.db" if engine == "sqlite" else server().url
    namespace, seen = uuid.uuid4().hex, []
    with ExitStack() as stack:
        for _ in range(3):
            app = stack.enter_context(Laneway(url, namespace=namespace))
            app.handler("ticks")(lambda message: seen.append(message.id))
            app.schedule("fast", Message("ticks"), every=0.1)
            app.schedules.install()
            stack.enter_context(Running(app))
        until(lambda: len(seen) >= 20, 120)
    assert len(set(seen)) == len(seen)
    moments = sorted(datetime.fromisoformat(each.partition("@")[2]) for each in seen)
    assert all(
        (later - earlier) % timedelta(milliseconds=100) == timedelta(0)
        for earlier, later in pairwise(moments)
    )
