"""Publishing through the application: what is refused, what is refusal, what is stored."""

from __future__ import annotations

import asyncio
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from laneway import BacklogFull, BadMessage, Laneway, Message, UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as instance:
        yield instance


@dataclass
class Order:
    number: int
    price: float


@pytest.mark.parametrize(
    ("body", "comes_as"),
    [
        (None, None),
        ("text", "text"),
        (7, 7),
        ({"a": [1, 2.5, None, True]}, {"a": [1, 2.5, None, True]}),
        ((1, 2), [1, 2]),
        (Order(1, 2.5), {"number": 1, "price": 2.5}),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (b"\x00raw", b"\x00raw"),
        (bytearray(b"raw"), b"raw"),
    ],
)
def test_bodies(app: Laneway, body: Any, comes_as: Any) -> None:
    """What JSON can hold comes as JSON, bytes come as they are."""
    app.publish("b", body)
    assert app.lease(1)[0].body == comes_as


def test_keys_without_nul(app: Laneway) -> None:
    """A key with NUL is refused before it reaches a store or a spool."""
    with pytest.raises(BadMessage, match="key to be text without NUL"):
        app.publish("b", 1, key="a\0b")
    assert app.topic("b").stats().waiting == 0


@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        (object(), "body is of type object"),
        (
            {"order": {"lines": [1, {"price": 2j}]}},
            r"body\['order'\]\['lines'\]\[1\]\['price'\] is of type complex",
        ),
        ({"x": float("nan")}, r"body\['x'\] is nan"),
        ([1.0, float("inf")], r"body\[1\] is inf"),
        ("\ud800", "body is of type str"),
    ],
)
def test_bodies_that_json_cannot_hold(app: Laneway, body: Any, refusal: str) -> None:
    """The error names the place in the body; nothing is stored."""
    with pytest.raises(BadMessage, match=refusal):
        app.publish("b", body)
    assert app.topic("b").stats().waiting == 0


def test_a_body_that_contains_itself(app: Laneway) -> None:
    """Endless bodies are refused."""
    body: list[Any] = []
    body.append(body)
    with pytest.raises(BadMessage, match="cannot be written as JSON"):
        app.publish("b", body)


def test_the_limit_of_a_body(app: Laneway) -> None:
    """1 MiB by default, a policy sets it; others' messages of the same moment are not hurt."""
    with pytest.raises(BadMessage, match=r"1,?048,?576|MiB"):
        app.publish("b", b"x" * ((1 << 20) + 1))
    app.policy("b", max_body="2MiB")
    app.publish("b", b"x" * ((1 << 20) + 1))


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "a\nb"}, "control characters"),
        ({"topic": "x" * 256}, "256 bytes in UTF-8, at most 255"),
        ({"topic": "é" * 128}, "256 bytes in UTF-8, at most 255"),
        ({"topic": "push.*"}, "pattern"),
        ({"topic": 7}, "topic"),
        ({"key": 7}, "key"),
        ({"key": ""}, "key"),
        ({"key": "é" * 257}, "512 bytes"),
        ({"priority": 1 << 52}, "from -4,503,599,627,370,495 to 4,503,599,627,370,495"),
        ({"priority": 1.5}, "a whole number from"),
        ({"priority": True}, "a whole number from"),
        ({"delay": -1}, "at least 0"),
        ({"delay": "soon"}, "soon"),
        ({"delay": float("nan")}, "nan"),
        ({"delay": 1, "at": 5}, "contradict"),
        ({"at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"ttl": 0}, "above 0"),
        ({"ttl": 1, "delay": 2}, "ttl"),
        ({"id": ""}, "id"),
        ({"id": "a\x00b"}, "control characters"),
        ({"id": "x" * 256}, "255"),
        ({"headers": {"a": 1}}, "header 'a'"),
        ({"headers": ["a"]}, "headers"),
        (
            {"headers": {"a": "x" * 40_000}},
            "its headers have 40,001 bytes, at most 32,768 are allowed",
        ),
        ({"headers": {"a": "é" * 20_000}}, "its headers have 40,001 bytes"),
        ({"headers": {"content-type": "application/octet-stream"}}, "not bytes"),
    ],
)
def test_bad_options(app: Laneway, options: dict[str, Any], refusal: str) -> None:
    """Each impossible option is named with what was expected; nothing is stored."""
    with pytest.raises(BadMessage, match=refusal):
        app.publish(**{"topic": "t", **options})
    assert app.topic("t").stats().waiting == 0


def test_unknown_options_are_corrected(app: Laneway) -> None:
    """An unknown option is an error that says what was probably meant."""
    with pytest.raises(UsageError, match='did you mean "priority"'):
        app.publish("t", 1, prioriti=5)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match='did you mean "namespace"'):
        Laneway("sqlite://", namspace="x")  # type: ignore[arg-type]


def test_times(app: Laneway) -> None:
    """Delays and fixed times are kept; a time that has passed is due now."""
    app.publish("t", 1, delay="10m")
    app.publish("t", 2, at=datetime.now(UTC) + timedelta(hours=1))
    app.publish("t", 3, at=datetime.now(UTC) - timedelta(hours=1))
    stats = app.topic("t").stats()
    assert (stats.delayed, stats.ready) == (2, 1)


def test_an_id_is_known_while_it_is_pending(app: Laneway) -> None:
    """Publishing the same id again is a no-op that says so."""
    assert app.publish("t", 1, id="a").outcome == "accepted"
    assert app.publish("t", 1, id="a").outcome == "duplicate"


def test_a_full_backlog_refuses(app: Laneway) -> None:
    """Beyond max_backlog publish raises, publish_many answers per message."""
    app.policy("f", max_backlog=3)
    receipts = app.publish_many(Message("f", n) for n in range(5))
    assert [receipt.outcome for receipt in receipts] == ["accepted"] * 3 + ["refused"] * 2
    with pytest.raises(BacklogFull, match="topic f"):
        app.publish("f")


def test_a_full_backlog_blocks(app: Laneway) -> None:
    """With on_full="block" publishing waits for room, at most its timeout."""
    app.policy("f", max_backlog=1, on_full="block")
    app.publish("f", 1)
    with pytest.raises(BacklogFull):
        app.publish("f", 2, timeout=0.05)
    assert [receipt.outcome for receipt in app.publish_many([Message("f", 2)], timeout=0.05)] == [
        "refused"
    ]
    published = threading.Thread(target=app.publish, args=("f", 3), kwargs={"timeout": 60})
    published.start()
    app.lease(1)[0].ack()
    published.join(60)
    assert not published.is_alive()
    assert app.lease(1)[0].body == 3


@pytest.mark.parametrize("cost", [0, -1, 1_000_001, 2.5, "5", True, None])
def test_a_bad_cost_is_refused(app: Laneway, cost: Any) -> None:
    with pytest.raises(BadMessage, match="message to a: expected cost to be a whole number from 1"):
        app.publish("a", cost=cost)


def test_costs_reach_the_handler(app: Laneway) -> None:
    """As an option of publish, in a `Message`, and as the header that it is stored as."""
    app.publish("a", 1)
    app.publish("a", 2, cost=20, headers={"x": "y"})
    app.publish_many([Message("a", 3, cost=30)])
    app.publish("a", 4, headers={"laneway-cost": "40"})
    found = {each.body: each.message for each in app.lease(10)}
    assert [found[n].cost for n in (1, 2, 3, 4)] == [1, 20, 30, 40]
    assert found[2].headers == {"x": "y", "laneway-cost": "20"}
    with pytest.raises(BadMessage, match="laneway-cost to be a whole number from 1 to 1,000,000"):
        app.publish("a", headers={"laneway-cost": "none"})


def test_publish_many_streams(app: Laneway) -> None:
    """Any iterable is published in batches while it is read, at most one batch ahead."""
    seen: list[int] = []

    def produce() -> Iterator[Message]:
        for n in range(2500):
            if n == 2000:
                seen.append(app.topic("m").stats().waiting)
            yield Message("m", n)

    assert len(app.publish_many(produce())) == 2500
    assert seen[0] in (1000, 2000)


def test_publish_many_names_what_was_accepted(app: Laneway) -> None:
    """An error in the middle says which item is at fault and how many were accepted before."""
    messages = [Message("m", 1)] * 1500 + ["no message"]
    with pytest.raises(BadMessage, match="item 1500") as caught:
        app.publish_many(messages)  # type: ignore[arg-type]
    assert "first 1,000" in caught.value.__notes__[0]
    assert app.topic("m").stats().waiting == 1000


def test_progress_is_shown_on_request(
    app: Laneway, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long publish_many tells how far it is, and only on a terminal or when asked."""
    monkeypatch.setattr("laneway.producing.bulk.SHOW_AFTER", 0)
    monkeypatch.setattr("laneway.producing.bulk.SHOW_EVERY", 0)
    app.publish_many((Message("m", n) for n in range(10)), progress=True)
    assert "published 10" in capsys.readouterr().err
    app.publish_many(Message("m", n) for n in range(10))
    assert capsys.readouterr().err == ""


def test_async_variants(app: Laneway) -> None:
    """Coroutines publish, lease and settle in the same words."""

    async def main() -> None:
        receipts = await asyncio.gather(*(app.apublish("a", n) for n in range(50)))
        assert len({receipt.id for receipt in receipts}) == 50
        await app.apublish_many([Message("a", 50)])
        deliveries = await app.alease(100, wait=1)
        assert len(deliveries) == 51
        await deliveries[0].aack()
        await app.aack_many(deliveries[1:])
        assert (await app.topic("a").astats()).done == 51
        with pytest.raises(BadMessage):
            await app.apublish("a", object())

    asyncio.run(main())


def test_an_async_stream_is_published(app: Laneway) -> None:
    """
    `apublish_many` takes what is produced by a coroutine, in batches while it is read; answers in
    its order.
    """
    seen: list[int] = []

    async def produce(last: object) -> AsyncIterator[Message]:
        for n in range(2500):
            if n == 2000:
                seen.append(app.topic("m").stats().waiting)
            yield Message("m", n)
            await asyncio.sleep(0)
        yield Message("m", last)

    receipts = asyncio.run(app.apublish_many(produce("last")))
    assert [receipt.outcome for receipt in receipts] == ["accepted"] * 2501
    assert seen[0] in (1000, 2000)
    assert [message.body for message in app.topic("m").peek(3000)] == [*range(2500), "last"]
    with pytest.raises(BadMessage) as caught:
        asyncio.run(app.apublish_many(produce(object())))
    assert "2,000 messages of earlier batches" in caught.value.__notes__[-1]
    with pytest.raises(BadMessage, match="apublish_many: expected an iterable"):
        asyncio.run(app.apublish_many(5))  # type: ignore[arg-type]


def test_a_cancelled_lease_gives_back_what_arrives(app: Laneway) -> None:
    """Messages leased for a coroutine that was cancelled meanwhile are ready again at once."""

    async def main() -> None:
        leasing = asyncio.ensure_future(app.alease(1, wait=5))
        await asyncio.sleep(
            0.05
        )  # most likely it waits by then; cancelled sooner, it has to hold too
        leasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leasing
        await app.apublish("a")
        async with asyncio.timeout(60):  # a thread gives it back, if it got it at all
            while (stats := app.topic("a").stats()).leased or not stats.ready:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    asyncio.run(main())
