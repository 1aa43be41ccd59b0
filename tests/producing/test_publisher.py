"""Group commit: many callers, few transactions, and each caller gets its own receipts or error."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from laneway import BadMessage, EngineUnavailable
from laneway.message import Draft, Receipt
from laneway.producing import publisher as publisher_module
from laneway.producing.bulk import BATCH_BYTES
from laneway.producing.publisher import MAX_MESSAGES, Publisher


class SlowStore:
    """Accepts one batch at a time, each only when the test allows it."""

    def __init__(self, *, held: bool) -> None:
        self.batches: list[list[str]] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self._one = threading.Lock()
        if not held:
            self.go_on.set()

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        assert self._one.acquire(blocking=False), "two commits at once"
        try:
            self.begun.set()
            assert self.go_on.wait(60)
            if any(draft.topic == "bad" for draft in drafts):
                raise BadMessage("too large")
            if any(draft.topic == "away" for draft in drafts):
                raise EngineUnavailable("the disk is full")
            self.batches.append([draft.topic for draft in drafts])
            return [Receipt(f"id-{draft.topic}", draft.topic) for draft in drafts]
        finally:
            self._one.release()


@pytest.fixture
def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(20)


def gather(
    publisher: Publisher,
    store: SlowStore,
    threads: ThreadPoolExecutor,
    topics: list[str],
    body: bytes = b"",
) -> list[object]:
    """
    Publish one message while no commit runs, and the others during its commit; returns each
    caller's answer.
    """

    def put(topic: str) -> object:
        try:
            return publisher.put([Draft(topic, body)])[0].id
        except (BadMessage, EngineUnavailable) as error:
            return type(error)

    first = threads.submit(put, "first")
    assert store.begun.wait(60)
    others = [threads.submit(put, topic) for topic in topics]
    while len(publisher._queue) < len(topics):
        threading.Event().wait(0.001)
    store.go_on.set()
    return [first.result(60), *(other.result(60) for other in others)]


def test_a_single_caller_does_not_wait(threads: ThreadPoolExecutor) -> None:
    """One caller, one batch, in its own thread."""
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)
    assert publisher.put([Draft("a", b"")])[0].id == "id-a"
    assert store.batches == [["a"]]


def test_callers_during_a_commit_join_the_next(threads: ThreadPoolExecutor) -> None:
    """Ten callers that queue during a commit become one batch, each with its own answer."""
    store = SlowStore(held=True)
    topics = [f"t{n}" for n in range(10)]
    answers = gather(Publisher(store.put, threads), store, threads, topics)
    assert answers == ["id-first", *(f"id-{topic}" for topic in topics)]
    assert [len(batch) for batch in store.batches] == [1, 10]


def test_large_bodies_are_committed_apart(threads: ThreadPoolExecutor) -> None:
    store = SlowStore(held=True)
    topics = [f"t{n}" for n in range(10)]
    gather(Publisher(store.put, threads), store, threads, topics, bytes(BATCH_BYTES // 3))
    assert [len(batch) for batch in store.batches] == [1, 4, 4, 2]


def test_large_bodies_of_coroutines_are_committed_apart(threads: ThreadPoolExecutor) -> None:
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)
    body = bytes(BATCH_BYTES // 3)

    async def main() -> list[str]:
        drafts = [Draft(f"t{n}", body) for n in range(10)]
        answers = await asyncio.gather(*map(publisher.send, drafts))
        answers.append(await publisher.send(Draft("later", b"")))
        return [receipt.id for receipt in answers]

    assert asyncio.run(main()) == [*(f"id-t{n}" for n in range(10)), "id-later"]
    assert max(map(len, store.batches)) <= 8, "a group, and those that are queued before"
    assert not publisher._gathered


def test_one_bad_message_fails_only_its_caller(threads: ThreadPoolExecutor) -> None:
    """The caller of a message that the engine refuses gets the error, the others their receipts."""
    store = SlowStore(held=True)
    answers = gather(Publisher(store.put, threads), store, threads, ["a", "bad", "b"])
    assert answers == ["id-first", "id-a", BadMessage, "id-b"]


def test_a_failed_commit_fails_all_its_callers(threads: ThreadPoolExecutor) -> None:
    """
    If the engine is away, each caller of the batch gets the error, and the next commit succeeds.
    """
    store = SlowStore(held=True)
    publisher = Publisher(store.put, threads)
    assert gather(publisher, store, threads, ["a", "away"]) == [
        "id-first",
        EngineUnavailable,
        EngineUnavailable,
    ]
    assert publisher.put([Draft("later", b"")])[0].id == "id-later"


def test_coroutines_of_one_iteration_share_a_commit(threads: ThreadPoolExecutor) -> None:
    """A hundred coroutines that publish at once become one batch."""
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)

    async def main() -> list[str]:
        answers = await asyncio.gather(*(publisher.send(Draft(f"t{n}", b"")) for n in range(100)))
        return [receipt.id for receipt in answers]

    assert asyncio.run(main()) == [f"id-t{n}" for n in range(100)]
    assert [len(batch) for batch in store.batches] == [100]


def test_coroutines_of_iterations_in_a_row_share_a_commit(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As requests that arrive one after the other; each iteration without one ends a batch."""
    monkeypatch.setattr(publisher_module, "MOST_GATHERING", 60.0)  # a machine may pause for 2 ms
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)

    async def publish(number: int, *, at: int) -> str:
        for _ in range(at):
            await asyncio.sleep(0)
        return (await publisher.send(Draft(f"t{number}", b""))).id

    async def main() -> list[str]:
        return await asyncio.gather(*(publish(n, at=n // 2) for n in range(20)))

    assert asyncio.run(main()) == [f"id-t{n}" for n in range(20)]
    assert [len(batch) for batch in store.batches] == [20]


def test_gathering_has_an_end(threads: ThreadPoolExecutor) -> None:
    """Coroutines that publish in each iteration do not hold up those before them."""
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)

    async def main() -> int:
        first = publisher.send(Draft("first", b""))
        others = []
        while not first.done():
            others.append(publisher.send(Draft("other", b"")))
            await asyncio.sleep(0)
        await asyncio.gather(*others)
        return len(others)

    count = asyncio.run(main())
    assert sum(map(len, store.batches)) == count + 1
    assert len(store.batches[0]) < MAX_MESSAGES


def test_a_cancelled_coroutine_does_not_disturb_the_others(threads: ThreadPoolExecutor) -> None:
    """Its message may be published; the others get their receipts."""
    store = SlowStore(held=False)
    publisher = Publisher(store.put, threads)

    async def main() -> None:
        cancelled = asyncio.ensure_future(publisher.send(Draft("a", b"")))
        other = asyncio.ensure_future(publisher.send(Draft("b", b"")))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await other).id == "id-b"
        assert (await publisher.send(Draft("c", b""))).id == "id-c"

    asyncio.run(main())
