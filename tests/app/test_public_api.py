"""The application object: configuration, deliveries, topics, policies, tasks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import laneway
from laneway import (
    BadMessage,
    BadPolicy,
    EngineCorrupt,
    EngineUnavailable,
    Laneway,
    LeaseLost,
    Message,
    UnknownHandler,
    UsageError,
)
from laneway.testing.servers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as instance:
        yield instance


def test_everything_public_is_there() -> None:
    """`__all__` is what users may import."""
    assert all(hasattr(laneway, name) for name in laneway.__all__)
    assert sorted(laneway.__all__) == laneway.__all__


def test_where_the_url_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument, then $LANEWAY_URL, then pyproject.toml, then a file in the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    assert Laneway().url == "sqlite:///laneway.db"
    (tmp_path / "pyproject.toml").write_text('[tool.laneway]\nurl = "sqlite:///project.db"\n')
    assert Laneway().url == "sqlite:///project.db"
    monkeypatch.setenv("LANEWAY_URL", "sqlite:///environment.db")
    assert Laneway().url == "sqlite:///environment.db"
    assert Laneway("sqlite:///mine.db").url == "sqlite:///mine.db"


@pytest.mark.parametrize("text", ["[tool", "[tool.laneway]\nurl = 3"])
def test_a_broken_project_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A project file that cannot be read is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml"):
        _ = Laneway().url


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"durability": "perhaps"}, "durability"),
        ({"durability": "replicated"}, "replica"),
        ({"on_full": "explode"}, "on_full"),
        ({"max_backlog": 0}, "max_backlog"),
        ({"max_backlog": "0GB"}, "max_backlog"),
        ({"tiers": {}}, "tier"),
        ({"tiers": {"high": -1}}, "high"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": "../x"}, "namespace"),
    ],
)
def test_bad_settings(tmp_path: Path, options: dict[str, object], refusal: str) -> None:
    """Impossible settings are errors that name them."""
    with pytest.raises(UsageError, match=refusal):
        _ = Laneway(f"sqlite:///{tmp_path}/x.db", **options).engine  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["laneway.db", "sqlit:///x.db", "valky://localhost"])
def test_bad_urls(url: str) -> None:
    """A URL that names no engine says what is missing."""
    with pytest.raises(UsageError, match="engine"):
        Laneway(url).publish("x")


def test_bad_files(tmp_path: Path) -> None:
    """
    A missing folder, a folder, a file that is no database, a missing file that must be there: one
    clear error each.
    """
    with pytest.raises(EngineUnavailable, match="does not exist"):
        Laneway(f"sqlite:///{tmp_path}/no/such/folder/x.db").publish("x")
    with pytest.raises(EngineUnavailable, match="folder"):
        Laneway(f"sqlite:///{tmp_path}").publish("x")
    (tmp_path / "text.db").write_text("this is no database " * 500)
    with pytest.raises(EngineCorrupt, match=r"text\.db"):
        Laneway(f"sqlite:///{tmp_path}/text.db").publish("x")
    with pytest.raises(EngineUnavailable, match="no such file"):
        Laneway(f"sqlite:///{tmp_path}/missing.db", create=False).publish("x")


def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    """Policies and gates given before are set when the engine is opened, and later ones at once."""
    app = Laneway(f"sqlite:///{tmp_path}/lazy.db")
    app.policy("push.*", rate="50/s", gate="stripe")
    app.gate("stripe", rate=100)
    app.handler("push.*")(print)
    assert not (tmp_path / "lazy.db").exists()
    assert app.topic("push.acme").policy() == {"rate": 50.0, "gate": "stripe"}
    assert app.engine.gate_list()[0]["rate"] == 100
    app.policy("push.*", rate=10)
    assert app.topic("push.acme").policy()["rate"] == 10


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"rate": -1}, "rate"),
        ({"partitions": 1025}, "a whole number from 1 to 1,024"),
        ({"rats": 5}, 'did you mean "rate"'),
        ({"rate": "fast"}, "fast"),
    ],
)
def test_bad_policies(app: Laneway, fields: dict[str, object], refusal: str) -> None:
    """An impossible policy is refused at the call, also before the engine is open."""
    with pytest.raises(BadPolicy, match=refusal):
        app.policy("push.*", **fields)  # type: ignore[arg-type]
    with pytest.raises(BadPolicy, match="gate g"):
        app.gate("g", rate=-5)


WRONG_CALLS: list[tuple[Callable[[Laneway], object], str]] = [
    (lambda app: app.lease(0), "lease: expected n to be a whole number above 0, got 0"),
    (lambda app: app.lease("3"), "lease: expected n"),  # type: ignore[arg-type]
    (lambda app: app.lease(wait="soon"), "lease: wait: expected seconds"),
    (lambda app: app.lease(wait=-1), "lease: expected wait to be at least 0"),
    (lambda app: app.lease(topics="push.acme"), "lease: expected topics to be a list"),
    (lambda app: app.lease(topics=[]), "lease: expected topics to name at least one"),
    (
        lambda app: app.lease(topics=["push.*"]),
        "lease: expected topics to be names, got the pattern",
    ),
    (lambda app: app.lease(pool=""), "lease: expected pool"),
    (
        lambda app: app.publish_many(Message("a")),  # type: ignore[arg-type]
        "publish_many: expected an iterable of messages",
    ),
    (lambda app: app.publish_many(5), "publish_many: expected an iterable"),  # type: ignore[arg-type]
    (lambda app: app.publish_many([], timeout="soon"), "publish_many: timeout"),
    (lambda app: app.topic("a").wait_done("soon"), "wait_done: timeout"),
    (lambda app: app.wait_idle("a.*", "soon"), "wait_idle: timeout"),
    (lambda app: app.topic("a").peek(-1), "peek: expected limit"),
    (lambda app: app.topics(limit=0), "topics: expected limit"),
    (lambda app: app.dead_letters.list(limit=-1), "dead_letters: expected limit"),
    (lambda app: app.dead_letters.list("push.*"), "this is a pattern"),
    (
        lambda app: app.dead_letters.redrive("a", "an-id"),
        "redrive: expected ids to be a list of text, got 'an-id'",
    ),
    (lambda app: app.dead_letters.redrive(limit=-1), "redrive: expected limit"),
    (
        lambda app: app.dead_letters.drop(ids=[3]),  # type: ignore[list-item]
        "drop_dead_letters: expected ids to be a list of text; it contains 3",
    ),
    (lambda app: app.lookup("a", "an-id"), "lookup: expected ids"),
    (lambda app: app.explain(3), "explain: expected the id to be text"),  # type: ignore[arg-type]
    (lambda app: app.policies.copy("online"), "policies.copy: expected a Laneway application"),  # type: ignore[arg-type]
    (lambda app: app.run_worker(topics=["push.*"]), "run_worker: expected topics to be names"),
    (lambda app: app.task(name="")(print), "task: expected name to be non-empty text"),
    (lambda app: app.task(topic=5)(print), "task: expected topic to be text"),  # type: ignore[call-overload]
    (lambda _: Laneway(5), "Laneway: expected url to be text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(
    ("call", "refusal"), WRONG_CALLS, ids=[refusal for _, refusal in WRONG_CALLS]
)
def test_wrong_calls_name_what_is_wrong(
    app: Laneway, call: Callable[[Laneway], object], refusal: str
) -> None:
    """
    What cannot be is a UsageError that names the call and the option; nothing is guessed, no
    engine's error comes through.
    """
    with pytest.raises(UsageError) as caught:
        call(app)
    assert refusal in str(caught.value)


def test_durations_wherever_time_is_given(app: Laneway) -> None:
    """Seconds, a timedelta or text: also for waits and timeouts."""
    assert app.lease(wait="10ms") == []
    assert app.lease(wait=timedelta(milliseconds=1)) == []
    app.publish("a", timeout="1s")
    assert app.topic("a").wait_done("10ms") is False


def test_a_delivery_is_settled_once(app: Laneway) -> None:
    """
    Settling again, or after the topic was deleted, raises LeaseLost with id and fence, and changes
    nothing.
    """
    app.publish("t", {"order": 42}, id="mine")
    (delivery,) = app.lease(1)
    assert (delivery.topic, delivery.id, delivery.body, delivery.attempt) == (
        "t",
        "mine",
        {"order": 42},
        1,
    )
    delivery.extend("1m")
    delivery.ack()
    with pytest.raises(LeaseLost, match="mine") as caught:
        delivery.ack()
    assert (caught.value.message_id, caught.value.fence) == ("mine", delivery.fence)
    calls: list[Callable[[], None]] = [
        delivery.retry,
        delivery.dead,
        delivery.release,
        lambda: delivery.extend(5),
    ]
    for call in calls:
        with pytest.raises(LeaseLost):
            call()
    app.publish("t")
    (delivery,) = app.lease(1)
    app.topic("t").delete()
    with pytest.raises(LeaseLost):
        delivery.ack()


def test_the_deadline_of_a_delivery(app: Laneway) -> None:
    """It is by the store's clock, and `extend` moves it as the store does."""
    app.policy("a", lease="1m")
    app.publish("a", 1)
    began = time.monotonic()
    (delivery,) = app.lease(1)
    for extension in (0, 1, 300):
        if extension:
            delivery.extend(extension)
        view = app.engine.find(delivery.id, "a")
        assert view is not None
        stored_us = view.deadline_us
        assert stored_us is not None
        # The store may have counted from a moment later: when it had the call.
        took = time.monotonic() - began
        assert stored_us / 1e6 - took < delivery.deadline <= stored_us / 1e6
    assert delivery.deadline > time.time() + 250


def test_what_a_consumer_can_do(app: Laneway) -> None:
    """Retry, dead and release mean what the words say."""
    for n in range(3):
        app.publish("t", n)
    first, second, third = app.lease(3)
    first.retry(delay="1h", error="later")
    second.dead("no")
    third.release()
    stats = app.topic("t").stats()
    assert (stats.delayed, stats.dead, stats.ready) == (1, 1, 1)
    with pytest.raises(BadMessage, match="retry"):
        app.lease(1)[0].retry(delay="soon")


def test_ack_publishes_the_next_in_one_transaction(app: Laneway) -> None:
    """What is published with an ack is there when it succeeds; with a lost lease it is not."""
    app.publish("first", 1)
    (delivery,) = app.lease(1)
    delivery.ack(publish=[Message("second", 2), Message("second", 3)])
    assert [one.body for one in app.lease(5, topics=["second"])] == [2, 3]
    with pytest.raises(LeaseLost):
        delivery.ack(publish=[Message("third")])
    assert app.topic("third").stats().waiting == 0


def test_ack_many(app: Laneway) -> None:
    """One batch; a lost one is refusal, the others are finished."""
    app.publish_many(Message("t", n) for n in range(5))
    deliveries = app.lease(5)
    deliveries[2].ack()
    with pytest.raises(LeaseLost):
        app.ack_many(deliveries)
    assert app.topic("t").stats().done == 5
    for wrong in (deliveries[0], [deliveries[0].lease], 5):
        with pytest.raises(UsageError, match="ack_many: expected deliveries, got"):
            app.ack_many(wrong)  # type: ignore[arg-type]


def test_lease_of_a_priority(app: Laneway) -> None:
    """
    `priority` leaves messages of lower ones, `max_priority` those of higher ones, and both exactly
    one priority; wrong ones are refused.
    """
    app.publish("a", "low")
    assert app.lease(10, priority=1) == []
    assert app.lease(10, priority=1, wait=0.01) == []
    timer = threading.Timer(0.05, app.publish, ["a", "high"], {"priority": 3})
    timer.start()
    (delivery,) = asyncio.run(app.alease(10, priority=1, wait=30))
    assert delivery.body == "high"
    timer.join()
    for wrong in ("high", 1.5, True, 1 << 52):
        with pytest.raises(UsageError, match="lease: expected priority to be a whole number"):
            app.lease(priority=wrong)  # type: ignore[arg-type]
    app.publish("a", "highest", priority=9)
    app.publish("a", "mid", priority=4)
    assert [each.body for each in app.lease(9, priority=4, max_priority=4)] == ["mid"]
    assert [each.body for each in app.lease(9, max_priority=8)] == ["low"]
    with pytest.raises(UsageError, match="max_priority to be a whole number from 5 to"):
        app.lease(priority=5, max_priority=4)


def test_lease_waits(app: Laneway) -> None:
    """An empty lease waits for the first message, and no longer than asked."""
    assert app.lease(1) == []
    began = time.monotonic()
    assert app.lease(1, wait=0.1) == []
    assert 0.09 < time.monotonic() - began < 30
    timer = threading.Timer(0.05, app.publish, ("t", 1))
    timer.start()
    assert app.lease(1, wait=60)[0].body == 1
    timer.join()
    with pytest.raises(UsageError):
        app.lease(0)


def test_a_topic_as_a_handle(app: Laneway) -> None:
    """Stats, pause, peek, purge, lookup, dead letters and redrive of one topic."""
    acme = app.topic("push.acme")
    acme.publish(1, id="a")
    acme.publish(2, priority=5)
    stats = acme.stats()
    assert (stats.waiting, stats.published, stats.topic) == (2, 2, "push.acme")
    assert stats.oldest_age is not None
    assert [message.body for message in acme.peek()] == [2, 1]
    acme.pause()
    assert app.lease(5) == []
    acme.resume()
    assert acme.lookup(["a", "b"]) == {"a": "waiting", "b": "unknown"}
    for delivery in app.lease(5):
        delivery.dead("no")
    assert [(dead.message.body, dead.reason) for dead in acme.dead_letters()] == [
        (2, "no"),
        (1, "no"),
    ]
    assert acme.redrive() == 2
    assert acme.purge() == 2
    assert [one.topic for one in app.topics(order="backlog", pattern="push.*")] in (
        [],
        ["push.acme"],
    )
    with pytest.raises(UsageError, match="order"):
        app.topics(order="size")  # type: ignore[arg-type]
    with pytest.raises(BadMessage):
        app.topic("a\nb")


def test_resume_also_against_a_pattern(app: Laneway) -> None:
    """A topic can be resumed while its pattern stays paused."""
    app.policy("push.*", paused=True)
    app.publish("push.acme")
    app.publish("push.other")
    app.topic("push.acme").resume()
    assert [delivery.topic for delivery in app.lease(5)] == ["push.acme"]


def test_redrive_and_drop_all(app: Laneway) -> None:
    """Dead letters of all topics go back at once, at a rate, or are forgotten."""
    app.publish_many(Message(f"t.{n}", n) for n in range(30))
    for delivery in app.lease(30):
        delivery.dead()
    assert app.dead_letters.redrive("t.0") == 1
    assert app.dead_letters.redrive("t.1", rate="1/m") == 1
    assert app.dead_letters.drop("t.2") == 1
    assert app.dead_letters.redrive() == 27
    assert app.dead_letters.list() == []
    with pytest.raises(BadPolicy, match="rate"):
        app.dead_letters.redrive(rate="fast")


def test_more_dead_letters_by_id_than_one_transaction_takes(app: Laneway) -> None:
    """
    Any number of ids: all of them go back, or are forgotten. A limit above one transaction's holds
    exactly.
    """
    ids = [receipt.id for receipt in app.publish_many(Message("t", n) for n in range(2500))]
    while deliveries := app.lease(500):
        for delivery in deliveries:
            delivery.dead()
    assert app.dead_letters.drop("t", ids[:1200]) == 1200
    assert app.dead_letters.redrive("t", limit=1100) == 1100
    assert app.dead_letters.redrive("t", ["nobody", *ids]) == 200
    assert app.dead_letters.list() == []


@pytest.mark.parametrize("by_id", [True, False])
def test_redrive_at_a_rate_goes_by_pages(app: Laneway, by_id: bool) -> None:
    """Many at a rate are several transactions, and the rate goes on from one to the next."""
    ids = [receipt.id for receipt in app.publish_many(Message("t", n) for n in range(2100))]
    while deliveries := app.lease(500):
        for delivery in deliveries:
            delivery.dead()
    began = time.time()
    assert app.dead_letters.redrive("t", ids if by_id else None, rate="10/s") == 2100
    took = time.time() - began
    due = [view.since_us / 1e6 - began for view in app.engine.topic_peek("t", limit=3000)]
    assert len(due) == 2100
    assert all(n / 10 - 0.01 <= moment <= n / 10 + took for n, moment in enumerate(due))


@pytest.fixture
def looks(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When the store was asked how far a topic is done."""
    found: list[float] = []
    cursors = app.engine.cursors

    def counted(topic: str) -> dict[int, tuple[int, int]]:
        found.append(time.monotonic())
        return cursors(topic)

    monkeypatch.setattr(app.engine, "cursors", counted)
    return found


def test_wait_done(app: Laneway, looks: list[float]) -> None:
    """
    Waits for all that was published before the call, whatever its priority, and not for what comes
    later.
    """
    topic = app.topic("w")
    assert topic.wait_done(timeout=1)
    app.publish_many(Message("w", n, priority=n % 3) for n in range(9))
    assert not topic.wait_done(timeout=0.1)
    deliveries = app.lease(9)
    looks.clear()

    def work() -> None:
        until(lambda: looks, "it waits")
        app.publish("w", "later")
        app.ack_many(deliveries)

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        assert topic.wait_done(timeout=30)
        working.result()


def test_wait_done_does_not_poll(app: Laneway, looks: list[float]) -> None:
    """It looks when the engine notifies it, and at once then."""
    app.publish("w", 1)
    (delivery,) = app.lease(1)

    def ack() -> None:
        until(lambda: looks and time.monotonic() - looks[-1] > 0.3, "no more looks")
        delivery.ack()

    with ThreadPoolExecutor(1) as threads:
        acking = threads.submit(ack)
        assert app.topic("w").wait_done(timeout=30)
        acking.result()
    assert len(looks) < 8


def test_wait_idle(app: Laneway) -> None:
    """Until nothing waits or runs in any topic of the pattern, whatever handlers publish."""
    assert app.wait_idle("crawl.*", timeout=1)
    assert app.topic("crawl.a").wait_idle(timeout=1)
    app.publish("other", 0)
    app.publish("crawl.a", 3)
    assert not app.wait_idle("crawl.*", timeout=0.05)
    assert not app.topic("crawl.a").wait_idle(timeout=0.05)

    def work() -> None:
        """Each message publishes the next one to the other topic, in its own transaction."""
        for _ in range(4):
            (delivery,) = app.lease(1, topics=["crawl.a", "crawl.b"], wait=30)
            left = delivery.body
            after = "crawl.b" if delivery.topic == "crawl.a" else "crawl.a"
            delivery.ack(publish=[Message(after, left - 1)] if left else [])

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        assert app.wait_idle("crawl.*", timeout=30)
        assert [app.topic(f"crawl.{name}").stats().done for name in "ab"] == [2, 2]
        working.result()
    assert asyncio.run(app.await_idle("crawl.*", timeout=1))
    assert not asyncio.run(app.topic("other").await_idle(timeout=0.01))


def test_wait_idle_sees_a_message_that_moves_while_topics_are_read(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ack does that publishes to a topic that was read before."""
    app.publish("crawl.b", 1)
    (delivery,) = app.lease(1)
    topic_list, reads = app.engine.topic_list, iter(range(100))

    def read(**options: Any) -> Any:
        if options["order"] == "backlog":
            return []  # as with very many topics
        found = topic_list(**options)
        if next(reads) == 0:
            delivery.ack(publish=[Message("crawl.a", 2)])
            return []
        return found

    monkeypatch.setattr(app.engine, "topic_list", read)
    assert not app.wait_idle("crawl.*", timeout=0.01)


def test_await_done(app: Laneway) -> None:
    """The event loop goes on meanwhile; a cancelled wait holds no thread."""
    app.publish("w", 1)
    (delivery,) = app.lease(1)

    async def program() -> None:
        topic = app.topic("w")
        assert not await topic.await_done(timeout=0.05)
        waiting = asyncio.create_task(topic.await_done(timeout=600))
        await asyncio.sleep(0.05)  # it waits
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        waiting = asyncio.create_task(topic.await_done(timeout=60))
        await asyncio.sleep(0.01)
        await delivery.aack()
        assert await waiting

    began = time.monotonic()
    asyncio.run(program())
    app.threads.shutdown(wait=True)
    assert time.monotonic() - began < 30


def test_retry_has_no_effect_at_most_once(app: Laneway) -> None:
    app.policy("once", delivery="at_most_once")
    app.publish("once", 1)
    (delivery,) = app.lease(1)
    with pytest.raises(UsageError, match="retry has no effect with at_most_once"):
        delivery.retry()
    assert app.topic("once").stats().waiting == 0


def test_explain(app: Laneway) -> None:
    """An application tells what a message waits for."""
    app.policy("e", paused=True)
    receipt = app.publish("e")
    assert "pause" in " ".join(app.explain(receipt.id).reasons)


def test_policies_of_many_topics(tmp_path: Path) -> None:
    """
    Before the store is opened and after, of a generator; a bad one is named, with how many were set
    before it.
    """
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        assert app.policy_many((f"push.{n}", {"rate": 5}) for n in range(1500)) == 1500
        app.publish("push.7", 1)
        assert app.topic("push.1499").policy() == {"rate": 5.0}
        assert (
            app.policy_many(
                [("push.7", {"rate": "600/m", "weight": 2}), ("push.*", {"retries": 1})]
            )
            == 2
        )
        assert app.topic("push.7").policy() == {"rate": 10.0, "weight": 2.0, "retries": 1}
        with pytest.raises(BadPolicy, match=r"policy push\.1200: rate") as refused:
            app.policy_many((f"push.{n}", {"rate": -1 if n == 1200 else 6}) for n in range(1500))
        assert "1,000 policies of earlier batches were set" in refused.value.__notes__[0]
        assert app.topic("push.0").policy()["rate"] == 6
        assert app.policy_many({"push.1": {"rate": 1}, "push.2": {"rate": 2}}) == 2
        assert app.topic("push.2").policy()["rate"] == 2


def test_policies_of_two_namespaces(tmp_path: Path) -> None:
    """Try in one namespace, compare, and copy to another."""
    sandbox = Laneway(f"sqlite:///{tmp_path}/f.db", namespace="sandbox")
    online = Laneway(f"sqlite:///{tmp_path}/f.db", namespace="online")
    sandbox.gate("stripe", rate=5)
    sandbox.policy("push.*", rate=10, gate="stripe")
    online.policy("push.*", rate=20)
    assert ("code", "push.*", "rate", 10.0, 20.0) in sandbox.policies.compare(online)
    assert sandbox.policies.copy(to=online) == 1
    assert sandbox.policies.compare(online) == []


def test_tasks(app: Laneway) -> None:
    """A task is called in the background by delay, and is the function when called."""
    seen: list[tuple[str, str]] = []

    @app.task(topic="mail.{customer}", rate="1000/s", burst=10)
    def mail(customer: str, template: str = "welcome") -> str:
        seen.append((customer, template))
        return "sent"

    assert mail("me") == "sent"
    receipt = mail.delay("acme", template="bye")
    mail.delay("other")
    assert receipt.topic == "mail.acme"
    assert app.topic("mail.acme").policy() == {"rate": 1000.0, "burst": 10}
    assert app.run_worker(burst=True).acked == 2
    assert sorted(seen) == [("acme", "bye"), ("me", "welcome"), ("other", "welcome")]


def test_tasks_without_a_topic(app: Laneway) -> None:
    """The default topic is instance of the task's name; async functions are tasks too."""
    seen: list[int] = []

    @app.task(name="count")
    async def anything(n: int) -> None:
        seen.append(n)

    assert anything.delay(3).topic == "task.count"
    app.run_worker(burst=True)
    assert seen == [3]


def test_tasks_without_parentheses(app: Laneway) -> None:
    """`@app.task` alone is as good; what is no function is refusal how options are written."""
    seen: list[int] = []

    @app.task
    def count(n: int) -> int:
        seen.append(n)
        return n + 1

    assert count(1) == 2
    assert str(count.delay(n=2).topic).startswith("task.")
    app.run_worker(burst=True)
    assert seen == [1, 2]
    with pytest.raises(UsageError, match="topic='mail'"):
        app.task("mail")  # type: ignore[call-overload]


def test_a_handler_without_its_pattern(app: Laneway) -> None:
    """`@app.handler` alone would handle nothing: it is refusal at once."""
    with pytest.raises(UsageError, match=r'@app.handler\("push'):
        app.handler(print)  # type: ignore[arg-type]


def test_wrong_calls_fail_at_the_call(app: Laneway) -> None:
    """
    Arguments are checked by the function's signature, and that JSON can hold them, before anything
    is published.
    """

    @app.task(topic="mail.{customer}")
    def mail(customer: str, template: object) -> None: ...

    with pytest.raises(BadMessage, match="template"):
        mail.delay("acme")  # type: ignore[call-arg]
    with pytest.raises(BadMessage, match="args"):
        mail.delay("acme", object())
    with pytest.raises(BadMessage, match="customer"):
        mail.delay("", "x")
    with pytest.raises(BadMessage, match="control"):
        mail.delay("a\nb", "x")


def test_bad_tasks(app: Laneway) -> None:
    """
    A template that names no argument, an unknown option, a name that is taken: errors at the
    definition.
    """

    def mail(customer: str) -> None: ...

    with pytest.raises(UsageError, match='"client"'):
        app.task(topic="mail.{client}")(mail)
    with pytest.raises(UsageError, match='did you mean "rate"'):
        app.task(topic="mail.{customer}", raet=5)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="policy fields need"):
        app.task(topic="{customer}", name="x", rate=5)(mail)
    app.task(name="mail")(mail)
    with pytest.raises(UsageError, match="already"):
        app.task(name="mail")(mail)
    with pytest.raises(UnknownHandler, match="there is no task of that name"):
        app.runtime.handlers.task("nail")


def test_a_call_that_no_longer_fits_is_a_dead_letter(app: Laneway) -> None:
    """A message of an older version of the task is refused with a clear reason."""

    @app.task(name="t")
    def task(n: int) -> None: ...

    task.delay(1)
    app.publish("task.t", {"args": [1, 2], "kwargs": {}}, headers={"laneway-task": "t"})
    app.publish("task.t", "what", headers={"laneway-task": "t"})
    summary = app.run_worker(burst=True)
    assert (summary.acked, summary.died) == (1, 2)
    assert all('task "t"' in dead.reason for dead in app.dead_letters.list())


def test_errors_of_settling_twice_and_bad_publishes(tmp_path: Path) -> None:
    app = Laneway(f"sqlite:///{tmp_path}/q.db")
    app.publish("t", 1)
    (delivery,) = app.lease()
    for wrong in (5, ["x"]):
        with pytest.raises(UsageError, match="ack: expected publish to be Messages, got"):
            delivery.ack(publish=wrong)  # type: ignore[arg-type]
    delivery.ack()
    with pytest.raises(LeaseLost, match="it was settled already, it expired"):
        delivery.ack()


def test_errors_of_bad_urls_and_tiers() -> None:
    with pytest.raises(
        UsageError,
        match=(
            r'the path is missing; write "sqlite:///laneway.db" for a file, "sqlite://" for one in'
            r" memory"
        ),
    ):
        Laneway("sqlite:///").publish("a")
    with pytest.raises(UsageError, match=r'"://" is missing; write "sqlite:////srv/a.db" for a'):
        Laneway("sqlite:/srv/a.db").publish("a")
    with pytest.raises(UsageError, match=r'expected tiers to be a dict like {"high": 6, "low": 1}'):
        Laneway("sqlite://", tiers=[1, 2])  # type: ignore[arg-type]
