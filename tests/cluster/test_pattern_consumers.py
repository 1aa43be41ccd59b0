"""Exclusive and failover subscriptions of patterns: one consumer for all their topics."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from laneway import BadPolicy, Laneway, LeaseLost, Message, Refused, TermLost, UsageError
from laneway.cli.main import main
from laneway.cluster.consumer import Consumer
from laneway.delivery import Delivery
from laneway.testing.servers import until
from laneway.working.embedded_worker import EmbeddedWorker
from tests.cluster.processes import files_of, later, process_of
from tests.conformance.valkey_setups import cluster, server
from tests.stopping import stop_between_writes

TERM, LONG = 5.0, 60.0
"""Seconds. Processes of the tests may not run for a while; LONG is waited for by no test."""


class Store(NamedTuple):
    url: str
    namespace: str


TOPICS = ("orders.eu", "orders.us", "orders.us.ny")
COPIES = "orders.*#audit"
ELECTION = f"consumer:{COPIES}"


@pytest.fixture(params=["sqlite", "files", "valkey", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store."""
    urls: dict[str, Callable[[], str]] = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/q.db",
        "files": lambda: f"sqlite:///{tmp_path}/q?shards=2",
        "valkey": lambda: server().url,
        "cluster": cluster,
    }
    return Store(urls[request.param](), secrets.token_hex(6))


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(f"sqlite:///{tmp_path}/q.db", "default")


def opened(store: Store) -> Laneway:
    return Laneway(store.url, namespace=store.namespace)


def subscribed(store: Store, kind: str) -> Laneway:
    app = opened(store)
    app.subscribe("orders.*", "audit", kind=kind)  # type: ignore[arg-type]
    app.policy("*", own_backlog=False)
    publish(app, range(4))
    return app


def publish(app: Laneway, numbers: range) -> None:
    app.publish_many(Message(topic, n) for n in numbers for topic in TOPICS)


def by_topic(deliveries: list[Delivery]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in deliveries:
        found.setdefault(each.topic, []).append(each.body)
    return found


def all_of(numbers: range) -> dict[str, list[int]]:
    return {f"{topic}#audit": list(numbers) for topic in TOPICS}


def lease_all(consumer: Consumer, count: int) -> list[Delivery]:
    """One call may visit some shards only."""
    found: list[Delivery] = []
    until = time.monotonic() + 30
    while len(found) < count and time.monotonic() < until:
        found += consumer.lease(100, wait=1)
    return found


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


CONSUMER = """
import sys
from laneway import Laneway, LeaseLost, TermLost
app = Laneway(sys.argv[1], namespace=sys.argv[2])
with app.subscriptions.consumer("orders.*", "audit", term=float(sys.argv[3])) as c:
    leases = []
    while len(leases) < 12:
        leases += c.lease(12, wait=10)
    print(c.fence, flush=True)
    sys.stdin.readline()
    for attempt in (leases[0].ack, lambda: c.ack_until(leases[-1]), lambda: c.lease(1)):
        try:
            attempt()
            print("done", flush=True)
        except (LeaseLost, TermLost) as error:
            print(type(error).__name__, flush=True)
"""
"""Holds all messages, and goes on at a line of ours."""


def term_of(end: signal.Signals) -> str:
    """The term of a process that ends like this: one that is stopped waits for its real end."""
    return str(TERM if end is signal.SIGSTOP else LONG)


def finish(app: Laneway, process: subprocess.Popen[str], store: Store, end: signal.Signals) -> None:
    """Stop or kill the process that holds the term; a killed one's term is over by then."""
    if end is signal.SIGSTOP:
        stop_between_writes(process.pid, *files_of(*store))
    else:
        process.kill()
        process.wait()
        later(app.engine, LONG)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("store", ["files", "valkey", "cluster"], indirect=True)
def test_dead_or_stopped_consumer(store: Store, end: signal.Signals) -> None:
    """
    The next one takes over all topics, each in order, with a larger fence. A process that stood
    still finds its term lost, and its acks change nothing.
    """
    term = term_of(end)
    with subscribed(store, "failover") as app, process_of(CONSUMER, *store, term) as process:
        fence = int(line_of(process))
        finish(app, process, store, end)
        with app.subscriptions.consumer("orders.*", "audit", term=LONG, wait=60) as consumer:
            assert consumer.fence > fence
            deliveries = lease_all(consumer, 12)
            assert by_topic(deliveries) == all_of(range(4))
            if end is signal.SIGSTOP:
                process.send_signal(signal.SIGCONT)
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                assert [line_of(process) for _ in range(3)] == ["LeaseLost", "TermLost", "TermLost"]
            assert consumer.ack_until(deliveries[-1]) == 12


def test_exclusive_refuses_a_second_consumer(store: Store) -> None:
    """Also another topic's: there is one consumer for all. What it did not settle comes again."""
    with subscribed(store, "exclusive") as app, opened(store) as other:
        with app.subscriptions.consumer("orders.*", "audit") as first:
            fence = first.fence
            deliveries = lease_all(first, 12)
            with (
                pytest.raises(Refused, match=r"subscription orders\.\*#audit: .* consumes it"),
                other.subscriptions.consumer("orders.*", "audit"),
            ):
                pass
            deliveries[0].dead("no")
            assert first.ack_until(deliveries[5]) == 5
            with pytest.raises(LeaseLost):
                first.ack_until(deliveries[5])
        with other.subscriptions.consumer("orders.*", "audit") as second:
            assert second.fence > fence
            assert len(lease_all(second, 6)) == 6
            publish(app, range(4, 5))  # topics that come later belong to it, too
            app.publish("orders.new", 7)
            assert len(lease_all(second, 4)) == 4


def test_who_consumes(local: Store) -> None:
    """Nobody else leases its messages; views say who holds it, and which policy decided."""
    with subscribed(local, "exclusive") as app:
        assert app.lease(50) == []
        assert app.lease(50, topics=["orders.eu#audit"]) == []
        with pytest.raises(
            UsageError, match=r'app\.subscriptions\.consumer\("orders\.\*", "audit"\)'
        ):
            app.lease(1, pool=COPIES)
        app.publish("orders.eu", 10, id="x")
        assert f"no consumer holds {COPIES}" in app.explain("x", "orders.eu#audit").reasons
        with app.subscriptions.consumer("orders.*", "audit"):
            assert "no consumer holds" not in str(app.explain("x", "orders.eu#audit").reasons)
            assert app.election(ELECTION).state().holder
        (info,) = app.topic("orders.eu").subscriptions()
        assert (info.kind, info.pattern) == ("exclusive", "orders.*")
        assert app.topic("orders.eu#audit").policy()["pool"] == COPIES
        app.topic("orders.eu").subscribe("audit", where={"type": "a"})
        (info,) = app.topic("orders.eu").subscriptions()
        assert (info.kind, info.pattern, info.where) == ("exclusive", "orders.eu", {"type": "a"})
        assert app.subscriptions.remove("orders.*", "audit") == 8
        (info,) = app.topic("orders.eu").subscriptions()
        assert (info.kind, info.waiting) == ("shared", 5)
        assert len(app.lease(50, topics=["orders.eu#audit"])) == 5


def test_list_on_the_command_line(local: Store) -> None:
    """Of a pattern, what patterns declare; of a topic, what it has."""
    with subscribed(local, "failover") as app:
        app.subscribe("orders.eu.*", "tax", where={"type": ["a", "b*"]})
        app.topic("orders.us").subscribe("own")

        def listed(topic: str) -> list[dict[str, object]]:
            arguments = ["-u", local.url, "subscription", "list", topic, "--json"]
            result = CliRunner().invoke(main, arguments, catch_exceptions=False)
            found: list[dict[str, object]] = json.loads(result.stdout)
            return found

        assert [(each["topic"], each["kind"]) for each in listed("orders.*")] == [
            ("orders.*#audit", "failover"),
            ("orders.eu.*#tax", "shared"),
        ]
        assert [(each["topic"], each["waiting"]) for each in listed("orders.us")] == [
            ("orders.us#audit", 4),
            ("orders.us#own", 0),
        ]


def test_wrong_use(local: Store) -> None:
    with subscribed(local, "failover") as app:
        one = r'orders\.\*#audit has one consumer .*; use app\.subscriptions\.consumer\("orders\.'
        with pytest.raises(UsageError, match=one):
            app.topic("orders.eu#audit").consumer().__enter__()
        with pytest.raises(UsageError, match=one):
            app.subscriptions.consumer("orders.eu.*", "audit").__enter__()
        with pytest.raises(BadPolicy, match="has one consumer for all its topics; leave out kind"):
            app.topic("orders.eu").subscribe("audit", kind="exclusive")
        with pytest.raises(Refused, match=r"subscription orders\.\*#tax does not exist"):
            app.subscriptions.consumer("orders.*", "tax").__enter__()
        app.subscribe("orders.*", "tax")
        with pytest.raises(UsageError, match=r'it is shared, .* subscription="tax"'):
            app.subscriptions.consumer("orders.*", "tax").__enter__()
        with pytest.raises(BadPolicy, match="expected a name of 1 to 64 letters"):
            app.subscriptions.consumer("orders.*", "a#b")
        with pytest.raises(BadPolicy, match='"#" and "\\*" cannot be combined'):
            app.subscriptions.consumer("orders.*#audit", "audit")


def test_lost_term_and_async(local: Store) -> None:
    """Asked to step down, a consumer leases nothing more."""

    async def run(app: Laneway) -> int:
        async with app.subscriptions.consumer("orders.*", "audit", term=20) as consumer:
            deliveries = await consumer.alease(20, wait=5)
            return await consumer.aack_until(deliveries[-1])

    with subscribed(local, "exclusive") as app:
        assert asyncio.run(run(app)) == 12
        with app.subscriptions.consumer("orders.*", "audit") as consumer:
            before = app.engine.election_read(ELECTION)[0]
            app.engine.election_swap(ELECTION, before, b'{"number":9}')
            assert consumer._term is not None
            consumer._term.lost.wait(30)
            with pytest.raises(TermLost):
                consumer.lease(1)


# Handlers

WORKER = """
import sys
from laneway import Laneway
app = Laneway(sys.argv[1], namespace=sys.argv[2])

@app.handler("orders.*", subscription="audit")
def audit(message):
    print("begun", message.topic, message.body, flush=True)
    if message.body == 3:
        sys.stdin.readline()

app.run_worker(concurrency=1, heartbeat_timeout=float(sys.argv[3]), grace=1)
"""


@contextmanager
def worker_of(app: Laneway, seen: list[tuple[str, int]]) -> Iterator[EmbeddedWorker]:
    @app.handler("*", subscription="audit")
    def audit(message: Message) -> None:
        seen.append((message.topic, message.body))

    worker = app.worker(concurrency=1, heartbeat_timeout=LONG)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("store", ["sqlite", "cluster"], indirect=True)
def test_dead_or_stopped_worker(store: Store, end: signal.Signals) -> None:
    """The waiting worker takes over all topics; what the first one settles late changes nothing."""
    seen: list[tuple[str, int]] = []
    term = term_of(end)
    with subscribed(store, "failover") as app, process_of(WORKER, *store, term) as process:
        before = 0
        while line_of(process).split()[-1] != "3":
            before += 1
        until(lambda: app.engine.overview().done == before, "the settlements", 60)
        number = app.election(ELECTION).state().number
        finish(app, process, store, end)
        with worker_of(app, seen):
            until(lambda: app.engine.overview().done == 12, "12 messages", 60)
            assert app.election(ELECTION).state().number > number
            if end is signal.SIGSTOP:
                process.send_signal(signal.SIGCONT)
                assert process.stdin is not None
                process.stdin.write("\n")  # its handler returns
                process.stdin.flush()
                process.send_signal(signal.SIGTERM)
                _, errors = process.communicate(timeout=30)
                # the store has a later term, or, if the timer is first, its time has passed
                assert "is lost: " in errors
            overview = app.engine.overview()
            assert (overview.done, overview.waiting, overview.leased) == (12, 0, 0)
        until(lambda: app.election(ELECTION).state().holder is None, "the end of the term", 60)
    for topic in TOPICS:
        mine = [body for name, body in seen if name == f"{topic}#audit"]
        assert mine == sorted(mine)


def test_two_workers(local: Store, caplog: pytest.LogCaptureFixture) -> None:
    """One of them gets all topics' messages; new subscriptions are found without a message."""
    seen: dict[str, list[tuple[str, int]]] = {"first": [], "second": []}
    with subscribed(local, "exclusive") as app, opened(local) as other, ExitStack() as stack:
        with worker_of(app, seen["first"]):
            until(lambda: len(seen["first"]) == 12, "the messages")
            stack.enter_context(worker_of(other, seen["second"]))
            until(
                lambda: "and it is exclusive; this worker receives none" in caplog.text,
                "what the test waits for",
            )
        publish(app, range(4, 6))
        until(lambda: len(seen["second"]) == 6, "the messages")
    assert len(seen["first"]) == 12


def test_handlers_of_single_topics(local: Store, caplog: pytest.LogCaptureFixture) -> None:
    """They cannot get a part of the one consumer's messages: a warning says so."""
    with subscribed(local, "failover") as app:
        app.handler("orders.eu", subscription="audit")(print)
        assert app.run_worker(burst=True).acked == 0
        assert "handlers for orders.eu#audit only; it receives none of its messages" in caplog.text


def test_long_pattern(local: Store) -> None:
    """Its pool's name is a digest; workers find it nevertheless."""
    seen: list[str] = []
    pattern = f"orders.{'x' * 150}"
    with opened(local) as app:
        app.subscribe(f"{pattern}.*", "audit", kind="failover")
        app.policy("*", own_backlog=False)
        app.publish(f"{pattern}.eu", 1)

        @app.handler("orders.*", subscription="audit")
        def audit(message: Message) -> None:
            seen.append(message.topic)

        assert app.run_worker(burst=True).acked == 1
    assert seen == [f"{pattern}.eu#audit"]
