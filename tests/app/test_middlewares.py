"""
Middlewares around publishing: what passes them, in which order, and what they may change or refuse.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from laneway import BacklogFull, BadMessage, Laneway, Message, Receipt, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as opened:
        yield opened


def noting(app: Laneway, name: str, seen: list[Any]) -> None:
    """A middleware that writes down what passes it, and leaves its name in the headers."""

    @app.around_publish
    def middleware(message: Message) -> Generator[Message, Receipt, None]:
        seen.append((name, message.body))
        headers = {**(message.headers or {}), name: "was here"}
        try:
            receipt = yield msgspec.structs.replace(message, headers=headers)
        except BaseException as error:
            seen.append((name, type(error)))
            raise
        seen.append((name, receipt.outcome))


def by_publish(app: Laneway) -> None:
    app.publish("t", 1)


def by_topic(app: Laneway) -> None:
    app.topic("t").publish(1)


def by_coroutine(app: Laneway) -> None:
    asyncio.run(app.topic("t").apublish(1))


def by_publish_many(app: Laneway) -> None:
    app.publish_many([Message("t", 1)])


def by_apublish_many(app: Laneway) -> None:
    asyncio.run(app.apublish_many([Message("t", 1)]))


@pytest.mark.parametrize(
    "publish", [by_publish, by_topic, by_coroutine, by_publish_many, by_apublish_many]
)
def test_every_way_of_publishing_passes_them(
    app: Laneway, publish: Callable[[Laneway], None]
) -> None:
    """
    The first that was registered is the outermost; each may change the message and gets the
    receipt.
    """
    seen: list[Any] = []
    noting(app, "outer", seen)
    noting(app, "inner", seen)
    publish(app)
    assert seen == [("outer", 1), ("inner", 1), ("inner", "accepted"), ("outer", "accepted")]
    assert app.lease(1)[0].message.headers == {"outer": "was here", "inner": "was here"}


def test_tasks_pass_them_too(app: Laneway) -> None:
    """A call that is published is a message like any other."""
    seen: list[Any] = []
    noting(app, "m", seen)

    @app.task
    def work(n: int) -> None: ...

    work.delay(3)
    assert [name for name, _ in seen] == ["m", "m"]
    assert app.run_worker(burst=True).acked == 1


@pytest.mark.parametrize("publish", [by_publish, by_coroutine, by_publish_many])
def test_one_may_refuse(app: Laneway, publish: Callable[[Laneway], None]) -> None:
    """
    What a middleware raises before its yield is the caller's error; nothing is published, and those
    outside learn it.
    """
    seen: list[Any] = []
    noting(app, "outer", seen)

    @app.around_publish
    def refuse(message: Message) -> Generator[Message, Receipt, None]:
        if message.body == 1:
            raise PermissionError("not on Sundays")
        yield message

    with pytest.raises(PermissionError, match="Sundays"):
        publish(app)
    assert seen[-1] == ("outer", PermissionError)
    assert app.topic("t").stats().waiting == 0


def test_what_publishing_raises_is_raised_at_the_yield(app: Laneway) -> None:
    """A middleware may say it in other words, and cannot hide it."""
    app.policy("full", max_backlog=1)

    @app.around_publish
    def hide(message: Message) -> Generator[Message, Receipt, None]:
        try:
            yield message
        except BadMessage:
            return  # hides it

    @app.around_publish
    def translate(message: Message) -> Generator[Message, Receipt, None]:
        try:
            yield message
        except BacklogFull as error:
            raise TimeoutError("come back later") from error

    app.publish("full")
    with pytest.raises(TimeoutError, match="later"):
        app.publish("full")
    with pytest.raises(BadMessage):
        app.publish("t", object())


def test_many_in_batches(app: Laneway) -> None:
    """
    Each message of a stream gets its own receipt, also those that are refused, or that wait for
    room.
    """
    app.policy("full", max_backlog=1)
    app.policy("waits", max_backlog=1, on_full="block")
    seen: list[tuple[Any, str]] = []

    @app.around_publish
    def note(message: Message) -> Generator[Message, Receipt, None]:
        receipt = yield message
        seen.append((message.body, receipt.outcome))

    app.publish_many(
        [*(Message("t", n) for n in range(2500)), Message("full", "a"), Message("full", "b")]
    )
    assert seen == [*((n, "accepted") for n in range(2500)), ("a", "accepted"), ("b", "refused")]
    seen.clear()
    app.publish_many(
        [Message("waits", "a"), Message("waits", "b"), Message("t", "c")], timeout=0.05
    )
    assert sorted(seen) == [("a", "accepted"), ("b", "refused"), ("c", "accepted")]


def test_error_in_a_stream_reaches_unpublished_messages(app: Laneway) -> None:
    """Those of the batch that failed learn the error, those before it have their receipts."""
    seen: list[Any] = []
    noting(app, "m", seen)
    with pytest.raises(BadMessage, match="item 1002"):
        app.publish_many([*(Message("t", n) for n in range(1002)), "no message"])  # type: ignore[list-item]
    outcomes = [what for _, what in seen if not isinstance(what, int)]
    assert outcomes == ["accepted"] * 1000 + [BadMessage] * 2


def test_what_is_no_middleware(app: Laneway) -> None:
    """A function that does not yield, or yields something else, or twice, is told by its name."""
    with pytest.raises(UsageError, match="around_publish: expected a function that yields once"):
        app.around_publish(lambda message: message)
    with pytest.raises(UsageError, match="around_handling: expected a function that yields once"):
        app.around_handling(print)  # type: ignore[type-var]

    @app.around_publish
    def wrong(message: Message) -> Generator[Any, Receipt, None]:
        yield message if message.body else None
        if message.body == "twice":
            yield message

    with pytest.raises(UsageError, match=r"wrong: .*yielded None"):
        app.publish("t")
    with pytest.raises(UsageError, match=r"wrong: .*once"):
        app.publish("t", "twice")
