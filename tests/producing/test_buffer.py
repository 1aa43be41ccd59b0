"""`Laneway(buffer=…)`: publish returns at once, a thread sends, and nothing is lost silently."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import pytest

from laneway import (
    BacklogFull,
    BadMessage,
    Buffer,
    EngineUnavailable,
    Laneway,
    LanewayError,
    Message,
    ProducerFull,
    UsageError,
)
from laneway.message import Draft, Receipt
from laneway.producing.buffer import MessageBuffer
from laneway.producing.producer import QueuedProducer
from laneway.producing.reports import UnsentReports

if TYPE_CHECKING:
    from pathlib import Path

    from laneway.engine_holder import EngineHolder


class Store:
    """Takes batches when the test allows it, and can be away or refuse topics."""

    def __init__(self, *, held: bool = False) -> None:
        self.batches: list[list[str]] = []
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.is_away = False
        self.attempts = threading.Semaphore(0)
        if not held:
            self.go_on.set()

    @property
    def ids(self) -> list[str]:
        return list(chain.from_iterable(self.batches))

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        self.begun.set()
        self.attempts.release()
        assert self.go_on.wait(60)
        if self.is_away:
            raise EngineUnavailable("no route to it")
        if any(draft.topic == "bad" for draft in drafts):
            raise BadMessage("too large")
        self.batches.append([draft.id or "" for draft in drafts])
        return [
            Receipt(draft.id or "", draft.topic, "refused", None, "topic full: 1 message waits")
            if draft.topic == "full"
            else Receipt(draft.id or "", draft.topic)
            for draft in drafts
        ]


class Reported:
    """A hook that collects what was reported."""

    def __init__(self, unsent: UnsentReports) -> None:
        self.messages: list[tuple[str, type[LanewayError]]] = []
        unsent.add(self.collect)

    def collect(self, message: Message, error: LanewayError) -> None:
        self.messages.append((message.id, type(error)))


def producer_of(store: Store, options: Buffer, unsent: UnsentReports) -> QueuedProducer:
    threads = ThreadPoolExecutor(1)
    return QueuedProducer(
        cast("EngineHolder", None), threads, lambda _: MessageBuffer(options, store.put, unsent)
    )


def buffer_of(store: Store, **options: Any) -> tuple[QueuedProducer, Reported]:
    unsent = UnsentReports()
    return producer_of(store, Buffer(**options), unsent), Reported(unsent)


def draft(name: str, topic: str = "a", body: bytes = b"1") -> Draft:
    return Draft(topic, body, id=name)


def test_publish_returns_before_the_store_answers(tmp_path: Path) -> None:
    """The receipt has an id and the outcome `buffered`; flush sends it; both also awaited."""
    with Laneway(f"sqlite:///{tmp_path}/a.db", buffer=True) as app:
        first = app.publish("orders", {"n": 1}, priority=3)
        second = asyncio.run(app.apublish("orders", {"n": 2}))
        assert (first.outcome, second.outcome) == ("buffered", "buffered")
        assert len({first.id, second.id}) == 2
        many = app.publish_many(Message("orders", n) for n in range(3))
        assert [receipt.outcome for receipt in many] == ["buffered"] * 3
        assert asyncio.run(app.aflush("60s")) == 0
        taken = app.lease(10)
        assert {first.id, second.id} < {each.message.id for each in taken}
        assert [each.body for each in taken] == [{"n": 1}, {"n": 2}, 0, 1, 2]


def test_a_bad_message_fails_in_publish(tmp_path: Path) -> None:
    """Validation that needs no store happens in publish, as always."""
    with Laneway(f"sqlite:///{tmp_path}/a.db", buffer=True) as app:
        with pytest.raises(BadMessage):
            app.publish("a*b", 1)
        with pytest.raises(BadMessage):
            app.publish("a", {1: object()})
        assert app.flush() == 0
        assert not (tmp_path / "a.db").exists()


def test_it_sends_by_count_and_by_time() -> None:
    """A full batch goes at once; a part of one goes after the interval."""
    store = Store()
    buffer, _ = buffer_of(store, flush_count=3, flush_interval=60)
    for name in "abc":
        buffer.publish_draft(draft(name))
    wait_for(lambda: len(store.batches) == 1)
    assert store.batches == [["a", "b", "c"]]
    slow, _ = buffer_of(store, flush_count=3, flush_interval=0.05)
    began = time.monotonic()
    slow.publish_draft(draft("d"))
    wait_for(lambda: len(store.batches) == 2)
    assert time.monotonic() - began >= 0.05
    buffer.close()
    slow.close()


def test_flush_does_not_wait_for_the_interval() -> None:
    """`flush` sends at once, and returns what is not answered at its timeout."""
    store = Store(held=True)
    buffer, _ = buffer_of(store, flush_interval=3600)
    buffer.publish_draft(draft("a"))
    assert buffer.flush(0.05) == 1
    store.go_on.set()
    assert buffer.flush(60) == 0
    assert store.batches == [["a"]]
    buffer.close()


@pytest.mark.parametrize("bound", [{"max_messages": 2}, {"max_bytes": 2}])
def test_a_full_buffer_raises(bound: dict[str, int]) -> None:
    """With `raise` the message that is too many is refused, and the others are sent."""
    store = Store(held=True)
    buffer, reported = buffer_of(store, on_full="raise", **bound)
    buffer.publish_draft(draft("a"))
    buffer.publish_draft(draft("b"))
    with pytest.raises(ProducerFull, match="holds 2 messages"):
        buffer.publish_draft(draft("c"))
    assert [each.outcome for each in buffer.publish_drafts([draft("d")])] == ["refused"]
    store.go_on.set()
    assert buffer.flush(60) == 0
    assert sorted(store.ids) == ["a", "b"]
    assert reported.messages == []
    buffer.close()


def test_a_full_buffer_drops_and_reports() -> None:
    """With `drop` the new message is dropped: the receipt, the hook and the log say so."""
    store = Store(held=True)
    buffer, reported = buffer_of(store, on_full="drop", max_messages=1)
    buffer.publish_draft(draft("a"))
    receipt = buffer.publish_draft(draft("b"))
    assert receipt.outcome == "dropped"
    assert "max_messages" in (receipt.reason or "")
    assert reported.messages == [("b", ProducerFull)]
    store.go_on.set()
    buffer.close()
    assert store.batches == [["a"]]


def test_a_full_buffer_blocks() -> None:
    """With `block` publish waits for room, at most its timeout."""
    store = Store(held=True)
    buffer, _ = buffer_of(store, max_messages=1)
    buffer.publish_draft(draft("a"))
    with pytest.raises(ProducerFull):
        buffer.publish_draft(draft("b"), timeout=0.05)
    blocked = threading.Thread(target=buffer.publish_draft, args=(draft("c"),))
    blocked.start()
    store.go_on.set()
    blocked.join(60)
    assert not blocked.is_alive()
    assert buffer.flush(60) == 0
    assert store.batches == [["a"], ["c"]]
    buffer.close()


def test_a_message_larger_than_the_bound_passes_alone() -> None:
    """It would never find room otherwise."""
    store = Store()
    buffer, _ = buffer_of(store, max_bytes=10)
    assert buffer.publish_draft(draft("a", body=b"x" * 100), timeout=0).outcome == "buffered"
    buffer.close()
    assert store.batches == [["a"]]


def test_the_store_is_away_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """Messages wait, in order, and are sent when the store returns; each outage is logged once."""
    store = Store()
    store.is_away = True
    buffer, reported = buffer_of(store, flush_count=1)
    with caplog.at_level(logging.INFO):
        buffer.publish_draft(draft("a"))
        for _ in range(3):
            assert store.attempts.acquire(timeout=60)
        buffer.publish_draft(draft("b"))
        store.is_away = False
        assert buffer.flush(60) == 0
    assert store.ids == ["a", "b"]
    assert reported.messages == []
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    buffer.close()


def test_what_the_store_refuses_is_reported_alone() -> None:
    """One bad message and one over a backlog limit do not stop the messages beside them."""
    store = Store(held=True)
    buffer, reported = buffer_of(store)
    buffer.publish_draft(draft("first"))
    assert store.begun.wait(60)
    for name, topic in [("a", "a"), ("b", "bad"), ("c", "full"), ("d", "a")]:
        buffer.publish_draft(draft(name, topic))
    store.go_on.set()
    assert buffer.flush(60) == 0
    buffer.close()
    assert {"first", "a", "d"} <= set(store.ids)
    assert sorted(reported.messages) == [("b", BadMessage), ("c", BacklogFull)]


def test_a_hook_that_fails_or_publishes_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged; and a hook that publishes into the full buffer is refused, not stuck."""
    store = Store(held=True)
    unsent = UnsentReports()
    buffer = producer_of(store, Buffer(max_messages=2), unsent)
    unsent.add(
        lambda _message, _error: [buffer.publish_draft(draft(each)) for each in ("again", "more")]
    )
    reported = Reported(unsent)
    buffer.publish_draft(draft("b", "bad"))
    store.go_on.set()
    buffer.flush(60)
    buffer.close()
    assert reported.messages == [("b", BadMessage)]
    assert "ProducerFull" in caplog.text
    assert store.batches == [["again"]]


def test_close_waits_for_what_a_hook_publishes() -> None:
    """A message that comes while the buffer closes has the rest of `exit_timeout`, too."""
    store = Store(held=True)
    unsent = UnsentReports()
    buffer = producer_of(store, Buffer(exit_timeout=120), unsent)

    def publish_again(message: Message, error: LanewayError) -> None:
        del message, error
        store.go_on.clear()
        buffer.publish_draft(draft("again"))

    unsent.add(publish_again)
    reported = Reported(unsent)
    buffer.publish_draft(draft("b", "bad"))
    closing = threading.Thread(target=buffer.close)
    closing.start()
    store.go_on.set()
    for _ in range(2):
        assert store.attempts.acquire(timeout=60)
    closing.join(0.1)  # it does not end
    store.go_on.set()
    closing.join()
    assert reported.messages == [("b", BadMessage)]
    assert store.batches == [["again"]]


def test_close_reports_what_it_cannot_send(caplog: pytest.LogCaptureFixture) -> None:
    """After `exit_timeout` the rest is reported; the buffer can be used again."""
    store = Store()
    store.is_away = True
    buffer, reported = buffer_of(store, exit_timeout=0.05)
    buffer.publish_draft(draft("a"))
    buffer.publish_draft(draft("b"))
    buffer.close()
    assert reported.messages == [("a", EngineUnavailable), ("b", EngineUnavailable)]
    assert "2 messages (the first is message a to a): not sent" in caplog.text
    assert cast("MessageBuffer", buffer.queue).count == 0
    store.is_away = False
    buffer.publish_draft(draft("c"))
    assert buffer.flush(60) == 0
    assert store.batches == [["c"]]
    buffer.close()


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    """Eight threads publish into a small buffer: each message arrives once."""
    with Laneway(f"sqlite:///{tmp_path}/a.db", buffer=Buffer(max_messages=50)) as app:

        def publish(number: int) -> None:
            for n in range(200):
                app.publish("a", number * 1000 + n)

        threads = [threading.Thread(target=publish, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert app.flush(60) == 0
        found = [each.body for each in app.lease(2000)]
    assert sorted(found) == sorted(n * 1000 + m for n in range(8) for m in range(200))


@pytest.mark.parametrize(
    "end", ["", "import sys; sys.exit(3)", "raise ValueError('the program fails')"]
)
def test_the_exit_waits(tmp_path: Path, end: str) -> None:
    """A program that ends at once after publish loses nothing."""
    program = f"""
from laneway import Buffer, Laneway
app = Laneway("sqlite:///{tmp_path}/a.db", buffer=Buffer(flush_interval=60))
for n in range(100):
    app.publish("a", n)
{end}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "laneway" not in ended.stderr.replace("laneway.db", ""), ended.stderr
    with Laneway(f"sqlite:///{tmp_path}/a.db") as app:
        assert [each.body for each in app.lease(200)] == list(range(100))


def test_a_forked_child_ends_while_its_parent_has_messages(tmp_path: Path) -> None:
    """It sends its own, and leaves its parent's to the parent."""
    program = """
import multiprocessing, sys
from laneway import Buffer, Laneway
app = Laneway(sys.argv[1], buffer=Buffer(flush_interval=60))
app.publish("parent", 0)
child = multiprocessing.get_context("fork").Process(target=app.publish, args=("child", 0))
child.start()
child.join(50)
print("child", child.exitcode)
"""
    url = f"sqlite:///{tmp_path}/a.db"
    command = [sys.executable, "-W", "ignore", "-c", program, url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "child 0"
    assert "not sent" not in ended.stderr
    with Laneway(url) as app:
        assert sorted(each.message.topic for each in app.lease(9)) == ["child", "parent"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_messages": 0}, "max_messages"),
        ({"max_bytes": "much"}, "max_bytes"),
        ({"on_full": "refuse"}, "block, raise, drop"),
        ({"flush_interval": -1}, "flush_interval"),
        ({"flush_counts": 1}, "flush_count"),
    ],
)
def test_wrong_options(options: dict[str, Any], text: str) -> None:
    """An error names the option and what was expected."""
    with pytest.raises(UsageError, match=text):
        Buffer(**options)


def test_a_wrong_buffer() -> None:
    """`buffer` is True or a Buffer; a hook is a function."""
    with pytest.raises(UsageError, match=r"Buffer\(…\)"):
        Laneway("sqlite://", buffer=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="on_unsent"):
        Laneway("sqlite://").on_unsent(3)  # type: ignore[type-var]


def wait_for(condition: Any) -> None:
    """Wait until it is true, at most a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
