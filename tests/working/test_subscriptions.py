"""Workers and subscriptions: a handler gets copies only if it names the subscription."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from laneway import (
    BacklogFull,
    BadMessage,
    BadPolicy,
    EngineUnavailable,
    Laneway,
    Message,
    Receipt,
    Refused,
    UsageError,
)
from laneway.admin import subscriptions as admin_subscriptions
from laneway.engines import base
from laneway.message import Draft
from laneway.working.handler import Handlers
from tests.working.support import Running, until


def application(tmp_path: Path) -> Laneway:
    return Laneway(f"sqlite:///{tmp_path}/q.db", durability="memory")


def test_handlers_get_their_own_copies(tmp_path: Path) -> None:
    """The most specific pattern of the subscription's name decides; others get nothing of it."""
    seen: list[tuple[str, str]] = []
    with application(tmp_path) as app:
        app.subscribe("orders.*", "audit")

        @app.handler("*")
        def everything(message: Message) -> None:
            seen.append(("everything", message.topic))

        @app.handler("*", subscription="audit")
        def audit(message: Message) -> None:
            seen.append(("audit", message.topic))

        @app.handler("orders.eu", subscription="audit")
        def audit_eu(message: Message) -> None:
            seen.append(("audit_eu", message.topic))

        app.publish("orders.eu", 1)
        app.publish("orders.us", 1)
        app.publish("stock", 1)
        assert app.run_worker(burst=True).acked == 5
    assert sorted(seen) == [
        ("audit", "orders.us#audit"),
        ("audit_eu", "orders.eu#audit"),
        ("everything", "orders.eu"),
        ("everything", "orders.us"),
        ("everything", "stock"),
    ]


def test_two_programs_read_one_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A worker that leases a copy of another program's subscription releases it at once, and leases by
    its own patterns from then on.
    """
    monkeypatch.setattr(base, "UNHANDLED_FIRST_US", 50_000)
    shipped: list[int] = []
    recorded: list[int] = []
    with application(tmp_path) as shop, application(tmp_path) as audit:
        shop.topic("orders").subscribe("audit")
        shop.handler("*")(lambda message: shipped.append(message.body))
        audit.handler("orders", subscription="audit")(lambda message: recorded.append(message.body))
        with Running(shop):
            shop.publish_many(Message("orders", n) for n in range(50))
            until(lambda: len(shipped) == 50)
            with Running(audit):
                until(lambda: len(recorded) == 50)
                shop.publish("orders", 50)
                until(lambda: len(recorded) == len(shipped) == 51)
        assert shop.topic("orders#audit").stats().waiting == 0
    assert sorted(shipped) == sorted(recorded) == list(range(51))


def test_copy_of_a_call_is_a_message(tmp_path: Path) -> None:
    """The task runs once; its result is its own; the subscription's handler sees the call."""
    ran: list[int] = []
    seen: list[str] = []
    with application(tmp_path) as app:
        app.subscribe("sums", "audit")

        @app.task(topic="sums")
        def double(number: int) -> int:
            ran.append(number)
            return 2 * number

        @app.handler("sums", subscription="audit")
        def audit(message: Message) -> None:
            seen.append(message.topic)

        job = double.delay(4)
        app.run_worker(burst=True)
        assert job.get(timeout=10) == 8
    assert (ran, seen) == ([4], ["sums#audit"])


def test_what_handlers_of_subscriptions_cover(tmp_path: Path) -> None:
    with application(tmp_path) as app:
        app.handler("orders.*", subscription="audit")(print)
        app.handler("orders.*")(print)
        covered = app.runtime.handlers.handled_patterns()
        assert covered is not None
        assert {"orders.*", "orders.*#audit"} <= set(covered)
        app.handler("*")(print)
        covered = app.runtime.handlers.handled_patterns()
        assert covered is not None
        assert {"*", "orders.*#audit"} <= set(covered)
    assert Handlers().handled_patterns() == []


def test_wrong_handlers(tmp_path: Path) -> None:
    with application(tmp_path) as app:
        with pytest.raises(UsageError, match='"orders", subscription="audit"'):
            app.handler("orders#audit")(print)
        with pytest.raises(UsageError, match="expected a name of 1 to 64 letters"):
            app.handler("orders", subscription="a.b")(print)
        app.handler("orders", subscription="audit")(print)
        with pytest.raises(UsageError, match='"orders#audit" is handled by print already'):
            app.handler("orders", subscription="audit")(print)


def test_explain_without_a_worker(tmp_path: Path) -> None:
    """A worker of the topic is none of the subscription."""
    with application(tmp_path) as app:
        app.topic("orders").subscribe("audit")
        app.handler("orders")(lambda message: None)
        with Running(app):
            until(lambda: len(app.workers()) == 1)
            app.publish("orders", 1, id="x")
            # the worker may hold it for a moment, before it learns what it has no handler for
            lack = 'no worker of pool "default" handles topic "orders#audit"'
            until(lambda: lack in app.explain("x", "orders#audit").reasons)


def test_subscriptions_of_a_topic(tmp_path: Path) -> None:
    with application(tmp_path) as app:
        copies = app.topic("orders.eu").subscribe("tax", where={"type": ["a", "b*"]}, expires="2d")
        app.subscribe("orders.*", "audit")
        app.publish("orders.eu", 1, headers={"type": "bc"})
        assert (copies.name, copies.stats().waiting) == ("orders.eu#tax", 1)
        audit, tax = app.topic("orders.eu").subscriptions()
        assert (audit.name, audit.topic, audit.pattern, audit.waiting) == (
            "audit",
            "orders.eu#audit",
            "orders.*",
            1,
        )
        assert (tax.kind, tax.where, tax.layer) == ("shared", {"type": ["a", "b*"]}, "code")
        assert (tax.expires, audit.expires) == (2 * 86_400, None)
        assert app.topic("orders.eu").unsubscribe("tax") == 1
        assert app.subscriptions.remove("orders.*", "audit") == 1
        assert app.topic("orders.eu").subscriptions() == []
        with pytest.raises(Refused, match=r"subscription audit of orders\.\* does not exist"):
            app.subscriptions.remove("orders.*", "audit")
        assert app.topic("orders.eu").stats().waiting == 1


def test_all_waiting_messages(tmp_path: Path) -> None:
    """A new subscription gets what waits in its topics, in order, once, as `where` says."""
    with application(tmp_path) as app:
        app.publish_many(
            Message("orders.eu", n, headers={"type": "a" if n % 2 else "b"}) for n in range(1200)
        )
        app.publish("orders.eu", "mine", id="mine", priority=5, headers={"type": "a"})
        app.publish("orders.us", "late", delay=3600)
        app.subscribe("orders.*", "audit", start="all waiting", where={"type": "a"})
        audit = app.topic("orders.eu#audit")
        app.subscribe("orders.*", "audit", start="all waiting")
        assert audit.stats().waiting == 601
        assert [each.body for each in audit.peek(3)] == ["mine", 1, 3]
        assert app.topic("orders.us#audit").stats().waiting == 0
        app.topic("orders.us").subscribe("all", start="all waiting")
        assert app.topic("orders.us#all").stats().delayed == 1
        app.publish("orders.eu", "mine", id="mine", headers={"type": "a"})
        assert audit.stats().waiting == 601
        app.publish("orders.eu", "new", headers={"type": "a"})
        assert audit.stats().waiting == 602


def test_copying_that_was_interrupted_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call copies the rest, each message once, and the doctor names it until then."""
    monkeypatch.setattr(admin_subscriptions, "CLOCK_US", 0)
    monkeypatch.setattr(admin_subscriptions, "PUT_SIZE", 10)
    with application(tmp_path) as app:
        app.publish_many(Message("orders.eu", n) for n in range(25))
        assert len(app.lease(5)) == 5
        app.topic("orders.us").subscribe("audit")
        app.publish("orders.us", 1)
        put, calls = app.engine.put, iter([True, False])

        def put_once(drafts: list[Draft]) -> list[Receipt]:
            if next(calls):
                return put(drafts)
            raise EngineUnavailable("the store is unavailable", applied=False)

        with monkeypatch.context() as patch:
            patch.setattr(app.engine, "put", put_once)
            with pytest.raises(EngineUnavailable):
                app.subscribe("orders.*", "audit", start="all waiting")
        (found,) = admin_subscriptions.check(app.engine)
        assert found.detail.startswith("orders.*#audit does not have copies")
        app.publish("orders.eu", "new")
        app.subscribe("orders.*", "audit", start="all waiting")
        copies = app.topic("orders.eu#audit").peek(100)
        assert {str(each.body) for each in copies} == {"new", *map(str, range(25))}
        assert len(copies) == 26
        assert app.topic("orders.us#audit").stats().waiting == 1
        assert admin_subscriptions.check(app.engine) == []


def test_copying_that_ended_before_it_declared_the_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing the subscription ends the doctor's finding."""
    with application(tmp_path) as app:
        app.publish("orders", 1)

        def is_away(*_: object) -> None:
            raise EngineUnavailable("the store is unavailable", applied=False)

        with monkeypatch.context() as patch:
            patch.setattr(app.runtime.holder, "set_policy", is_away)
            with pytest.raises(EngineUnavailable):
                app.subscribe("orders", "audit", start="all waiting")
        assert len(admin_subscriptions.check(app.engine)) == 1
        assert app.subscriptions.remove("orders", "audit") == 0
        assert admin_subscriptions.check(app.engine) == []


def test_longest_names(tmp_path: Path) -> None:
    """The copies of topics and ids of any length can be named."""
    longest = "orders." + "x" * 248
    with application(tmp_path) as app:
        app.subscribe("orders.*", "audit")
        app.publish(longest, 1)
        copies = app.topic(f"{longest}#audit")
        assert [message.body for message in copies.peek()] == [1]
        assert copies.purge() == 1
        with pytest.raises(BadMessage):
            app.topic(f"{longest}x#audit")
        app.policy("merged", merge="all")
        for n in range(2):
            app.publish("merged", n, key="k", id=None if n else "i" * 255)
        merged = app.topic("merged").subscribe("audit", start="all waiting")
        ids = [message.id for message in merged.peek()]
        assert len(set(ids)) == 2
        assert {app.explain(each, merged.name).state for each in ids} == {"ready"}


def test_wrong_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with application(tmp_path) as app:
        with pytest.raises(BadPolicy, match='expected start to be "now" or "all waiting"'):
            app.subscribe("orders", "audit", start="then")  # type: ignore[arg-type]
        app.publish_many(Message("orders", n) for n in range(3))
        app.policy("orders#audit", max_backlog=2)
        with pytest.raises(BacklogFull, match="subscription audit of orders: topic orders#audit"):
            app.subscribe("orders", "audit", start="all waiting")
        monkeypatch.setattr("laneway.admin.subscriptions.MOST_COPIED", 2)
        with pytest.raises(Refused, match="3 messages wait, and at most 2 can be copied"):
            app.subscribe("orders", "other", start="all waiting")
        assert [each.name for each in app.topic("orders").subscriptions()] == ["audit"]


def test_async_variants(tmp_path: Path) -> None:
    async def run(app: Laneway) -> None:
        topic = app.topic("orders")
        await topic.asubscribe("audit")
        await app.asubscribe("orders", "tax")
        assert [each.name for each in await topic.asubscriptions()] == ["audit", "tax"]
        assert (
            await topic.aunsubscribe("audit")
            == await app.subscriptions.aremove("orders", "tax")
            == 0
        )

    with application(tmp_path) as app:
        asyncio.run(run(app))


def test_wrong_names_and_options(tmp_path: Path) -> None:
    with application(tmp_path) as app:
        with pytest.raises(BadMessage, match="publish to the topic"):
            app.publish("orders#audit", 1)
        with pytest.raises(BadMessage, match="stands between a topic and its subscription"):
            app.topic("orders#")
        with pytest.raises(BadPolicy, match="has no subscriptions"):
            app.topic("orders#audit").subscribe("again")
        with pytest.raises(UsageError, match='did you mean "where"'):
            app.subscribe("orders", "audit", wher={})  # type: ignore[arg-type]
        with pytest.raises(BadPolicy, match="expected a name of 1 to 64 letters"):
            app.policy("orders.*#a.b", rate=1)


def test_a_full_subscription_blocks_its_producers(tmp_path: Path) -> None:
    """Its policy decides, not the topic's."""
    with application(tmp_path) as app:
        app.topic("orders").subscribe("audit")
        app.policy("orders#audit", max_backlog=1, on_full="block")
        app.publish("orders", 1)
        with pytest.raises(BacklogFull, match="topic orders#audit: 1 message waits"):
            app.publish("orders", 2, timeout=0.05)
        app.handler("orders", subscription="audit")(lambda message: None)
        with Running(app):
            assert app.publish("orders", 3).outcome == "accepted"
        app.topic("orders#audit").purge()
        app.policy("orders#audit", on_full="refuse")
        app.policy("orders", on_full="block")
        app.publish("orders", 4)
        with pytest.raises(BacklogFull):
            app.publish("orders", 5)


def test_a_program_declares_its_subscriptions(tmp_path: Path) -> None:
    """A newer version that no longer declares one removes it; another program's stays."""
    url = f"sqlite:///{tmp_path}/q.db"
    with Laneway(url, program="shop", version="1") as first:
        first.subscribe("orders.*", "old")
        first.topic("orders.eu").subscribe("kept")
        first.publish("orders.eu", 1)
    with Laneway(url, program="audit", version="1") as other:
        other.subscribe("orders.*", "audit")
        other.publish("orders.eu", 2)
    with Laneway(url, program="shop", version="2") as second:
        second.topic("orders.eu").subscribe("kept")
        names = [each.name for each in second.topic("orders.eu").subscriptions()]
    assert names == ["audit", "kept"]
