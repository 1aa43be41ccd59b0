"""When acks are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

from kombu import Connection, Consumer, Producer, Queue

from laneway import EngineUnavailable, Laneway
from laneway.contrib.kombu import qos
from laneway.testing.servers import until
from tests.contrib.kombu.conftest import drain

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Connect = Callable[..., Connection]


def leased(connection: Connection) -> int:
    """How many messages of the queue are leased."""
    app: Laneway = connection.transport.app
    return app.topic("q").stats().leased


def held(connection: Connection, count: int, prefetch: int) -> list[Any]:
    """That many messages, published and received."""
    got: list[Any] = []
    queue = Queue("q")
    producer = Producer(connection.channel())
    for number in range(count):
        producer.publish(number, routing_key="q", declare=[queue])
    reader = Consumer(connection.channel(), [queue], callbacks=[lambda _, m: got.append(m)])
    reader.qos(prefetch_count=prefetch)
    reader.consume()
    drain(connection, got, count)
    return got


def test_a_quarter_of_the_prefetch_count(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """That many acks are stored together, and the last one when nothing else is leased."""
    monkeypatch.setattr(qos, "STORE_SECONDS", 1e6)
    connection = connect()
    got = held(connection, 4, prefetch=12)
    counts = []
    for message in got:
        message.ack()
        counts.append(leased(connection))
    assert counts == [4, 4, 1, 0]


def test_after_a_moment(connect: Connect) -> None:
    """A single ack is stored while other messages are not acked."""
    connection = connect()
    first, _ = held(connection, 2, prefetch=100)
    first.ack()
    until(lambda: leased(connection) == 1, "the ack is stored")


def test_end_of_the_connection(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ack that waits is stored; what is not acked is released."""
    monkeypatch.setattr(qos, "STORE_SECONDS", 1e6)
    connection = connect()
    first, _ = held(connection, 2, prefetch=100)
    first.ack()
    connection.release()
    with connect() as other, other.SimpleQueue("q") as queue:
        message = queue.get(timeout=30)
        assert message.payload == 1
        message.ack()
        assert other.transport.app.topic("q").stats().waiting == 0


def test_store_that_is_away(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Acks wait until the store is available again."""
    monkeypatch.setattr(qos, "AWAY_SECONDS", 0.01)
    connection = connect()
    first, _ = held(connection, 2, prefetch=100)
    store, failures = Laneway.ack_many, [EngineUnavailable("away")] * 2

    def ack_many(app: Laneway, deliveries: Any) -> None:
        if failures:
            raise failures.pop()
        store(app, deliveries)

    monkeypatch.setattr(Laneway, "ack_many", ack_many)
    first.ack()
    until(lambda: leased(connection) == 1, "the ack is stored")
    assert failures == []


def test_acks_do_not_wait_for_the_store(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is away, only the first ack tries; the end of the connection stores all."""
    monkeypatch.setattr(qos, "STORE_SECONDS", 1e6)
    connection = connect()
    got = held(connection, 3, prefetch=4)
    with monkeypatch.context() as away:
        ack_many = Mock(side_effect=EngineUnavailable("away"))
        away.setattr(Laneway, "ack_many", ack_many)
        for message in got:
            message.ack()
        assert ack_many.call_count == 1
    connection.release()
    with connect() as other:
        other.connect()
        assert other.transport.app.topic("q").stats().waiting == 0
        assert leased(other) == 0
