"""`put_all`: batches in order, and the next one is encoded while the engine has one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from laneway.errors import BadMessage, EngineUnavailable
from laneway.message import Draft, Message, Receipt
from laneway.producing.bulk import BATCH, put_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def publish(messages: Iterable[Message], put: Callable[[list[Draft]], list[Receipt]]) -> list[str]:
    receipts = put_all(
        messages,
        put,
        lambda _: False,
        lambda *_: None,
        timeout=None,
        progress=False,
        overlaps=True,
    )
    return [receipt.topic for receipt in receipts]


def accepted(drafts: list[Draft]) -> list[Receipt]:
    return [Receipt(f"id-{draft.topic}", draft.topic) for draft in drafts]


def messages(count: int, then: object = None) -> Iterator[Message]:
    yield from (Message(f"t{n}") for n in range(count))
    if then is not None:
        yield then  # type: ignore[misc]


def test_the_next_batch_is_read_while_the_engine_has_one() -> None:
    """The first batch is answered only after the second was read; the order stays."""
    is_read = threading.Event()
    batches: list[int] = []

    def put(drafts: list[Draft]) -> list[Receipt]:
        assert batches or is_read.wait(60)
        batches.append(len(drafts))
        return accepted(drafts)

    def read() -> Iterator[Message]:
        yield from messages(2 * BATCH - 1)
        is_read.set()
        yield from (Message("second to last"), Message("last"))

    assert publish(read(), put) == [
        *(f"t{n}" for n in range(2 * BATCH - 1)),
        "second to last",
        "last",
    ]
    assert batches == [BATCH, BATCH, 1]


def test_a_bad_message_is_reported_after_the_batch_before_it() -> None:
    """Its error says how many were answered; the batch that the engine had is one of them."""
    batches: list[int] = []

    def put(drafts: list[Draft]) -> list[Receipt]:
        batches.append(len(drafts))
        return accepted(drafts)

    with pytest.raises(BadMessage) as caught:
        publish(messages(BATCH + 1, then="no message"), put)
    assert batches == [BATCH]
    assert caught.value.__notes__ == [
        f"publish_many: the first {BATCH:,} messages were already answered"
    ]


@pytest.mark.parametrize("then", [None, "no message"])
def test_nothing_is_put_after_a_batch_that_failed(then: object) -> None:
    """The error of a batch is raised, not that of a message behind it."""
    batches: list[int] = []

    def put(drafts: list[Draft]) -> list[Receipt]:
        batches.append(len(drafts))
        if len(batches) == 2:
            raise EngineUnavailable("gone")
        return accepted(drafts)

    with pytest.raises(EngineUnavailable) as caught:
        publish(messages(2 * BATCH + 1, then=then), put)
    assert batches == [BATCH, BATCH]
    assert caught.value.__notes__ == [
        f"publish_many: the first {BATCH:,} messages were already answered"
    ]
