"""`Laneway(spool=…)`: what publish returned for is in a file, and the store gets each once."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from laneway import (
    BadMessage,
    EngineUnavailable,
    Laneway,
    LanewayError,
    Message,
    ProducerFull,
    SchemaMismatch,
    Spool,
    UsageError,
)
from laneway.engines.shared import replaced_files
from laneway.message import Draft, Receipt
from laneway.policy import Resolved
from laneway.producing import forwarder, spool, spool_file
from laneway.producing.reports import UnsentReports
from laneway.producing.send_queue import OnProducerFull
from laneway.producing.spool import MessageSpool
from laneway.producing.spool_file import SpoolFile
from laneway.testing.servers import until

if TYPE_CHECKING:
    from laneway.engine_holder import EngineHolder
    from laneway.engines.base import FullEngine

AWAY = "valkey://127.0.0.1:1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other quickly."""
    monkeypatch.setattr(forwarder, "MAX_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(forwarder, "LOCK_SECONDS", 0.05)


class Store:
    """An engine that remembers each spool's last batch, as `Queue.forward` says."""

    def __init__(self) -> None:
        self.taken: list[Draft] = []
        self.batches: list[tuple[str, list[str]]] = []
        self.room: dict[str, int] = {}
        self.is_away = False
        self.fails: Exception | None = None
        self.loses_answers = 0
        self.ttl: int | None = None
        self._last: tuple[str, set[str]] = ("", set())

    @property
    def engine(self) -> Any:
        if self.is_away:
            raise EngineUnavailable("no route to it")
        return self

    namespace, url = "default", "sqlite://"

    def policy_of(self, topic: str) -> Any:
        del topic
        return Resolved(ttl=self.ttl)

    def forward(self, drafts: Sequence[Draft], *, spool: str, batch: str) -> list[Receipt]:
        assert spool
        if self.is_away:
            raise EngineUnavailable("no route to it")
        self.batches.append((batch, [str(draft.id) for draft in drafts]))
        if any(draft.topic == "bad" for draft in drafts):
            raise BadMessage("too large")
        if self.fails is not None:
            raise self.fails
        name, refused = self._last
        again = refused if name == batch else None
        receipts = [self._take(draft, again) for draft in drafts]
        self._last = (batch, {r.id for r in receipts if r.outcome == "refused"})
        if self.loses_answers:
            self.loses_answers -= 1
            raise EngineUnavailable("the answer was lost", applied=None)
        return receipts

    def _take(self, draft: Draft, again: set[str] | None) -> Receipt:
        assert draft.id is not None
        assert draft.sticky
        if again is not None and draft.id not in again:
            return Receipt(draft.id, draft.topic, "duplicate")
        if self.room.get(draft.topic, 1) <= 0:
            return Receipt(draft.id, draft.topic, "refused", None, "full")
        if draft.topic in self.room:
            self.room[draft.topic] -= 1
        self.taken.append(draft)
        return Receipt(draft.id, draft.topic)

    @property
    def bodies(self) -> list[bytes]:
        return [draft.body for draft in self.taken]


class Forgetful:
    """A real engine whose answers are lost, until its clock has moved."""

    namespace, url = "default", "sqlite://"

    def __init__(self, engine: FullEngine) -> None:
        self._engine = engine
        self._is_lossy = True
        self._ahead_us = 0
        self.lost = threading.Semaphore(0)

    @property
    def engine(self) -> Any:
        return self

    def policy_of(self, topic: str) -> Any:
        return self._engine.policy_of(topic)

    def forward(self, drafts: Sequence[Draft], *, spool: str, batch: str) -> list[Receipt]:
        now = self._engine.time_us() + self._ahead_us
        receipts = self._engine.forward(drafts, spool=spool, batch=batch, now_us=now)
        if self._is_lossy and len(drafts) == 4:
            self.lost.release()
            raise EngineUnavailable("the answer was lost", applied=None)
        return receipts

    def go_on(self, days: int) -> None:
        self._ahead_us = days * 86_400_000_000
        self._engine.tick(now_us=self._engine.time_us() + self._ahead_us)
        self._is_lossy = False


class Spooled:
    """A spool in front of a store, and what it reported."""

    def __init__(self, path: Path, store: Store, **options: Any) -> None:
        unsent = UnsentReports()
        unsent.add(lambda message, error: self.reported.append((message.id, type(error))))
        self.reported: list[tuple[str, type[LanewayError]]] = []
        self.spool = MessageSpool(
            Spool(path / "spool.db", **options), cast("EngineHolder", store), unsent
        )

    def publish(self, topic: str, *bodies: str, **options: Any) -> list[Receipt]:
        return self.spool.put([Draft(topic, body.encode(), **options) for body in bodies])


@pytest.fixture
def store() -> Store:
    return Store()


@contextmanager
def opened(path: Path) -> Iterator[SpoolFile]:
    file = SpoolFile(str(path), syncs=False, create=False)
    try:
        yield file
    finally:
        file.close()


def age(path: Path, seconds: float) -> None:
    """Make the messages of a spool older."""
    connection = sqlite3.connect(path / "spool.db", timeout=10)
    with connection:
        connection.execute("UPDATE message SET at_us = at_us - ?", (int(seconds * 1e6),))
    connection.close()


# Publishing


def test_publish_while_the_store_is_away(tmp_path: Path) -> None:
    """It returns at once, with an id, and opens no store; another process forwards later."""
    path = tmp_path / "spool.db"
    with Laneway(AWAY, spool=Spool(path, exit_timeout=0)) as app:
        receipt = app.publish("orders", {"n": 0}, key="k", priority=7, headers={"a": "b"})
        assert (receipt.outcome, receipt.topic) == ("spooled", "orders")
        assert asyncio.run(app.apublish("orders", {"n": 1})).outcome == "spooled"
        many = app.publish_many(Message("orders", {"n": n}) for n in range(2, 1500))
        assert {each.outcome for each in many} == {"spooled"}
        assert app.flush(0.05) == 1500
        assert not app.runtime.holder.is_open
    with Laneway(f"sqlite:///{tmp_path}/a.db", spool=path) as app:
        assert app.flush("60s") == 0
        found = app.lease(2000)
        assert [each.body["n"] for each in found] == list(range(1500))
        assert found[0].message.id == receipt.id
        assert (found[0].message.key, found[0].message.priority) == ("k", 7)
        assert found[0].message.headers == {"a": "b"}


class FullDisk(sqlite3.Connection):
    """A new file on a disk without room."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if "journal_mode" in sql:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return super().execute(sql, *values)


def test_a_full_disk_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits only for another process that holds the file."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=FullDisk))
    monkeypatch.setattr(spool_file, "BUSY_SECONDS", 120.0)
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match="database or disk is full"):
        SpoolFile(str(tmp_path / "spool.db"), syncs=True)
    assert time.monotonic() - began < spool_file.BUSY_SECONDS / 2


def test_a_bad_message_fails_in_publish(tmp_path: Path) -> None:
    """Validation that needs no store happens in publish, as always."""
    with Laneway(AWAY, spool=tmp_path / "spool.db") as app:
        with pytest.raises(BadMessage):
            app.publish("a*b", 1)
        with pytest.raises(BadMessage, match="outlasts its ttl"):
            app.publish("a", 1, delay=10, ttl=5)
    assert not (tmp_path / "spool.db").exists()


def test_only_the_owner_can_read_the_files(tmp_path: Path, store: Store) -> None:
    """The messages are customers' data; the lock's file is no exception."""
    spooled = Spooled(tmp_path, store)
    spooled.publish("a", "x")
    assert spooled.spool.flush(60) == 0
    modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "spool.db-lock" in modes
    spooled.spool.close()


def test_tasks_are_spooled(tmp_path: Path) -> None:
    """`delay` of a task goes through the spool too."""
    with Laneway(f"sqlite:///{tmp_path}/a.db", spool=tmp_path / "spool.db") as app:

        @app.task(topic="mail.{customer}")
        def mail(customer: str, text: str) -> str:
            return customer + text

        job = mail.delay("acme", "hello")
        assert app.flush("60s") == 0
        app.run_worker(burst=True)
        assert job.get(timeout=60) == "acmehello"


def test_many_threads_share_transactions(tmp_path: Path, store: Store) -> None:
    """Each message arrives once, and each thread's in order."""
    with_threads = Laneway("sqlite://", spool=tmp_path / "spool.db")

    def publish(number: int) -> None:
        for n in range(100):
            with_threads.publish(f"t{number}", n)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert with_threads.flush(60) == 0
    found = with_threads.lease(1000)
    for number in range(8):
        assert [e.body for e in found if e.message.topic == f"t{number}"] == list(range(100))
    with_threads.close()


# Exactly once, in order


def test_a_lost_answer(tmp_path: Path, store: Store) -> None:
    """The same batch is sent again under the same name, so each message arrives once."""
    spooled = Spooled(tmp_path, store)
    store.loses_answers = 2
    spooled.publish("a", "1", "2", "3")
    assert spooled.spool.flush(60) == 0
    assert store.bodies == [b"1", b"2", b"3"]
    assert len({name for name, _ in store.batches}) == 1 < len(store.batches)
    spooled.spool.close()


def test_a_lost_answer_and_a_new_process(tmp_path: Path, store: Store) -> None:
    """The batch is written down: the next process repeats it as it was, before anything else."""
    before = Spooled(tmp_path, store, exit_timeout=0)
    store.loses_answers = 1_000_000
    before.publish("a", "1", "2")
    wait_for(lambda: len(store.batches) >= 1)
    before.spool.close()
    store.loses_answers = 0
    after = Spooled(tmp_path, store)
    after.publish("a", "3")
    assert after.spool.flush(60) == 0
    assert store.bodies == [b"1", b"2", b"3"]
    assert store.batches[-2][0] == store.batches[0][0]
    after.spool.close()


def test_a_store_that_stays_away_for_months(tmp_path: Path) -> None:
    """
    The answer was lost, the messages were handled, and the store has forgotten their ids: the
    repeat stores nothing.
    """
    with Laneway(f"sqlite:///{tmp_path}/a.db") as app:
        app.policy("b", max_backlog=1)
        target = Forgetful(app.engine)
        spooled = Spooled(tmp_path, cast("Store", target))
        receipts = spooled.spool.put(
            [
                Draft(topic, body)
                for topic, body in zip("aabb", (b"1", b"2", b"3", b"4"), strict=True)
            ]
        )
        assert target.lost.acquire(timeout=60)
        app.ack_many(app.lease(10))
        target.go_on(days=100)
        ids = [receipt.id for receipt in receipts]
        assert app.lookup("a", ids) == dict.fromkeys(ids, "unknown")
        assert spooled.spool.flush(60) == 0
        assert [each.body for each in app.lease(10)] == [4]
        assert app.lookup("a", ids[:2]) == dict.fromkeys(ids[:2], "unknown")
        spooled.spool.close()


def test_a_full_topic_waits_in_order_and_holds_up_nobody(tmp_path: Path, store: Store) -> None:
    """Others pass; when there is room, its messages follow in the order of publish."""
    spooled = Spooled(tmp_path, store)
    store.room["full"] = 1
    spooled.publish("full", "1", "2", "3")
    spooled.publish("free", "a")
    wait_for(lambda: b"a" in store.bodies)
    spooled.publish("full", "4", "5")
    spooled.publish("free", "b")
    wait_for(lambda: b"b" in store.bodies)
    assert store.bodies == [b"1", b"a", b"b"]
    store.room["full"] = 2
    wait_for(lambda: len(store.taken) == 5)
    store.room["full"] = 100
    assert spooled.spool.flush(60) == 0
    assert [body for body in store.bodies if body.isdigit()] == [b"1", b"2", b"3", b"4", b"5"]
    assert spooled.reported == []
    spooled.spool.close()


def test_a_full_topic_and_a_lost_answer(tmp_path: Path, store: Store) -> None:
    """A batch of which a part was refused is repeated: the refused part is tried, nothing else."""
    spooled = Spooled(tmp_path, store)
    store.room["full"] = 1
    store.is_away = True
    spooled.publish("full", "1", "2")
    spooled.publish("free", "a")
    store.loses_answers = 3
    store.is_away = False
    wait_for(lambda: store.loses_answers == 0)
    store.room["full"] = 10
    assert spooled.spool.flush(60) == 0
    assert sorted(store.bodies) == [b"1", b"2", b"a"]
    spooled.spool.close()


def test_many_full_topics_stop_the_forwarder(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is set aside is bounded; when there is room, everything goes on."""
    monkeypatch.setattr(forwarder, "MAX_SET_ASIDE", 5)
    spooled = Spooled(tmp_path, store)
    store.room["full"] = 0
    spooled.publish("full", *map(str, range(600)))
    spooled.publish("free", "a")
    wait_for(lambda: len(store.batches) > 3)
    assert store.bodies == []
    store.room["full"] = 1000
    assert spooled.spool.flush(60) == 0
    assert b"a" in store.bodies
    assert [body for body in store.bodies if body != b"a"] == [str(n).encode() for n in range(600)]
    spooled.spool.close()


def test_a_refused_message_is_put_aside_and_reported(tmp_path: Path, store: Store) -> None:
    """It does not stop those behind it, and the file keeps it with the reason."""
    spooled = Spooled(tmp_path, store)
    store.is_away = True
    spooled.publish("a", *map(str, range(10)))
    bad = spooled.publish("bad", "8", "9")
    spooled.publish("a", *map(str, range(10, 20)))
    store.is_away = False
    assert spooled.spool.flush(60) == 0
    assert store.bodies == [str(n).encode() for n in range(20)]
    assert spooled.reported == [(receipt.id, BadMessage) for receipt in bad]
    status = spooled.spool.status()
    assert (status.waiting, status.bytes, status.rejected) == (0, 0, 2)
    assert status.reasons[0] == ("bad", bad[1].id, "too large")
    spooled.spool.close()


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device")], ids=str)
def test_errors_of_the_machine_reject_nothing(
    tmp_path: Path, store: Store, error: Exception
) -> None:
    """Messages wait until the machine has memory or file descriptors again."""
    spooled = Spooled(tmp_path, store)
    store.fails = error
    spooled.publish("a", "1", "2", "3")
    wait_for(lambda: type(error).__name__ in (spooled.spool.status().error or ""))
    store.fails = None
    assert spooled.spool.flush(60) == 0
    assert sorted(store.bodies) == [b"1", b"2", b"3"]
    assert (spooled.reported, spooled.spool.status().rejected) == ([], 0)
    spooled.spool.close()


# Time


def test_delay_and_ttl_count_from_publish(tmp_path: Path, store: Store) -> None:
    """The time in the spool is a part of both; a message whose ttl is over still reaches the
    store, which decides what becomes of it."""
    store.is_away = True
    spooled = Spooled(tmp_path, store, exit_timeout=0)
    spooled.publish("a", "1", delay_us=6_000_000_000, ttl_us=10_000_000_000)
    spooled.publish("a", "2", delay_us=2_000_000_000)
    spooled.publish("a", "3", ttl_us=2_000_000_000)
    spooled.publish("a", "4", at_us=7)
    spooled.spool.close()
    age(tmp_path, 5_000)
    spooled = Spooled(tmp_path, store)
    store.ttl, store.is_away = 7_000_000_000, False
    assert spooled.spool.flush(60) == 0
    one, two, three, four = store.taken
    assert one.delay_us == pytest.approx(1_000_000_000, abs=5e8)
    assert one.ttl_us == pytest.approx(5_000_000_000, abs=5e8)
    assert two.delay_us == 0
    assert two.ttl_us == pytest.approx(2_000_000_000, abs=5e8)  # the policy's
    assert three.ttl_us == 1
    assert four.at_us == 7
    spooled.spool.close()


# Bounds


@pytest.mark.parametrize("bound", [{"max_messages": 2}, {"max_bytes": 2}])
@pytest.mark.parametrize("on_full", ["raise", "drop"])
def test_a_full_spool(tmp_path: Path, store: Store, bound: dict[str, int], on_full: str) -> None:
    """The message that is too many is refused or dropped, and the rest is forwarded."""
    store.is_away = True
    spooled = Spooled(tmp_path, store, on_full=on_full, **bound)
    receipts = (
        spooled.publish("a", "1") + spooled.publish("a", "2", "3") + spooled.publish("a", "4")
    )
    outcome = {"raise": "refused", "drop": "dropped"}[on_full]
    assert [receipt.outcome for receipt in receipts] == ["spooled", "spooled", outcome, outcome]
    assert "its bounds are" in (receipts[-1].reason or "")
    dropped = [(receipt.id, ProducerFull) for receipt in receipts[2:]]
    assert spooled.reported == (dropped if on_full == "drop" else [])
    store.is_away = False
    assert spooled.spool.flush(60) == 0
    assert spooled.publish("a", "5")[0].outcome == "spooled"
    assert spooled.spool.flush(60) == 0
    assert store.bodies == [b"1", b"2", b"5"]
    spooled.spool.close()


def test_a_full_spool_raises_or_blocks_in_publish(tmp_path: Path) -> None:
    """`raise` raises ProducerFull; `block` waits for room, at most the call's timeout."""
    ways: tuple[OnProducerFull, ...] = ("raise", "block")
    for name in ways:
        spool = Spool(tmp_path / name, max_messages=1, on_full=name, exit_timeout=0)
        with Laneway(AWAY, spool=spool) as app:
            app.publish("a", 1)
            with pytest.raises(ProducerFull, match="max_messages=1"):
                app.publish("a", 2, timeout=0.05)
    with Laneway(f"sqlite:///{tmp_path}/a.db", spool=Spool(tmp_path / "b", max_messages=1)) as app:
        for n in range(20):
            app.publish("a", n)  # waits for room
        assert app.flush(60) == 0
        assert [each.body for each in app.lease(30)] == list(range(20))


def test_a_spool_with_an_old_message_is_full(tmp_path: Path, store: Store) -> None:
    """Beyond `max_age` nothing is taken, so that the program notices."""
    store.is_away = True
    spooled = Spooled(tmp_path, store, on_full="raise", max_age="1h", exit_timeout=0)
    assert spooled.publish("a", "1")[0].outcome == "spooled"
    spooled.spool.close()
    age(tmp_path, 3601)
    spooled = Spooled(tmp_path, store, on_full="raise", max_age="1h")
    assert spooled.publish("a", "2")[0].outcome == "refused"
    store.is_away = False
    assert spooled.spool.flush(60) == 0
    wait_for(lambda: spooled.publish("a", "3")[0].outcome == "spooled")
    spooled.spool.close()


# The file


def test_the_numbers_of_an_empty_spool_go_on(tmp_path: Path, store: Store) -> None:
    """Count and size stay right over many rounds, and the file stays small."""
    spooled = Spooled(tmp_path, store)
    for n in range(20):
        spooled.publish("a", "x" * 10, str(n))
        assert spooled.spool.flush(60) == 0
        assert spooled.spool.status().waiting == spooled.spool.status().bytes == 0
    spooled.spool.close()
    connection = sqlite3.connect(tmp_path / "spool.db")
    assert connection.execute("SELECT count(*), max(seq) FROM message").fetchone() == (1, 40)
    connection.close()
    assert len(store.taken) == 40


def test_the_log_of_a_process_that_only_forwards(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shortened too: a spool that has filled the disk needs no second disk to be drained."""
    store.is_away = True
    spooled = Spooled(tmp_path, store, exit_timeout=0)
    spooled.publish("a", *["x" * 1_000] * 1_000)
    spooled.spool.close()
    store.is_away = False
    shortened = threading.Event()
    monkeypatch.setattr(spool, "LOG_BYTES", 10_000)
    monkeypatch.setattr(SpoolFile, "checkpoint", lambda _: shortened.set())
    forwarding = Spooled(tmp_path, store, sync=0.01).spool
    assert forwarding.flush(60) == 0
    assert shortened.wait(60)
    forwarding.close()


def test_status(tmp_path: Path, store: Store) -> None:
    """It says what waits, since when, and why."""
    store.is_away = True
    spooled = Spooled(tmp_path, store, exit_timeout=0)
    spooled.publish("a", "123", "4")
    wait_for(lambda: spooled.spool.status().error is not None)
    status = spooled.spool.status()
    assert (status.waiting, status.bytes, status.rejected) == (2, 4, 0)
    assert status.error == "no route to it"
    assert status.forwarder == os.getpid()
    assert abs((status.oldest_at or 0) - time.time()) < 60
    store.is_away = False
    assert spooled.spool.flush(60) == 0
    wait_for(lambda: spooled.spool.status().error is None)
    spooled.spool.close()


def test_files_that_are_no_spools(tmp_path: Path) -> None:
    """Each is named in one sentence, and left as it is."""
    (tmp_path / "text").write_text("something else\n" * 100)
    sqlite3.connect(tmp_path / "other").executescript("CREATE TABLE a (b);").close()
    newer = sqlite3.connect(tmp_path / "newer")
    SpoolFile(str(tmp_path / "newer"), syncs=False).close()
    newer.execute("PRAGMA user_version = 99").close()
    for name, error in (
        ("text", EngineUnavailable),
        ("other", UsageError),
        ("newer", SchemaMismatch),
        ("no/such/folder", EngineUnavailable),
    ):
        with Laneway(AWAY, spool=tmp_path / name) as app, pytest.raises(error, match="spool "):
            app.publish("a", 1)


def test_a_spool_belongs_to_one_namespace(tmp_path: Path) -> None:
    """Its messages must not reach another one."""
    with Laneway(AWAY, spool=Spool(tmp_path / "s", exit_timeout=0)) as app:
        app.publish("a", 1)
    with (
        Laneway(AWAY, namespace="b", spool=tmp_path / "s") as app,
        pytest.raises(UsageError, match="namespace 'default'"),
    ):
        app.publish("a", 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"path": ""}, "path"),
        ({"path": 5}, "path"),
        ({"max_messages": -1}, "max_messages"),
        ({"max_bytes": "much"}, "max_bytes"),
        ({"max_age": "old"}, "max_age"),
        ({"on_full": "refuse"}, "block, raise, drop"),
        ({"syncs": 1}, "sync"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    """An error names the option and what was expected."""
    with pytest.raises(UsageError, match=text):
        Spool(**{"path": "a.db", **options})
    with pytest.raises(UsageError, match="one of them"):
        Laneway("sqlite://", buffer=True, spool="a.db")


# Several processes

PUBLISH = """
import sys
from laneway import Laneway, Spool
app = Laneway(sys.argv[1], spool=Spool(sys.argv[2], exit_timeout=0))
for n in range(int(sys.argv[3])):
    app.publish(sys.argv[4], n)
    print(n, flush=True)
print("done", flush=True)
sys.stdin.read()
"""


def publisher(url: str, path: Path, count: int, topic: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUBLISH, url, str(path), str(count), topic]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_several_processes_share_a_spool(tmp_path: Path) -> None:
    """One of them forwards; when it is killed, another one goes on. Nothing is lost or doubled."""
    url, path = f"sqlite:///{tmp_path}/a.db", tmp_path / "spool.db"
    processes = [publisher(url, path, 300, f"t{n}") for n in range(3)]
    try:
        for process in processes:
            assert process.stdout is not None
            while process.stdout.readline().strip() != "done":
                assert process.poll() is None
        for process in processes[:2]:
            process.send_signal(signal.SIGKILL)
            process.wait()
        with Laneway(url, spool=path) as app:
            assert app.flush(60) == 0
            found = app.lease(2000)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    for n in range(3):
        assert [e.body for e in found if e.message.topic == f"t{n}"] == list(range(300))


def test_a_short_program_forwards_what_it_can(tmp_path: Path) -> None:
    """The end of the program waits for a store that answers, and not for one that is away."""
    program = """
import sys
from laneway import Laneway, Spool
Laneway(sys.argv[1], spool=Spool(sys.argv[2], exit_timeout=600)).publish("a", 1)
"""
    path = tmp_path / "spool.db"
    run = [sys.executable, "-c", program, AWAY, str(path)]
    subprocess.run(run, check=True, capture_output=True, timeout=120)
    with opened(path) as file:
        assert file.usage.messages == 1
    run = [sys.executable, "-c", program, f"sqlite:///{tmp_path}/a.db", str(path)]
    subprocess.run(run, check=True, timeout=120)
    with opened(path) as file:
        assert file.usage.messages == 0
    with Laneway(f"sqlite:///{tmp_path}/a.db") as app:
        assert [each.body for each in app.lease(9)] == [1, 1]


def test_the_end_waits_for_a_store_that_restarts(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage that has just begun does not end the wait, one that lasts does."""
    spooled = Spooled(tmp_path, store, exit_timeout=600)
    spooled.publish("a", "1")
    assert spooled.spool.flush(60) == 0
    store.is_away = True
    spooled.publish("a", "2")
    until(lambda: spooled.spool.status().error, "the outage")
    closing = threading.Thread(target=spooled.spool.close)
    closing.start()
    closing.join(0.3)
    assert closing.is_alive()
    store.is_away = False
    closing.join(60)
    assert store.bodies == [b"1", b"2"]
    monkeypatch.setattr(forwarder, "RESTART_SECONDS", 0.2)
    spooled.publish("a", "3")
    assert spooled.spool.flush(60) == 0
    store.is_away = True
    spooled.publish("a", "4")
    until(lambda: spooled.spool.status().error, "the outage")
    began = time.monotonic()
    spooled.spool.close()
    assert time.monotonic() - began < 120
    with opened(tmp_path / "spool.db") as file:
        assert file.usage.messages == 1


def test_a_hook_that_publishes_into_the_full_spool(tmp_path: Path) -> None:
    """It gets ProducerFull instead of waiting for its own thread."""
    app = Laneway(f"sqlite:///{tmp_path}/a.db", spool=Spool(tmp_path / "spool.db", max_messages=1))
    errors: list[str] = []

    @app.on_unsent
    def again(message: Message, error: LanewayError) -> None:
        del error
        try:
            app.publish(message.topic, "again")
        except ProducerFull as full:
            errors.append(type(full).__name__)

    app.publish("a", "x" * 2_000_000)
    assert app.flush(60) == 0
    assert errors == ["ProducerFull"]
    app.close()


def test_a_forked_child_publishes_too(tmp_path: Path) -> None:
    """It has a connection of its own, and the parent goes on forwarding."""
    with Laneway(f"sqlite:///{tmp_path}/a.db", spool=tmp_path / "spool.db") as app:
        app.publish("a", "parent")
        assert app.flush(60) == 0
        child = os.fork()
        if child == 0:
            try:
                app.publish("a", "child")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        app.publish("a", "parent again")
        assert app.flush(60) == 0
        assert [each.body for each in app.lease(9)] == ["parent", "child", "parent again"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_forks_while_threads_publish(tmp_path: Path) -> None:
    """A fork in the middle of a transaction leaves neither side waiting, and loses nothing."""
    children, numbers = 6, range(5)
    ended = threading.Event()
    published = [0, 0, 0]

    def publish(place: int) -> None:
        while not ended.is_set():
            app.publish(f"parent.{place}", published[place])
            published[place] += 1

    def publish_all(topic: str) -> None:
        for number in numbers:
            app.publish(topic, number)

    with Laneway(f"sqlite:///{tmp_path}/a.db", spool=tmp_path / "spool.db") as app:
        threads = [threading.Thread(target=publish, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        try:
            for child in range(children):
                process = multiprocessing.get_context("fork").Process(
                    target=publish_all, args=(f"child.{child}",)
                )
                process.start()
                process.join(60)
                assert process.exitcode == 0
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        assert app.flush(60) == 0
        for child in range(children):
            assert app.topic(f"child.{child}").stats().waiting == len(numbers)
        for place in range(3):
            assert app.topic(f"parent.{place}").stats().waiting == published[place]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_parent_closes_before_its_child(tmp_path: Path) -> None:
    """The child has locks of its own: what it publishes then is in the file."""
    app = Laneway(AWAY, spool=Spool(tmp_path / "spool.db", exit_timeout=0))
    app.publish("a", "parent")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            app.publish("a", "child")
            os.read(reading, 1)
            app.publish("a", "child again")
        finally:
            os._exit(0)
    while app.spool_status().waiting < 2:
        time.sleep(0.002)  # another process publishes
    app.close()
    with opened(tmp_path / "spool.db") as file:  # the last connection takes the log away
        assert file.usage.messages == 2
    os.write(writing, b"x")
    os.waitpid(child, 0)
    with opened(tmp_path / "spool.db") as file:
        assert file.usage.messages == 3


def test_a_link_to_a_spool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Processes that name the same file differently share its lock and its log."""
    real, link = tmp_path / "disk" / "spool.db", tmp_path / "spool.db"
    real.parent.mkdir()
    link.symlink_to(real)
    url = f"sqlite:///{tmp_path}/a.db"
    with Laneway(url, spool=link) as app, Laneway(url, spool=real) as other:
        app.publish("a", 1)
        assert app.flush(60) == 0
        other.publish("a", 2)
        assert other.flush(60) == 0
        assert other.spool_status().forwarder == app.spool_status().forwarder == os.getpid()
        assert [each.body for each in app.lease(9)] == [1, 2]
    assert not link.with_name("spool.db-lock").exists()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_program_that_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As daemons do; the spool stays where it was."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with Laneway(f"sqlite:///{tmp_path}/a.db", spool="spool.db") as app:
        monkeypatch.chdir(elsewhere)
        app.publish("a", 1)
        assert app.flush(60) == 0
        assert [each.body for each in app.lease(9)] == [1]
    assert list(elsewhere.iterdir()) == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_was_removed_under_the_process(
    tmp_path: Path,
    store: Store,
    how: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call returns `spooled`: what only this process sees is lost when it ends."""
    monkeypatch.setattr(replaced_files, "LOOK_EVERY", math.inf)  # the first to see it is a publish
    store.is_away = True
    path = tmp_path / "spool.db"
    spooled = Spooled(tmp_path, store, exit_timeout=0)
    spooled.publish("a", "1", "2")
    wait_for(lambda: spooled.spool.status().error)
    for each in tmp_path.glob("spool.db*"):
        each.unlink()
    if how == "replaced":
        SpoolFile(str(path), syncs=False).close()
    with pytest.raises(EngineUnavailable, match="under this process") as raised:
        spooled.publish("a", "3")
    assert raised.value.applied is None
    for call in (
        lambda: spooled.publish("a", "4"),
        lambda: spooled.publish("a", "5", "6"),
        lambda: spooled.spool.put_now(Draft("a", b"7")),
        spooled.spool.status,
        spooled.spool.flush,
    ):
        with pytest.raises(EngineUnavailable, match="under this process") as raised:
            call()
        assert raised.value.applied is False
    spooled.spool.close()
    assert "3 messages in it were not forwarded" in caplog.text
    assert path.exists() == (how == "replaced"), "none is created in its place"


def test_what_a_removed_file_holds_is_forwarded(tmp_path: Path, store: Store) -> None:
    """As long as the process lives."""
    store.is_away = True
    spooled = Spooled(tmp_path, store)
    spooled.publish("a", "1", "2")
    wait_for(lambda: spooled.spool.status().error)
    for each in tmp_path.glob("spool.db*"):
        each.unlink()
    store.is_away = False
    wait_for(lambda: store.bodies == [b"1", b"2"])
    spooled.spool.close()
    assert not list(tmp_path.iterdir())


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it is true, at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
