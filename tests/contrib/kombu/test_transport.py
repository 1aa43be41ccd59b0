"""Publishing and consuming by kombu's own API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from laneway import Laneway, UsageError
from laneway.contrib.kombu import apps, bindings, names, pump
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server, until
from tests.contrib.kombu.conftest import drain, is_drained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Connect = Callable[..., Connection]


def consumer(connection: Connection, *queues: Queue, **options: Any) -> tuple[Consumer, list[Any]]:
    """A consumer that acks, and what it has got."""
    got: list[Any] = []

    def note(body: Any, message: Any) -> None:
        got.append(body)
        if not options.get("no_ack"):
            message.ack()

    consumer = Consumer(connection.channel(), list(queues), callbacks=[note], **options)
    return consumer, got


def app_of(connection: Connection) -> Laneway:
    app: Laneway = connection.transport.app
    return app


def round_trip(connection: Connection) -> None:
    """A direct, a topic and a fanout exchange, an ack, a requeue, an end of the connection."""
    direct = Queue("video", Exchange("media"), routing_key="media.video")
    topic = Queue("all", Exchange("events", type="topic"), routing_key="order.#")
    fanout = [Queue(name, Exchange("news", type="fanout")) for name in ("first", "second")]
    reader, got = consumer(connection, direct, topic, *fanout)
    with reader:
        producer = Producer(connection.channel())
        for queue, key in ((direct, "media.video"), (topic, "order.paid"), (fanout[0], "")):
            producer.publish(key or "news", exchange=queue.exchange, routing_key=key)
        producer.publish("not bound", exchange=topic.exchange, routing_key="user.new")
        drain(connection, got, 4)
    assert sorted(got) == ["media.video", "news", "news", "order.paid"]
    with connection.SimpleQueue("plain") as plain:
        plain.put({"n": 1})
        message = plain.get(timeout=30)
        assert message.payload == {"n": 1}
        message.requeue()
        message = plain.get(timeout=30)
        assert message.delivery_info["redelivered"]
        message.ack()
    with connection.channel() as channel:
        queue = connection.SimpleQueue("plain", channel=channel)
        queue.put("left")
        queue.get(timeout=30)
    with connection.SimpleQueue("plain") as plain:
        assert plain.get(timeout=30).payload == "left"


def test_file(connect: Connect) -> None:
    round_trip(connect())


def test_valkey() -> None:
    with Server() as server, Connection(f"laneway+{server.url}") as connection:
        round_trip(connection)
        connection.release()
        apps.close_all()


def test_postgres() -> None:
    with PostgresServer() as server, Connection(f"laneway+{server.url}") as connection:
        round_trip(connection)
        connection.release()
        apps.close_all()


def test_a_queue_is_a_topic(connect: Connect) -> None:
    """What the store shows is readable, and other topics are in a pool of their own."""
    connection = connect()
    producer = Producer(connection.channel())
    queue = Queue("mail", Exchange("mail"), routing_key="mail")
    producer.publish({"to": "a@b.example"}, exchange="mail", routing_key="mail", declare=[queue])
    app = app_of(connection)
    (message,) = app.topic("mail").peek()
    assert message.body["body"] == '{"to": "a@b.example"}'
    assert queue(connection.channel()).queue_declare(passive=True).message_count == 1
    assert queue(connection.channel()).purge() == 1
    assert app.topic("mail").stats().waiting == 0
    producer.publish(
        "x",
        exchange=Exchange("news", type="fanout"),
        declare=[Queue("reader", Exchange("news", type="fanout"))(connection.channel())],
    )
    stats = app.topic("kombu.exchange.news#reader").stats()
    assert (stats.waiting, stats.pool) == (1, "kombu")


def test_priority(connect: Connect) -> None:
    """A larger number goes first."""
    connection = connect()
    with connection.SimpleQueue("p") as queue:
        for priority in (0, 9, 3):
            queue.put(priority, priority=priority)
        assert [queue.get(timeout=30).payload for _ in range(3)] == [9, 3, 0]


def test_expiration(connect: Connect) -> None:
    """A message that has waited for too long is not delivered; a queue may have such a time."""
    connection = connect()
    queue = Queue("t", message_ttl=0.05)
    producer = Producer(connection.channel())
    producer.publish("own", routing_key="u", expiration=0.05, declare=[Queue("u")])
    producer.publish("queue's", routing_key="t", declare=[queue])
    producer.publish("stays", routing_key="u", expiration=60)
    published = time.monotonic()
    until(lambda: time.monotonic() > published + 0.1, "they have expired")
    reader, got = consumer(connection, queue, Queue("u"))
    with reader:
        drain(connection, got, 1)
        assert is_drained(connection)
    assert got == ["stays"]


def test_eta_waits_in_the_store(connect: Connect) -> None:
    """A message with the header of Celery's ETA is delivered when it is due, and not before."""
    connection = connect()
    due = time.time() + 0.5
    eta = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due)) + f".{int(due % 1 * 1e6):06}"
    with connection.SimpleQueue("eta") as queue:
        queue.put("later", headers={"eta": eta})
        assert app_of(connection).topic("eta").stats().delayed == 1
        assert queue.get(timeout=30).payload == "later"
        assert time.time() >= due - 0.01


def test_prefetch(connect: Connect) -> None:
    """No more messages are held than the prefetch count; an ack makes room."""
    connection = connect()
    held: list[Any] = []
    queue = Queue("f")
    producer = Producer(connection.channel())
    for number in range(5):
        producer.publish(number, routing_key="f", declare=[queue])
    reader = Consumer(connection.channel(), [queue], callbacks=[lambda _, m: held.append(m)])
    reader.qos(prefetch_count=2)
    with reader:
        drain(connection, held, 2)
        assert is_drained(connection)
        assert app_of(connection).topic("f").stats().leased == 2
        held[0].ack()
        drain(connection, held, 3)
        assert [message.payload for message in held] == [0, 1, 2]
        reader.qos(prefetch_count=4)
        drain(connection, held, 5)


def test_cancelled_consumer_gives_back(connect: Connect) -> None:
    """What a cancelled consumer has not got yet is ready for others at once."""
    connection = connect()
    queue = Queue("c")
    Producer(connection.channel()).publish(1, routing_key="c", declare=[queue])
    reader, got = consumer(connection, queue)
    reader.consume()
    app = app_of(connection)
    until(lambda: app.topic("c").stats().leased == 1, "it is leased")
    reader.cancel()
    assert app.topic("c").stats().ready == 1
    assert got == []


def test_reject(connect: Connect) -> None:
    """A rejected message is a dead letter; so is one that kombu has not published."""
    connection = connect()
    app = app_of(connection)
    app.publish("r", {"foreign": True})
    with connection.SimpleQueue("r") as queue:
        queue.put("bad")
        queue.get(timeout=30).reject()
    until(lambda: app.topic("r").stats().dead == 2, "both are dead letters")


def payload(**changes: Any) -> dict[str, Any]:
    """What kombu publishes, changed."""
    return {"body": "[]", "headers": {}, "properties": {"delivery_info": {}}, **changes}


POISONS = [
    payload(body=None),
    payload(body={"__type__": "uuid", "__value__": 5}),
    payload(headers=["task"]),
    payload(headers={"task": "shop.add", "id": 5}),
    payload(headers={"task": "shop.add", "id": "5", "shadow": ["a"]}),
    payload(properties={"delivery_info": {}, "body_encoding": "rot13"}),
    payload(properties={"delivery_info": {}, "body_encoding": "base64"}, body="x"),
    payload(properties={"delivery_info": {"exchange": [1]}}),
    payload(**{"content-type": ["application/json"]}),
]
"""Bodies that kombu does not publish, and of which it does not check anything."""


def test_poison(connect: Connect) -> None:
    """Hostile messages become dead letters, and the consumer gets the one after them."""
    connection = connect()
    app = app_of(connection)
    for poison in POISONS:
        app.publish("p", poison)
    with connection.SimpleQueue("p") as queue:
        queue.put("good")
        assert queue.get(timeout=30).payload == "good"
    assert app.topic("p").stats().dead == len(POISONS)


def test_consumer_that_fails_in_the_event_loop(connect: Connect) -> None:
    """
    A message that the consumer cannot read becomes a dead letter and does not end Celery's loop.
    """
    connection = connect()
    app = app_of(connection)

    def read(body: Any, message: Any) -> None:
        del body
        raise KeyError(message.headers["id"])

    with Consumer(connection.channel(), [Queue("e")], callbacks=[read]):
        Producer(connection.channel()).publish("x", routing_key="e", headers={"id": "42"})
        until(lambda: len(connection.transport.inbox) == 1, "the message is leased")
        connection.transport.on_readable()
    (dead,) = app.dead_letters.list("e")
    assert "cannot read" in dead.reason
    assert "42" in dead.reason


def test_consumer_that_fails_without_an_event_loop(connect: Connect) -> None:
    """
    A worker of Celery with gevent calls `drain_events`: a message that it cannot read becomes a
    dead letter there, too. A consumer of another program raises its errors.
    """
    connection = connect()
    app = app_of(connection)

    def read(message: Any) -> None:
        raise KeyError(message.headers["id"])

    with Consumer(connection.channel(), [Queue("e")], on_message=read):
        producer = Producer(connection.channel())
        producer.publish("x", routing_key="e", headers={"id": "41"})
        with pytest.raises(KeyError, match="41"):
            connection.drain_events(timeout=30)
        read.__module__ = "celery.worker.consumer.consumer"
        producer.publish("x", routing_key="e", headers={"id": "42"})
        until(lambda: len(connection.transport.inbox) == 1, "the message is leased")
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.01)
    (dead,) = app.dead_letters.list("e")
    assert "42" in dead.reason


def test_basic_get(connect: Connect) -> None:
    """One message at a time, without a consumer."""
    channel = connect().channel()
    channel.queue_declare("g")
    assert channel.basic_get("g") is None
    Producer(channel).publish("one", routing_key="g")
    message = channel.basic_get("g")
    assert message.payload == "one"
    message.ack()
    assert channel.basic_get("g") is None
    channel.queue_delete("g")


def test_bytes(connect: Connect) -> None:
    """Bodies of any bytes come back as they were."""
    with connect().SimpleQueue("b", serializer="pickle") as queue:
        queue.consumer.accept = {"application/x-python-serialize"}
        queue.put({"set": {1, 2}})
        assert queue.get(timeout=30).payload == {"set": {1, 2}}


def test_fair_queues(connect: Connect) -> None:
    """
    With `fair`, a consumer of one queue serves all: the last of 20 quiet queues does not wait for a
    busy one. A queue that is a pattern serves its own.
    """
    connection = connect(fair=True)
    producer = Producer(connection.channel())
    for number in range(100):
        producer.publish(number, routing_key="customer.busy")
    for number in range(20):
        producer.publish("quiet", routing_key=f"customer.{number}")
    order: list[str] = []
    reader = Consumer(
        connection.channel(),
        [Queue("celery")],
        callbacks=[lambda body, _: order.append(body), lambda _, message: message.ack()],
    )
    reader.qos(prefetch_count=4)
    with reader:
        drain(connection, order, 120)
    assert max(n for n, each in enumerate(order) if each == "quiet") < 70
    producer.publish("x", routing_key="other.a")
    producer.publish("y", routing_key="customer.a")
    patterned, got = consumer(connect(), Queue("customer.*"))
    with patterned:
        drain(patterned.connection, got, 1)
        assert is_drained(patterned.connection)
    assert got == ["y"]


@pytest.mark.parametrize("fair", [5, [5], ["a*b"]])
def test_wrong_fair(connect: Connect, fair: object) -> None:
    with pytest.raises(UsageError, match="broker_transport_options"):
        connect(fair=fair).channel()


@pytest.mark.parametrize("name", ["namespce", "global_keyprefix"])
def test_unknown_option(connect: Connect, name: str) -> None:
    """
    An option that nobody knows is refused, because it might be `namespace`; options of
    other brokers have no effect.
    """
    with pytest.raises(UsageError, match=f"unknown option '{name}'; there are: .*, namespace, "):
        connect(**{name: "shop"}).connect()
    assert connect(polling_interval=5).connect()


def test_temporary_queue_ends(connect: Connect) -> None:
    """A deleted queue leaves no subscription behind."""
    connection = connect()
    queue = Queue("q@host.pidbox", Exchange("pid", type="fanout"), auto_delete=True)
    queue = queue(connection.channel())
    queue.declare()
    topic = app_of(connection).topic("kombu.exchange.pid")
    (found,) = topic.subscriptions()
    assert found.name.startswith("q_host_pidbox-")
    queue.delete()
    assert topic.subscriptions() == []


def test_subscription_is_restored(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose subscription was forgotten binds its queue again."""
    monkeypatch.setattr(pump, "WAIT_SECONDS", 0.1)
    connection = connect()
    queue = Queue("s", Exchange("fan", type="fanout"), auto_delete=True)
    reader, got = consumer(connection, queue)
    with reader:
        topic = app_of(connection).topic("kombu.exchange.fan")
        topic.unsubscribe("s")
        until(topic.subscriptions, "it is there again")
        Producer(connection.channel()).publish("x", exchange="fan")
        drain(connection, got, 1)
    assert got == ["x"]


@pytest.mark.parametrize(
    ("binding", "key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("*.b.#", "a.b", True),
        ("#.z", "a.b.z", True),
        ("#.z", "a.b", False),
        ("#.#", "", True),
        ("a.#.#", "", False),
        (".".join("#" * 60) + ".z", ".".join("a" * 120), False),
    ],
)
def test_routing_keys(binding: str, key: str, expected: bool) -> None:
    """As in AMQP: `*` is one word, `#` any number of words."""
    assert bindings.matches(binding, key) is expected


def test_names() -> None:
    """Names of queues that no topic may have, and those of this package's own topics."""
    assert names.queue("a@b:c.d") == "a@b:c.d"
    assert names.queue("a#b") == "a%23b"
    assert names.queue("kombu.x") == "kombu%2Ex"
    assert len(names.queue("x" * 500)) <= 255
    assert names.queue("x" * 500) != names.queue("x" * 501)
    assert names.direct("a:b", "c", is_durable=True) != names.direct("a", "b:c", is_durable=True)
    assert names.subscription("plain-1") == "plain-1"
    assert names.subscription("a.b") != names.subscription("a_b")


def test_urls(tmp_path: Path) -> None:
    """Passwords are hidden; a URL without a store is refused."""
    connection = Connection("laneway+valkey://:secret@127.0.0.1:1/0")
    assert "secret" not in connection.as_uri()
    with pytest.raises(UsageError, match=r"expected a URL of a store"):
        Connection("laneway", transport="laneway").connect()
    with (
        Connection(
            f"sqlite:///{tmp_path}/jobs.db", transport="laneway.contrib.kombu:Transport"
        ) as named,
        named.SimpleQueue("q") as queue,
    ):
        queue.put(1)
        assert queue.get(timeout=30).payload == 1
    apps.close_all()
