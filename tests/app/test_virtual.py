"""
What tests of programs are written with: a world in memory under its own clock, and tasks that run
where they are called.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from laneway import BadMessage, Laneway, Message, Reject, Request, Task, UsageError
from laneway.testing import World, eager, virtual

pytest_plugins = ["laneway.testing.fixtures"]
START = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app(tmp_path: Path) -> Laneway:
    return Laneway(f"sqlite:///{tmp_path}/real.db")


def test_an_hour_takes_no_time(app: Laneway, tmp_path: Path) -> None:
    seen: list[tuple[str, datetime]] = []
    app.policy("mail", rate="1/m", burst=1)

    with virtual(app, start=START) as world:

        @app.handler("mail")
        async def mail(message: Message) -> None:
            seen.append((message.body, world.now))

        for body in ("a", "b", "c"):
            app.publish("mail", body)
        app.publish("mail", "later", delay="1h")
        assert world.run().acked == 1
        assert [message.body for message in world.waiting()] == ["b", "c", "later"]
        world.later("30s")
        assert world.run().acked == 0
        world.later(30)
        assert world.run().acked == 1
        began = time.monotonic()
        assert world.run_all().acked == 2
        assert time.monotonic() - began < 30
        assert world.now >= START + timedelta(hours=1)
        assert world.waiting() == []
    minutes = [(body, (at - START) // timedelta(minutes=1)) for body, at in seen]
    assert minutes == [("a", 0), ("b", 1), ("c", 2), ("later", 60)]
    assert list(tmp_path.iterdir()) == [], "the real store is not touched"


def test_retries_are_gone_through(app: Laneway) -> None:
    """Backoffs pass by the clock, as long as they can be; the first error can be raised."""
    at: list[int] = []

    @app.task(name="failing", retries=3)
    def failing() -> None:
        at.append(round((world.now - START).total_seconds()))
        raise ValueError(f"attempt {len(at)}")

    with virtual(app, start=START) as world:
        failing.delay()
        summary = world.run_all()
        assert (summary.retried, summary.died) == (3, 1)
        assert at == [0, 1, 3, 7]
        assert app.dead_letters.list()[0].error is not None
        failing.delay()
        with pytest.raises(ValueError, match="attempt 5"):
            world.run(raising=True)


def test_it_says_where_it_stops(app: Laneway) -> None:
    @app.handler("*")
    async def handle(message: Message) -> None: ...

    with virtual(app) as world:
        app.publish("next.month", delay="30d")
        app.publish("paused")
        app.topic("paused").pause()
        before = world.now
        assert world.run_all().acked == 0
        assert world.now - before < timedelta(days=7)
        assert [message.topic for message in world.waiting("next.*")] == ["next.month"]
        assert len(world.waiting()) == 2
        assert world.run_all(within="60d").acked == 1
        with pytest.raises(UsageError, match="expected a positive duration"):
            world.later(-1)


def test_worlds_do_not_meet(app: Laneway) -> None:
    """Nor does one meet the real store; policies set inside go with it."""
    app.publish("t", "real")
    with virtual(app) as world:
        assert world.waiting() == []
        app.publish("t", "first")
    with virtual(app) as world:
        assert world.waiting() == []
    assert [delivery.body for delivery in app.lease(10)] == ["real"]
    app.close()


def test_from_coroutines(app: Laneway) -> None:
    seen: list[int] = []

    @app.task
    async def note(number: int) -> None:
        seen.append(number)

    async def program(world: World) -> None:
        await note.adelay(1)
        await note.using(delay=5).aenqueue(2)
        assert (await world.arun()).acked == 1
        assert (await world.arun_all()).acked == 1

    with virtual(app) as world:
        asyncio.run(program(world))
    assert seen == [1, 2]


def test_threads_work_there_too(app: Laneway) -> None:
    names: set[str] = set()

    @app.handler("t")
    def plain(message: Message) -> None:
        time.sleep(0.01)  # work
        names.add(message.body)

    with virtual(app) as world:
        for n in range(50):
            app.publish("t", str(n))
        assert world.run().acked == 50
    assert len(names) == 50


def test_run_all_ends_with_what_the_test_published(app: Laneway) -> None:
    """
    Schedules fire only when asked, the clock does not go on for them, and results outlive their
    ttl.
    """
    fired: list[int] = []

    @app.task
    def nightly() -> None:
        fired.append(1)

    @app.task(result_ttl="1s")
    def add(a: int, b: int) -> int:
        return a + b

    app.schedule("nightly", nightly, cron="0 3 * * *")
    with virtual(app, start=START) as world:
        soon = add.delay(1, 2)
        late = add.using(delay="2h").enqueue(3, 4)
        world.run_all()
        assert fired == []
        assert world.now < START + timedelta(hours=2, minutes=1)
        assert (soon.get(), late.get()) == (3, 7)
        assert soon.status == "success"
        paused = add.using(topic="held", delay="5h").enqueue(5, 6)
        app.topic("held").pause()
        world.run_all()
        assert world.now < START + timedelta(hours=3), "nothing that waits can become due"
        with pytest.raises(UsageError, match="it is delayed, and nothing runs on its own"):
            paused.get()
        world.later("1d")
        world.run_all()
        assert fired == [1], "time that the test let pass is asked for"
        before = world.now
        world.run_all(within="2d", schedules=True)
        assert fired == [1, 1, 1]
        assert world.now - before <= timedelta(days=2)
        with pytest.raises(UsageError, match="never published in this world"):
            app.job("unknown").get()


# Eager


def test_eager_tasks_run_at_the_call(app: Laneway, tmp_path: Path) -> None:
    seen: list[Any] = []

    @app.task(bind=True, topic="pay.{customer}")
    def pay(self: Task[..., Any], customer: str, price: Decimal) -> None:
        seen.append((customer, price, self.request.topic, self.request.id))

    @app.task
    async def wait(number: int, *, run: Request | None = None) -> None:
        assert run is not None
        seen.append((number, run.attempt))
        await pay.using(id="mine").aenqueue("acme", Decimal("1.5"))

    with eager(app):
        receipt = pay.delay("acme", "2.50")  # type: ignore[arg-type]  # a text that a worker would read as a Decimal
        assert seen == [("acme", Decimal("2.50"), "pay.acme", receipt.id)]
        wait.delay(1)
        assert seen[1:] == [(1, 1), ("acme", Decimal("1.5"), "pay.acme", "mine")]
        asyncio.run(_awaits(wait))
        assert [each[0] for each in seen[3:]] == [2, "acme", 3, "acme"]
        with pytest.raises(Reject, match='the argument "price"'):
            pay.delay("acme", "many")  # type: ignore[arg-type]
        with pytest.raises(BadMessage, match="missing a required argument"):
            pay.delay("acme")  # type: ignore[call-arg]
    assert list(tmp_path.iterdir()) == []
    pay.delay("acme", Decimal(1))
    assert app.topic("pay.acme").stats().waiting == 1
    app.close()


async def _awaits(task: Task[[int], Any]) -> None:
    await task.adelay(2)
    task.delay(3)  # also on a loop


def test_eager_tasks_raise_at_the_call(app: Laneway) -> None:
    @app.task
    def divide(one: int, other: int) -> float:
        return one / other

    with eager(app):
        with pytest.raises(ZeroDivisionError):
            divide.delay(1, 0)
        with pytest.raises(ZeroDivisionError):
            divide.starmap([(4, 2), (1, 0)])
        with pytest.raises(ZeroDivisionError):
            divide.using(delay="1h").enqueue(1, 0)
    assert app.runtime.eager is False


# Fixtures


def test_the_fixtures(app: Laneway, laneway_world: Callable[[Laneway], World]) -> None:
    seen: list[int] = []

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    world = laneway_world(app)
    note.using(delay="1d").enqueue(1)
    world.run_all()
    assert seen == [1]


def test_the_eager_fixture(app: Laneway, laneway_eager: Callable[[Laneway], None]) -> None:
    seen: list[int] = []
    laneway_eager(app)

    @app.task
    def note(number: int) -> None:
        seen.append(number)

    note.delay(5)
    assert seen == [5]
