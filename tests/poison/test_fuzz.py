"""
Random endings of all kinds of handlers at once, with innocent neighbors that must all finish.

A few hundred in each run of the tests, 10,000 for each engine with `make fuzz`. A failure prints
the seed: `FUZZ_SEED=… FUZZ_ENDINGS=… pytest tests/poison/test_fuzz.py` repeats it.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from laneway import Laneway, LanewayError, Message, Reject, Retry
from tests.poison import endings
from tests.poison.endings import LONE
from tests.seeds import seed_for

COUNT = int(os.environ.get("FUZZ_ENDINGS", "300"))
SEED = seed_for("FUZZ_ENDINGS", "FUZZ_SEED")
OWN = (
    KeyboardInterrupt,
    SystemExit,
    RuntimeError,
    RecursionError,
    MemoryError,
    GeneratorExit,
    ValueError,
    TypeError,
    AttributeError,
)
"""What hostile objects raise by themselves."""

MAX_DELIVERIES = 5
"""A topic whose destination asks for no rest at all is probed again and again."""

ROUND = 1_000
"""Endings between two looks at the neighbors."""

PROGRAM = """
import random
from laneway import Laneway
from tests.poison import endings

app = Laneway("sqlite://")

@app.handler("bad.apart.*", isolation="process", time_limit=20)
def apart(message):
    return endings.end(message.body)
"""


class World:
    """An application with a handler of each kind, and which neighbors were handled."""

    def __init__(self, app: Laneway) -> None:
        self.app = app
        self.expected: set[int] = set()
        self.done: set[int] = set()
        self._lock = threading.Lock()
        self._register_bad()
        self._register_good()
        self._add_middleware()

    def _register_bad(self) -> None:
        app = self.app

        @app.handler("bad.async.*")
        async def bad_async(message: Message) -> Any:
            if random.Random(message.body).random() < 0.3:
                await asyncio.sleep(0)
            return endings.end(message.body)

        @app.handler("bad.thread.*")
        def bad_thread(message: Message) -> Any:
            return endings.end(message.body)

        @app.handler("bad.batch.*", batch=4)
        def bad_batch(messages: list[Message]) -> Any:
            return endings.end_many([message.body for message in messages])

        @app.handler("bad.abatch.*", batch=4)
        async def bad_abatch(messages: list[Message]) -> Any:
            return endings.end_many([message.body for message in messages])

        @app.handler("bad.publish.*")
        async def bad_publish(message: Message) -> None:
            chance = random.Random(message.body)
            options = {
                "delay": endings.number(chance),
                "headers": {"h": endings.text(chance)},
                "key": endings.text(chance),
                "id": LONE,
            }
            await app.apublish("never", endings.value(chance), **options)

        @app.task(name="bad-task", topic="bad.task.{seed}")
        def bad_task(seed: int) -> Any:
            return endings.end(seed)

        @app.task(name="bad-atask", topic="bad.atask.{seed}", bind=True)
        async def bad_atask(self: Any, seed: int) -> Any:
            chance = random.Random(seed)
            if chance.random() < 0.5:
                self.update_state(endings.text(chance), endings.value(chance))
            if chance.random() < 0.3:
                raise self.retry(
                    delay=endings.number(chance), error=chance.choice(endings.ERRORS)(chance)
                )
            return endings.end(seed)

        @app.task(name="bad-pickle", topic="bad.pickle.{seed}", serializer="pickle")
        def bad_pickle(seed: int) -> Any:
            return endings.end(seed)

        self.tasks = {"task": bad_task, "atask": bad_atask, "pickle": bad_pickle}
        self.queue = app.queue("bad.queue")

    def _register_good(self) -> None:
        app = self.app

        def note(number: int) -> None:
            with self._lock:
                self.done.add(number)

        @app.handler("good.async")
        async def good_async(message: Message) -> None:
            await asyncio.sleep(0)
            note(message.body)

        @app.handler("good.thread")
        def good_thread(message: Message) -> None:
            note(message.body)

        @app.handler("good.batch", batch=10)
        def good_batch(messages: list[Message]) -> None:
            for message in messages:
                note(message.body)

        @app.task(name="good-task", topic="good.task")
        def good_task(number: int) -> int:
            note(number)
            return number

        @app.task(name="good-retry", topic="good.retry", bind=True)
        def good_retry(self: Any, number: int) -> None:
            if self.request.attempt == 1:
                raise Retry("once more", delay=0)
            note(number)

        self.good: list[Callable[[int], object]] = [good_task.delay, good_retry.delay]
        for kind in ("async", "thread", "batch"):
            self.good.append(functools.partial(app.publish, f"good.{kind}"))

    def _add_middleware(self) -> None:
        """Add hooks and a middleware that sometimes fail for bad messages."""

        @self.app.around_handling
        def around(subject: Any) -> Generator[None, None, None]:
            first = subject[0] if isinstance(subject, list) else subject
            if first.deliveries > MAX_DELIVERIES:
                raise Reject("it backs off again and again, as its destination demands")
            chance = random.Random(first.id)
            if first.topic.startswith("bad.") and chance.random() < 0.05:
                raise chance.choice(endings.ERRORS)(chance)
            yield

        def hook(message: Message, *_: object) -> None:
            chance = random.Random(message.id)
            if message.topic.startswith("bad.") and chance.random() < 0.2:
                raise chance.choice(endings.ERRORS)(chance)

        for register in (
            self.app.on_success,
            self.app.on_failure,
            self.app.on_retry,
            self.app.on_dead,
        ):
            register(hook)

    def publish(self, chance: random.Random, count: int, apart: int) -> None:
        kinds = [
            "async",
            "thread",
            "batch",
            "abatch",
            "publish",
            "task",
            "atask",
            "pickle",
            "queue",
            "hand",
        ]
        for n in range(count):
            seed = chance.randrange(1 << 60)
            kind = "apart" if n < apart else chance.choice(kinds)
            if kind in self.tasks:
                self.tasks[kind].delay(seed)
            elif kind == "queue":
                self.queue.enqueue("tests.poison.endings:called", seed)
            elif kind == "hand":
                self.app.publish(f"hand.{seed % 50}", seed)
            else:
                self.app.publish(f"bad.{kind}.{seed % 50}", seed)
            if n % 2:
                number = len(self.expected)
                self.expected.add(number)
                self.good[number % len(self.good)](number)

    def settle_by_hand(self, chance: random.Random) -> None:
        """Lease and settle without a worker, with invalid arguments."""
        while deliveries := self.app.lease(20, topics=[f"hand.{n}" for n in range(50)]):
            for delivery in deliveries:
                calls = [
                    lambda d=delivery: d.retry(
                        delay=endings.number(chance), error=endings.text(chance)
                    ),
                    lambda d=delivery: d.dead(endings.text(chance)),
                    lambda d=delivery: d.extend(endings.number(chance)),
                    lambda d=delivery: d.ack(publish=[Message("never", 1, headers={"h": LONE})]),
                    lambda d=delivery: d.ack(
                        publish=[
                            Message(
                                "never",
                                endings.value(chance),
                                delay=endings.number(chance),
                                ttl=1e15,
                            )
                        ]
                    ),
                ]
                try:
                    chance.choice(calls)()
                except LanewayError:
                    continue
                except OWN:
                    continue  # an argument's own error is for the caller
                finally:
                    try:
                        delivery.ack()
                    except LanewayError:
                        pass

    def work(self) -> None:
        """Run bursts until nothing more happens; each has to end by itself."""
        for _ in range(30):
            summaries: list[Any] = []
            thread = threading.Thread(
                target=lambda summaries=summaries: summaries.append(_run(self.app)), daemon=True
            )
            thread.start()
            thread.join(300)
            assert summaries, "the burst did not end"
            assert not isinstance(summaries[0], BaseException), (
                f"the worker ended with {endings.texts_of(summaries[0])}"
            )
            if not (
                summaries[0].acked + summaries[0].retried + summaries[0].died or self.ready_topics()
            ):
                return
            time.sleep(0.01)  # until retries are due

    def ready_topics(self) -> list[str]:
        """The topics of which a message could be handled now, also those whose back-off is over."""
        topics = self.app.topics(order="backlog", limit=1000)
        return [
            topic.topic
            for topic in topics
            if topic.ready and topic.state != "asleep" and not topic.topic.startswith("hand.")
        ]


def _run(app: Laneway) -> Any:
    try:
        return app.run_worker(burst=True, concurrency=20, grace=1)
    except BaseException as error:
        return error


@pytest.mark.timeout(300 + COUNT // 2)
def test_random_endings(app: Laneway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Whatever handlers do, the worker continues, every lease ends, and all neighbors are handled.
    """
    print(f"FUZZ_SEED={SEED} FUZZ_ENDINGS={COUNT}")
    chance = random.Random(SEED)
    (tmp_path / "fuzz_apart.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    import importlib

    apart = importlib.import_module("fuzz_apart")
    world = World(app)
    app.runtime.handlers.add(apart.app.runtime.handlers._by_pattern["bad.apart.*"])
    for first in range(0, COUNT, ROUND):
        count = min(ROUND, COUNT - first)
        world.publish(chance, count, apart=max(1, count // 200))
        world.work()
        world.settle_by_hand(chance)
        assert world.done == world.expected, (
            f"{len(world.expected - world.done)} neighbors were not handled"
        )
        overview = app.engine.overview()
        assert overview.leased == 0
        for letter in app.dead_letters.list(limit=1000):
            assert len(letter.reason) <= 1_100
            assert len(letter.error or "") <= 4_000
    assert app.topic("never").stats().waiting == 0
