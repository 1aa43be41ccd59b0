"""Exclusive and failover subscriptions: one consumer at a time, with a fence."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from laneway import Laneway, LeaseLost, Message, Refused, TermLost, UsageError
from laneway.testing.servers import until
from tests.cluster.processes import files_of, later
from tests.conformance.valkey_setups import server
from tests.stopping import stop_between_writes

TERM, LONG = 5.0, 60.0
"""Seconds. Processes of the tests may not run for a while; LONG is waited for by no test."""


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/q.db"
    server().run("FLUSHALL")
    return server().url


def subscribed(url: str, kind: str) -> Laneway:
    app = Laneway(url)
    app.topic("orders").subscribe("audit", kind=kind)  # type: ignore[arg-type]
    app.publish_many(Message("orders", n) for n in range(10))
    return app


@contextmanager
def other_process(url: str, body: str, term: float) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the consumer `c`, has printed a line, and goes on at a line of ours."""
    program = f"""
import sys
from laneway import Laneway, LeaseLost, TermLost
app = Laneway({url!r})
with app.topic("orders#audit").consumer(term={term}) as c:
{textwrap.indent(textwrap.dedent(body), "    ")}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def renewals(app: Laneway) -> int:
    """How often the consumer has renewed its term."""
    stored = app.engine.election_read("consumer:orders#audit")[0]
    return int(json.loads(stored or b"{}").get("renewals", 0))


HOLDS = """
leases = c.lease(4, wait=10)
print(c.fence, *(each.body for each in leases), flush=True)
sys.stdin.readline()
"""


def test_exclusive_refuses_a_second_consumer(url: str) -> None:
    with subscribed(url, "exclusive") as app, Laneway(url) as other:
        with app.topic("orders#audit").consumer() as first:
            assert [each.body for each in first.lease(3)] == [0, 1, 2]
            fence = first.fence
            with (
                pytest.raises(Refused, match=r"subscription orders#audit: .*:[0-9]+ consumes it"),
                other.topic("orders#audit").consumer(),
            ):
                pass
        with other.topic("orders#audit").consumer() as second:
            assert second.fence > fence
            assert [each.body for each in second.lease(3)] == [0, 1, 2]


def test_failover_waits_for_its_turn(url: str) -> None:
    """The next consumer begins when the first one ends, and gets what that did not settle."""
    fences: list[int] = []
    got: list[int] = []

    def consume(other: Laneway) -> None:
        with other.topic("orders#audit").consumer() as second:
            fences.append(second.fence)
            got.extend(each.body for each in second.lease(10, wait=10))

    with subscribed(url, "failover") as app, Laneway(url) as other:
        with app.topic("orders#audit").consumer() as first:
            thread = threading.Thread(target=consume, args=(other,))
            thread.start()
            assert first.ack_until(first.lease(5)[2]) == 3
            assert not got
            fence = first.fence
            with pytest.raises(
                Refused, match=r"consumes it and 0\.1 s have passed; it is failover"
            ):
                other.topic("orders#audit").consumer(wait=0.1).__enter__()
        thread.join(30)
    assert got == [3, 4, 5, 6, 7, 8, 9]
    assert fences[0] > fence


def test_ack_until(url: str) -> None:
    """All before it are acked at once, except those that were settled otherwise."""
    with subscribed(url, "failover") as app, app.topic("orders#audit").consumer() as consumer:
        deliveries = consumer.lease(4) + consumer.lease(4)
        deliveries[1].dead("no")
        assert consumer.ack_until(deliveries[5]) == 5
        stats = app.topic("orders#audit").stats()
        assert (stats.waiting, stats.leased, stats.done, stats.dead) == (2, 2, 5, 1)
        with pytest.raises(LeaseLost):
            consumer.ack_until(deliveries[5])
        assert consumer.ack_until(deliveries[7]) == 2


def test_killed_consumer(url: str) -> None:
    """After SIGKILL the next one takes over, in order, with a larger fence."""
    with subscribed(url, "failover") as app, other_process(url, HOLDS, LONG) as process:
        fence, *bodies = map(int, line_of(process).split())
        assert bodies == [0, 1, 2, 3]
        process.kill()
        process.wait()
        later(app.engine, LONG)
        with app.topic("orders#audit").consumer(term=LONG, wait=60) as consumer:
            assert consumer.fence > fence
            assert [each.body for each in consumer.lease(10, wait=10)] == list(range(10))


def test_stopped_consumer(url: str) -> None:
    """A process that stood still for too long finds its term lost, and its acks change nothing."""
    late = """
    for attempt in (leases[0].ack, lambda: c.ack_until(leases[3]), lambda: c.lease(1)):
        try:
            attempt()
            print("done", flush=True)
        except (LeaseLost, TermLost) as error:
            print(type(error).__name__, flush=True)
    """
    body = HOLDS + textwrap.dedent(late)
    with subscribed(url, "failover") as app, other_process(url, body, TERM) as process:
        fence = int(line_of(process).split()[0])
        stop_between_writes(process.pid, *files_of(url))
        with app.topic("orders#audit").consumer(term=LONG, wait=60) as consumer:
            leases = consumer.lease(10, wait=10)
            assert [each.body for each in leases] == list(range(10))
            assert consumer.fence > fence
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert [line_of(process) for _ in range(3)] == ["LeaseLost", "TermLost", "TermLost"]
            assert consumer.ack_until(leases[-1]) == 10


def test_leases_are_extended(url: str) -> None:
    """A consumer keeps its messages for longer than a term and the policy's lease."""
    with subscribed(url, "exclusive") as app:
        app.policy("orders#audit", lease=20)
        with app.topic("orders#audit").consumer(term=LONG) as consumer:
            (delivery,) = consumer.lease(1)
            for _ in range(3):
                wanted = renewals(app) + 2  # the first of them may be in progress
                until(lambda wanted=wanted: renewals(app) >= wanted, "a renewal", 60)  # type: ignore[misc]
                later(app.engine, LONG / 2)
            delivery.ack()
            assert delivery.attempt == 1
            assert [each.body for each in consumer.lease(2)] == [1, 2]


def test_nobody_else_gets_its_messages(url: str) -> None:
    with subscribed(url, "exclusive") as app:
        assert {each.topic for each in app.lease(50)} == {"orders"}
        assert app.lease(50, topics=["orders#audit"]) == []
        with pytest.raises(UsageError, match=r'use app\.topic\("orders#audit"\)\.consumer\(\)'):
            app.lease(1, pool="orders#audit")
        app.publish("orders", 10, id="x")
        assert app.topic("orders#audit").purge() == 10 + 1
        app.publish("orders", 10, id="y")
        assert app.explain("y", "orders#audit").reasons == ["no consumer holds orders#audit"]
        with app.topic("orders#audit").consumer():
            assert "no consumer holds" not in str(app.explain("x", "orders#audit").reasons)


def test_a_subscription_that_there_is_not(url: str) -> None:
    """Its consumer, and a lease of its address, get an error when nothing is left."""
    with subscribed(url, "exclusive") as app:
        with app.topic("orders#audit").consumer() as consumer:
            assert len(consumer.lease(1)) == 1
            assert app.topic("orders").unsubscribe("audit")
            with pytest.raises(Refused, match="subscription orders#audit does not exist"):
                consumer.lease(1, wait=60)
        assert len(app.lease(50, topics=["orders", "orders#audit"])) == 10
        for wait in (0, 60):
            with pytest.raises(Refused, match="subscription orders#audit does not exist"):
                app.lease(1, topics=["orders", "orders#audit"], wait=wait)


def test_shared_again(url: str) -> None:
    """A subscription whose kind becomes shared is leased as others; removed, it leaves nothing."""
    with subscribed(url, "exclusive") as app:
        app.topic("orders").subscribe("audit")
        assert len(app.lease(50, topics=["orders#audit"])) == 10
        app.topic("orders").subscribe("audit", kind="failover")
        app.topic("orders").unsubscribe("audit")
        assert app.engine.policy_own("orders#audit") == {}


def test_wrong_use(url: str) -> None:
    with Laneway(url) as app:
        app.topic("orders").subscribe("audit")
        with pytest.raises(UsageError, match=r"it is shared, .*app\.lease\(topics="):
            app.topic("orders#audit").consumer().__enter__()
        for topic in ("orders", "orders#none"):
            with pytest.raises(Refused, match="does not exist"):
                app.topic(topic).consumer().__enter__()
        with pytest.raises(UsageError, match=r"from 0\.5 s to 1 h, got 0\.1"):
            app.topic("orders#audit").consumer(term=0.1)
        with pytest.raises(UsageError, match="inside a `with` block"):
            app.topic("orders#audit").consumer().lease(1)


def test_a_long_name(url: str) -> None:
    """Its pool's name is a digest."""
    topic = "orders." + "x" * 200
    with Laneway(url) as app:
        app.topic(topic).subscribe("audit", kind="exclusive")
        app.publish(topic, 1)
        with app.topic(f"{topic}#audit").consumer() as consumer:
            assert [each.body for each in consumer.lease(5)] == [1]


def test_async_consumer(url: str) -> None:
    async def run(app: Laneway) -> list[int]:
        async with app.topic("orders#audit").consumer() as consumer:
            deliveries = await consumer.alease(20, wait=5)
            await deliveries[3].aack()
            assert await consumer.aack_until(deliveries[-1]) == 9
        return [each.body for each in deliveries]

    with subscribed(url, "exclusive") as app:
        assert asyncio.run(run(app)) == list(range(10))


def test_lost_term(url: str) -> None:
    """Without its term a consumer leases nothing."""
    with subscribed(url, "exclusive") as app, app.topic("orders#audit").consumer() as consumer:
        app.engine.election_swap(
            "consumer:orders#audit",
            app.engine.election_read("consumer:orders#audit")[0],
            b'{"number":1}',
        )
        assert consumer._term is not None
        consumer._term.lost.wait(30)
        with pytest.raises(TermLost):
            consumer.lease(1)
