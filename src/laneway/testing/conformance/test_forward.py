"""`forward`: a spool's batch is stored once, however often and however late it is repeated."""

from __future__ import annotations

import pytest

from laneway.engines.base import FORWARD_AT_ONCE
from laneway.errors import BadMessage
from laneway.message import Draft, Receipt
from laneway.testing.engine_driver import EngineDriver

DAY = 86_400


def forward(
    driver: EngineDriver, batch: str, *drafts: Draft, spool: str = "s"
) -> list[tuple[str, str]]:
    """Forward a batch; returns the ids and outcomes."""
    receipts: list[Receipt] = driver.engine.forward(
        drafts, spool=spool, batch=batch, now_us=driver.now
    )
    return [(receipt.id, receipt.outcome) for receipt in receipts]


def draft(message_id: str, topic: str = "a", body: bytes = b"1", **options: object) -> Draft:
    return Draft(topic, body, id=message_id, sticky=True, **options)  # type: ignore[arg-type]


def test_a_batch_is_forwarded(driver: EngineDriver) -> None:
    """It is put as always, with the messages' ids, to all topics."""
    drafts = [draft("x", "a", b"1"), draft("y", "b", b"2"), draft("z", "a", b"3", priority=5)]
    assert forward(driver, "1", *drafts) == [
        ("x", "accepted"),
        ("y", "accepted"),
        ("z", "accepted"),
    ]
    assert driver.run(topics=["a"]) == ["3", "1"]
    assert driver.run(topics=["b"]) == ["2"]


def test_a_repeat_after_the_ids_are_forgotten(driver: EngineDriver) -> None:
    """
    The messages have ended long ago, and their sticky ids are forgotten: the repeated batch is
    known nevertheless. A batch with another name is not.
    """
    drafts = [draft("x"), draft("y", "b")]
    forward(driver, "1", *drafts)
    assert sorted(driver.run()) == ["1", "1"]
    driver.tick_after(100 * DAY)
    assert driver.engine.lookup("a", ["x"], now_us=driver.now) == {"x": "unknown"}
    for _ in range(2):
        assert forward(driver, "1", *drafts) == [("x", "duplicate"), ("y", "duplicate")]
    assert driver.run() == []
    assert forward(driver, "2", *drafts) == [("x", "accepted"), ("y", "accepted")]


def test_each_spool_has_its_own_batch(driver: EngineDriver) -> None:
    """Another spool's batch with the same name is another batch."""
    forward(driver, "1", draft("x"))
    assert forward(driver, "1", draft("y"), spool="t") == [("y", "accepted")]
    driver.run()
    driver.later(2 * DAY)
    assert forward(driver, "1", draft("x")) == [("x", "duplicate")]


def test_known_ids_are_duplicates(driver: EngineDriver) -> None:
    """An id that another batch or a publish has used is a duplicate, as for put."""
    driver.put("a", "1", id="x")
    assert forward(driver, "1", draft("x"), draft("y"), draft("y")) == [
        ("x", "duplicate"),
        ("y", "accepted"),
        ("y", "duplicate"),
    ]
    assert forward(driver, "2", draft("y")) == [("y", "duplicate")]


def test_the_refused_part_is_tried_again(driver: EngineDriver) -> None:
    """In a repeat, messages that were refused before are put, and the others are known."""
    driver.policy("a", max_backlog=1)
    drafts = [draft("x"), draft("y"), draft("z", "b"), draft("y", "b")]
    assert forward(driver, "1", *drafts) == [
        ("x", "accepted"),
        ("y", "refused"),
        ("z", "accepted"),
        ("y", "accepted"),
    ]
    assert forward(driver, "1", *drafts)[1] == ("y", "refused")
    driver.run()
    driver.later(2 * DAY)
    assert forward(driver, "1", *drafts) == [
        ("x", "duplicate"),
        ("y", "accepted"),
        ("z", "duplicate"),
        ("y", "duplicate"),
    ]
    driver.run()
    driver.later(2 * DAY)
    assert [outcome for _, outcome in forward(driver, "1", *drafts)] == ["duplicate"] * 4


def test_order_stays_when_a_topic_is_full(driver: EngineDriver) -> None:
    """A smaller message that would fit does not overtake the refused one of its topic."""
    driver.policy("a", max_backlog="10B")
    drafts = [draft("x", body=b"1" * 8), draft("y", body=b"2" * 8), draft("z", body=b"3")]
    more = draft("w", "b")
    assert forward(driver, "1", *drafts, more) == [
        ("x", "accepted"),
        ("y", "refused"),
        ("z", "refused"),
        ("w", "accepted"),
    ]


def test_a_bad_message_fails_the_batch(driver: EngineDriver) -> None:
    """Nothing is stored, and nothing is remembered of the batch."""
    driver.policy("a", max_body=5)
    with pytest.raises(BadMessage):
        forward(driver, "1", draft("x"), draft("y", body=b"123456"))
    assert forward(driver, "1", draft("x")) == [("x", "accepted")]


def test_a_large_batch(driver: EngineDriver) -> None:
    """The largest batch is one step on each shard, also with keys and priorities."""
    drafts = [
        draft(f"m{n}", f"t.{n % 7}", key=f"k{n % 3}" if n % 2 else None, priority=n % 3)
        for n in range(FORWARD_AT_ONCE)
    ]
    assert {outcome for _, outcome in forward(driver, "1", *drafts)} == {"accepted"}
    assert {outcome for _, outcome in forward(driver, "1", *drafts)} == {"duplicate"}
    assert len(driver.run(1000)) == FORWARD_AT_ONCE


def test_an_old_spool_is_forgotten(driver: EngineDriver) -> None:
    """After 400 days without a batch its record may go, when other spools come."""
    forward(driver, "1", draft("x"))
    driver.run()
    driver.later(401 * DAY)
    for n in range(20):
        forward(driver, "1", draft(f"y{n}"), spool=f"t{n}")
    assert forward(driver, "1", draft("x")) == [("x", "accepted")]


@pytest.mark.parametrize("is_forwarded", [False, True], ids=["put", "forwarded"])
def test_messages_that_are_only_copied_fill_the_namespace(
    driver: EngineDriver, *, is_forwarded: bool
) -> None:
    """The copies of the messages before it in the same call count for its limits."""
    driver.open(max_backlog_bytes=150)
    fields = {"own_backlog": False, "subscription:s": {}}
    driver.engine.policy_set("code", "a", fields, now_us=driver.now)
    drafts = [draft("x", body=b"1" * 100), draft("y", body=b"2" * 100)]
    if is_forwarded:
        found = forward(driver, "1", *drafts)
    else:
        receipts = driver.engine.put(drafts, now_us=driver.now)
        found = [(receipt.id, receipt.outcome) for receipt in receipts]
    assert found == [("x", "accepted"), ("y", "refused")]
    assert driver.engine.overview(now_us=driver.now).bytes == 100
