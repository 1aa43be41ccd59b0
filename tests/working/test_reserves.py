"""Slots that a worker reserves, so that short work starts while long work fills the others."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from laneway import Laneway, Message, Tier
from laneway.engines.base import MAX_PASSED_OVER
from laneway.message import Batch, Lease
from laneway.testing.servers import Server
from laneway.working import reserves as reserves_module
from laneway.working.reserves import OTHERS, Reserves, Search
from laneway.working.worker_delivery import WorkerDelivery
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

SLOTS = 25
"""One of them is reserved."""

COMMON = SLOTS - 1


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture(params=["sqlite", "sqlite 4 files", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "valkey":
        server: Server = request.getfixturevalue("server")
        server.run("FLUSHALL")
        return server.url
    return f"sqlite:///{tmp_path}/{'folder?shards=4' if '4' in request.param else 'q.db'}"


class Long:
    """A handler that runs until `end` is set, and the topics of those that run."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.running: list[str] = []

    def __call__(self, message: Message) -> None:
        self.running.append(message.topic)
        try:
            self.end.wait(60)
        finally:
            self.running.remove(message.topic)


@pytest.fixture
def long() -> Iterator[Long]:
    handler = Long()
    yield handler
    handler.end.set()


def handle_short(app: Laneway, pattern: str = "hook.*") -> list[str]:
    """Register a handler that returns at once; returns the list of the topics that it handled."""
    handled: list[str] = []

    @app.handler(pattern)
    async def short(message: Message) -> None:
        handled.append(message.topic)

    return handled


def fill(app: Laneway, kind: str, count: int = 2 * SLOTS) -> None:
    """Publish two messages in each of `count` topics, which handle one at a time."""
    app.policy(f"{kind}.*", concurrency=1)
    app.publish_many(Message(f"{kind}.{n % count}", n) for n in range(2 * count))


def is_empty(app: Laneway) -> bool:
    """Whether nothing waits or runs."""
    overview = app.engine.overview()
    return not overview.waiting and not overview.leased


def test_a_short_handler_starts_while_long_ones_have_the_other_slots(url: str, long: Long) -> None:
    """Each of its messages, one after the other, and none of the long handlers has ended."""
    with Laneway(url) as app:
        app.handler("import.*")(long)
        handled = handle_short(app)
        fill(app, "import")
        with Running(app, concurrency=SLOTS, grace=0) as running:
            until(lambda: len(long.running) == COMMON)
            for n in range(20):
                app.publish(f"hook.{n}")
                until(lambda n=n: f"hook.{n}" in handled)  # type: ignore[misc]
            assert len(long.running) == COMMON
            assert len(set(long.running)) == COMMON
            long.end.set()
            until(lambda: is_empty(app))
        assert running.join().acked == 4 * SLOTS + 20


def test_short_messages_that_waited_before_the_worker_began(url: str, long: Long) -> None:
    with Laneway(url) as app:
        app.handler("import.*")(long)
        handled = handle_short(app)
        fill(app, "import")
        app.publish_many(Message(f"hook.{n}") for n in range(10))
        with Running(app, concurrency=SLOTS, grace=0):
            until(lambda: len(handled) == 10)
            until(lambda: len(long.running) == COMMON)


def test_short_messages_beside_topics_of_other_workers(url: str, long: Long) -> None:
    """
    They are found while long handlers hang in all common slots. While the first messages of other
    workers are released, these do not take the reserved slot.
    """
    with Laneway(url) as app:
        app.handler("import.*")(long)
        handled = handle_short(app)
        app.publish_many(Message(f"other.{n}") for n in range(3 * MAX_PASSED_OVER))
        fill(app, "import")
        with Running(app, concurrency=SLOTS, grace=0):
            until(lambda: len(long.running) == COMMON)
            for n in range(5):
                app.publish(f"hook.{n}")
                until(lambda n=n: f"hook.{n}" in handled)  # type: ignore[misc]
            assert len(long.running) == COMMON


def test_a_delayed_short_message_starts_when_it_is_due(url: str, long: Long) -> None:
    """No publish tells the worker of it."""
    with Laneway(url) as app:
        app.handler("import.*")(long)
        handled = handle_short(app)
        fill(app, "import")
        with Running(app, concurrency=SLOTS, grace=0):
            until(lambda: len(long.running) == COMMON)
            app.publish("hook.late", delay=0.5)
            until(lambda: handled == ["hook.late"])
            assert len(long.running) == COMMON


@pytest.mark.parametrize(
    "patterns", [("*", "hook.*"), ("import.*", "*"), ("import.*", "import.x.*")]
)
def test_patterns_that_cover_each_other(
    app: Laneway, long: Long, patterns: tuple[str, str]
) -> None:
    """A topic counts as the pattern of its handler, which is the most specific one."""
    app.handler(patterns[0])(long)
    handled = handle_short(app, patterns[1])
    fill(app, "import")
    short = "import.x.1" if "x" in patterns[1] else "hook.1"
    with Running(app, concurrency=SLOTS, grace=0):
        until(lambda: len(long.running) == COMMON)
        app.publish(short)
        until(lambda: handled == [short])
        assert len(long.running) == COMMON


def test_several_long_patterns_leave_slots_to_others(app: Laneway, long: Long) -> None:
    """The first ones of a pattern get half of what is free only."""
    for kind in ("import", "export", "report"):
        app.handler(f"{kind}.*")(long)
        fill(app, kind, 100)
    handled = handle_short(app)
    with Running(app, concurrency=100, grace=0):
        until(lambda: len(long.running) == 99)
        app.publish("hook.1")
        until(lambda: handled == ["hook.1"])
        assert len(long.running) == 99


def test_tasks_and_buckets(app: Laneway, long: Long) -> None:
    """A task counts as its topic; one that is called in another topic leaves the reserve, too."""
    handled = []

    @app.task(name="slow")
    def slow(n: int) -> None:
        long.running.append(str(n))
        long.end.wait(60)

    @app.task(name="quick")
    def quick() -> None:
        handled.append("quick")

    app.policy("bucket.*", buckets=2)
    for n in range(SLOTS):
        slow.using(topic=f"bucket.{n}").enqueue(n)
        slow.delay(n)
    with Running(app, concurrency=SLOTS, grace=0):
        until(lambda: len(long.running) == COMMON)
        quick.delay()
        until(lambda: handled == ["quick"])
        assert len(long.running) == COMMON


@pytest.mark.parametrize(("slots", "others", "wanted"), [(SLOTS, [], SLOTS), (9, ["hook.*"], 9)])
def test_one_pattern_and_small_workers_use_all_slots(
    app: Laneway, long: Long, slots: int, others: list[str], wanted: int
) -> None:
    app.handler("import.*")(long)
    for pattern in others:
        handle_short(app, pattern)
    fill(app, "import")
    with Running(app, concurrency=slots, grace=0):
        until(lambda: len(long.running) == wanted)


@pytest.mark.parametrize("share", ["strict", 1])
def test_a_reserve_of_a_tier(url: str, long: Long, share: Any) -> None:
    """Its messages take these slots, others do not, also with one handler for all."""
    tiers = {"urgent": Tier(share, reserve=0.2), "mid": Tier(1)}
    with Laneway(url, tiers=tiers) as app:
        app.handler("*")(long)
        app.policy("code.*", tier="urgent")
        fill(app, "import", 20)
        with Running(app, concurrency=10, grace=0):
            until(lambda: len(long.running) == 8)
            for n in range(3):
                app.publish(f"code.{n}")
            until(lambda: len(long.running) == 10)
            assert sum(topic.startswith("code.") for topic in long.running) == 2


def test_a_reserve_that_is_changed_acts_on_running_workers(app: Laneway, long: Long) -> None:
    app.handler("*")(long)
    app.policy("code.*", tier="high")
    fill(app, "import", 20)
    with Running(app, concurrency=10, grace=0):
        until(lambda: len(long.running) == 10)
        app.tiers(high=Tier(6, reserve=0.2))
        long.end.set()  # what runs ends, and what begins now waits again
        until(lambda: not long.running)
        long.end.clear()
        fill(app, "import", 20)
        until(lambda: len(long.running) == 8)
        app.publish("code.1")
        until(lambda: "code.1" in long.running)
        long.end.set()


def test_a_worker_that_stops_releases_what_has_reserved_slots(url: str, long: Long) -> None:
    """Another worker begins with the short messages that are left, and nothing is lost."""
    with Laneway(url) as app:
        app.handler("import.*")(long)
        app.handler("hook.*")(long)
        fill(app, "import")
        with Running(app, concurrency=SLOTS, grace=0):
            until(lambda: len(long.running) == COMMON)
            app.publish("hook.1")
            until(lambda: "hook.1" in long.running)
        long.end.set()
        until(lambda: not long.running)
        long.end.clear()
        with Running(app, concurrency=SLOTS, grace=60) as second:
            until(lambda: "hook.1" in long.running and len(long.running) >= COMMON)
            long.end.set()
            until(lambda: is_empty(app))
        assert second.join().acked == 4 * SLOTS + 1


def tiers(**reserves: float) -> Mapping[str, Tier]:
    return {name: Tier(1, reserve=reserve) for name, reserve in reserves.items()}


@pytest.mark.parametrize(
    ("slots", "given", "sizes"),
    [
        (100, tiers(high=0.2, low=0), {OTHERS: 4, "high": 20}),
        (100, tiers(high=0.001), {OTHERS: 4, "high": 1}),
        (10, tiers(high=0.25), {OTHERS: 1, "high": 3}),
        (9, tiers(high=0.9, low=0.9), {"high": 4, "low": 4}),
        (2, tiers(high=0.5), {"high": 1}),
        (1, tiers(high=0.5), {"high": 0}),
        (100, tiers(a=0.9, b=0.9), {OTHERS: 4, "a": 45, "b": 45}),
    ],
    ids=str,
)
def test_how_many_slots_are_reserved(
    slots: int, given: Mapping[str, Tier], sizes: dict[str, int]
) -> None:
    """A part is rounded up, and at least one slot is common."""
    reserves = Reserves(slots, ["a.*", "b.*"])
    reserves.follow(given)
    assert reserves.sizes == sizes
    assert reserves.common == slots - sum(sizes.values()) >= 1
    reserves.follow({})
    assert reserves.sizes == ({OTHERS: sizes[OTHERS]} if OTHERS in sizes else {})


@pytest.fixture
def deliver() -> Callable[[str, str], WorkerDelivery]:
    """`deliver(pattern, topic)`: a message that a handler of the pattern has."""
    app = Laneway("sqlite://")
    count = iter(range(1, 1000))

    def make(pattern: str, topic: str) -> WorkerDelivery:
        if not app.runtime.handlers.has_pattern(pattern):
            app.handler(pattern)(lambda message: message)
        (handler,) = (each for each in app.runtime.handlers if each.pattern == pattern)
        fence = next(count)
        return WorkerDelivery(Lease(fence, fence, "", topic, b"", 0), handler, 0.0, 0)

    return make


def test_handlers_at_their_own_limits_get_no_reserved_slots(
    deliver: Callable[[str, str], WorkerDelivery],
) -> None:
    reserves = Reserves(100, ["a.*", "b.*"])
    reserves.follow(tiers(high=0.1))
    held = [deliver("a.*", "a.1"), deliver("b.*", "b.1")]
    held[0].handler.concurrency, held[1].handler.concurrency = 1, 2
    assert reserves.filters("high", held) == (None, ["a.*"])
    assert reserves.filters(OTHERS, held) == (["b.*"], ["a.*"]), "their topics are found by name"


def test_patterns_with_an_equal_part_of_the_slots(
    deliver: Callable[[str, str], WorkerDelivery],
) -> None:
    reserves = Reserves(30, ["a.*", "b.*", "c.*", "*"])  # two are reserved
    held = [deliver("a.*", f"a.{n}") for n in range(10)]
    held += [deliver("b.*", f"b.{n}") for n in range(9)]
    assert reserves.filters(OTHERS, held) == (None, ["a.*"])
    held += [deliver("*", f"x.{n}") for n in range(10)]
    only, without = reserves.filters(OTHERS, held)
    assert without == ["*", "a.*", "b.*"], "now a fourth is an equal part"
    assert only == ["c.*"], "as * covers it"
    for each in held:
        each.over = True
    assert reserves.filters(OTHERS, held) == (None, [])


def test_a_message_begins_in_the_place_of_a_later_one_of_its_topic(
    deliver: Callable[[str, str], WorkerDelivery],
) -> None:
    reserves = Reserves(50, ["a.*", "b.*"])
    first, later, other = deliver("a.*", "a.1"), deliver("a.*", "a.1"), deliver("b.*", "b.1")
    reserves.add([later, other], OTHERS)
    assert reserves.free(OTHERS) == 0
    reserves.give(first)
    assert reserves.unused({first}) == 1
    assert reserves.held({first.lease.fence: first, other.lease.fence: other}) == 2
    other.over = True
    assert reserves.free(OTHERS) == 1
    assert reserves.held({}) == 0


def test_patterns_that_are_long_leave_the_last_reserved_slot(
    deliver: Callable[[str, str], WorkerDelivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they are tried again; short ones get all of them. Late settlements do not matter."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    reserves = Reserves(100, ["a.*", "b.*", "c.*"])
    held: dict[int, object] = {}

    def begin(pattern: str) -> WorkerDelivery:
        delivery = deliver(pattern, pattern[0])
        delivery.began = now
        reserves.add([delivery], OTHERS)
        held[delivery.lease.fence] = delivery
        return delivery

    def end(delivery: WorkerDelivery) -> None:
        nonlocal now
        delivery.over = True
        reserves.unused(set())
        now += 1.0  # its settlement is slow
        reserves.unused(set())
        del held[delivery.lease.fence]
        reserves.held(held)

    def run(pattern: str, seconds: float) -> None:
        nonlocal now
        delivery = begin(pattern)
        now += seconds
        end(delivery)

    def without() -> list[str]:
        return reserves.filters(OTHERS, [])[1]

    first = begin("a.*")
    assert without() == []
    second = begin("a.*")
    assert without() == ["a.*"], "it has two, and two are free"
    end(first)
    assert without() == [], "it was short"
    third = begin("a.*")
    assert without() == []
    end(second)
    end(third)
    for _ in range(reserves_module.MOST_LONG):
        assert without() == []
        run("a.*", 1.0)
    assert without() == [], "it has none, and four are free"
    one = begin("a.*")
    assert without() == ["a.*"]
    now += 1.0
    end(one)
    others = [begin("b.*") for _ in range(3)]
    assert without() == ["a.*", "b.*"], "the last one is for others"
    now += reserves_module.AVOID_SECONDS
    assert without() == ["b.*"]
    for each in others:
        each.began = now
        end(each)
    run("a.*", 0.0)
    run("a.*", 1.0)
    begin("a.*")
    assert without() == [], "a long one among short ones"


def test_quick_handlers_need_no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is leased for it while all common slots become free within a moment."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    reserves = Reserves(100, ["a.*", "b.*"])
    assert [(owner, count) for owner, count, _ in reserves.due()] == [(OTHERS, 2)], "half of them"
    now += 0.1
    reserves.measure(193)
    assert not reserves.due()
    assert reserves.search_at() == now + reserves_module.WINDOW_SECONDS
    now += 0.1
    reserves.measure(193 + 191)
    assert reserves.due()


def test_when_to_search_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    search = Search()
    assert search.at() <= now
    began = now
    search.begin()
    now += 0.01
    search.ended(began, Batch([], 0), is_full=False)
    assert search.at() == began + reserves_module.SEARCH_SECONDS
    search.arrived()
    assert search.at() == pytest.approx(began + 0.04), "a quarter of the time at most"
    now = began = 1001.0
    search.begin()
    search.ended(began, Batch([], 5_000_000, 5_300_000), is_full=False)
    assert search.at() == pytest.approx(1001.3), "then something is due"
    search.begin()
    lease = Lease(1, 1, "", "a", b"", 0)
    search.ended(began, Batch([lease], 0), is_full=True)
    assert search.at() <= now, "there may be more"
