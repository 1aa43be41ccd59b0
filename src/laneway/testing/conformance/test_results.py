"""Results, progress, cancelling, and messages that wait for signals."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast

import msgspec
import pytest

from laneway.engines.base import (
    ABORT,
    CHANGED,
    ENDED,
    FLOW_HEADER,
    RESULT_TTL_HEADER,
    SIGNALS_HEADER,
    TASK_HEADER,
    ResultListener,
    result_name,
)
from laneway.errors import BadMessage, UsageError
from laneway.message import Action, Draft, Lease, ProgressReport, Settlement, StoredResult
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

RESULT_TTL = {RESULT_TTL_HEADER: "600,86400"}

HOUR = 3600 * SECOND

SOON = 60.0
"""Seconds within which a notification arrives; a busy machine may take long."""


def reports(listener: ResultListener) -> list[str]:
    """The next reports; a poll may end without any."""
    deadline = time.monotonic() + SOON
    while not (found := listener.poll(1.0)):
        assert time.monotonic() < deadline
    return found


def await_subscriptions(listener: ResultListener, *names: str) -> None:
    """Wait until they are reported to be active."""
    missing = set(names)
    while missing:
        missing -= set(reports(listener))


def kept(driver: EngineDriver, message_id: str, topic: str | None = "a") -> StoredResult:
    return driver.engine.results([(message_id, topic)], now_us=driver.now)[0]


def an_end(lease: Lease, outcome: bytes) -> Settlement:
    return Settlement(
        lease.handle,
        lease.fence,
        id=lease.id,
        topic=lease.topic,
        outcome=outcome,
        outcome_ttl_us=HOUR,
    )


def waits_for(count: int) -> dict[str, str]:
    return {**RESULT_TTL, SIGNALS_HEADER: str(count)}


def signals(driver: EngineDriver, *numbers: int, to: str = "x") -> list[str]:
    drafts = [Draft("a", f"s{number}".encode(), id=to, signal=number) for number in numbers]
    return [receipt.outcome for receipt in driver.engine.put(drafts, now_us=driver.now)]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("runs out", "delivered at most once, and its worker reported no result"),
        ("retry", "retries used up (1 attempt): boom"),
        ("dead", "the handler refused it"),
        ("release", "delivered at most once, and its worker reported no result"),
        ("back_off", "delivered at most once, and its worker reported no result"),
        ("unhandled", "delivered at most once, and its worker reported no result"),
        ("delete", None),
    ],
)
@pytest.mark.parametrize("serial", [None, "hold"])
def test_at_most_once_without_a_result(
    driver: EngineDriver, end: str, reason: str | None, serial: str | None
) -> None:
    """
    A message that is delivered at most once and not acked ends with an outcome: nobody waits for
    its result, or in its flow, forever.
    """
    driver.policy("a", delivery="at_most_once", serial=serial)
    driver.put("a", "1", id="x", key="k", headers={**RESULT_TTL, FLOW_HEADER: "1"})
    driver.engine.on_end("x", "a", b'"next"')
    (lease,) = driver.lease()
    assert kept(driver, "x").outcome is None
    if end == "runs out":
        driver.tick_after(60)
    elif end == "delete":
        driver.engine.topic_delete("a", now_us=driver.now)
    else:
        driver.settle([lease], cast("Action", end), error="boom" if end == "retry" else None)
    outcome = msgspec.json.decode(kept(driver, "x").outcome or b"{}")
    assert outcome.pop("status") == ("cancelled" if end == "delete" else "dead")
    assert outcome.pop("published_us")
    assert outcome == {"topic": "a"} | ({} if reason is None else {"reason": reason})
    notices = [msgspec.json.decode(body) for _ in range(2) for body in driver.run(after=2)]
    assert [notice["followers"] for notice in notices if "followers" in notice] == [["next"]]
    assert [notice["body"] for notice in notices if "body" in notice] == [1]
    assert [check for check in driver.engine.doctor() if not check.ok] == []


def test_at_most_once_with_a_result(driver: EngineDriver) -> None:
    """An outcome that its handler reports is the only one, and follows no death."""
    driver.policy("a", delivery="at_most_once")
    driver.put("a", "1", "2", headers={**RESULT_TTL, FLOW_HEADER: "1"})
    first, second = driver.lease()
    ends = [an_end(first, b"1"), an_end(second, b"2")]
    ends[1].action = "dead"
    assert driver.engine.settle(ends, now_us=driver.now) == ["acked", "died"]
    driver.tick_after(60)
    assert [kept(driver, lease.id).outcome for lease in (first, second)] == [b"1", b"2"]


def test_outcome_is_stored_with_the_settle(driver: EngineDriver) -> None:
    """A settle stores the outcome if it ends the message; not for a lost lease or a retry."""
    driver.put("a", "1", "2", "3", "4")
    leases = driver.lease()
    actions: list[Action] = ["ack", "ack", "dead", "retry"]
    ends = [
        Settlement(
            lease.handle,
            fence,
            action,
            id=lease.id,
            topic=lease.topic,
            outcome=action.encode(),
            outcome_ttl_us=HOUR,
        )
        for lease, fence, action in zip(
            leases,
            [0, *(lease.fence for lease in leases[1:])],
            actions,
            strict=True,
        )
    ]
    assert driver.engine.settle(ends, now_us=driver.now) == ["lost", "acked", "died", "retried"]
    results = driver.engine.results([(lease.id, "a") for lease in leases], now_us=driver.now)
    assert [each.outcome for each in results] == [None, b"ack", b"dead", None]
    assert kept(driver, leases[1].id, None).outcome == b"ack", "the id was generated"
    driver.engine.delete_result(leases[1].id, "a")
    assert kept(driver, leases[1].id).outcome is None


def test_progress_needs_the_lease(driver: EngineDriver) -> None:
    """Progress is stored while the lease is held, or without naming a lease."""
    (receipt,) = driver.put("a", "1")
    (lease,) = driver.lease()
    note = ProgressReport(receipt.id, "a", b"half", HOUR, lease.handle, lease.fence)
    assert driver.engine.report_progress(
        [note, ProgressReport(receipt.id, "a", b"wrong", HOUR, lease.handle, lease.fence + 1)],
        now_us=driver.now,
    ) == [True, False]
    assert kept(driver, receipt.id) == StoredResult(None, b"half")
    driver.settle([lease])
    assert driver.engine.report_progress([note], now_us=driver.now) == [False]
    assert driver.engine.report_progress(
        [ProgressReport(receipt.id, "a", b"after", HOUR)], now_us=driver.now
    ) == [True]
    assert kept(driver, receipt.id).progress == b"after"


def test_progress_in_place_of_other(driver: EngineDriver) -> None:
    """With `before` it is stored only if that is stored, which a report before it may have done."""

    def report(body: bytes, before: bytes | None) -> ProgressReport:
        return ProgressReport("x", "a", body, HOUR, before=before)

    reports = [
        report(b"1", b"0"),
        report(b"1", None),
        report(b"2", None),
        report(b"", b"1"),
        report(b"3", b""),
    ]
    answers = driver.engine.report_progress(reports, now_us=driver.now)
    assert answers == [False, True, False, True, True]
    assert kept(driver, "x").progress == b"3"
    assert driver.engine.report_progress([report(b"", b"3")], now_us=driver.now) == [True]
    assert kept(driver, "x").progress == b""


@pytest.mark.parametrize("on_expiry", ["drop", "dead"])
def test_outcomes_of_other_ends(driver: EngineDriver, on_expiry: str) -> None:
    """Expiry, purge and death are stored as outcomes of messages whose results are kept."""
    driver.policy("a", on_expiry=on_expiry, retries=0)
    driver.put("a", "1", id="expired", ttl_us=SECOND, headers=RESULT_TTL)
    driver.put("a", "2", id="not kept", ttl_us=SECOND)
    driver.tick_after(2)
    driver.put("a", "3", id="purged", headers=RESULT_TTL)
    driver.engine.topic_purge("a", now_us=driver.now)
    driver.put("a", "4", id="dead", headers=RESULT_TTL)
    driver.settle(driver.lease(), "retry")
    ends = {
        name: kept(driver, name).outcome or b""
        for name in ("expired", "not kept", "purged", "dead")
    }
    assert b'"expired"' in ends["expired"]
    assert ends["not kept"] == b""
    cancelled = msgspec.json.decode(ends["purged"])
    assert (cancelled["status"], cancelled["topic"]) == ("cancelled", "a")
    assert cancelled["published_us"] == driver.now
    assert b'"dead"' in ends["dead"]
    assert b"retries used up" in ends["dead"]
    driver.engine.dead_redrive("a", ["dead"], now_us=driver.now)
    assert kept(driver, "dead").outcome is None, "the outcome is deleted: it waits again"


def test_cancel_waiting(driver: EngineDriver) -> None:
    """A ready, delayed or parked message is cancelled once."""
    driver.policy("a", serial="hold")
    driver.put("a", "1", id="ready", key="k", headers=RESULT_TTL)
    driver.put("a", "2", id="parked", key="k", headers=RESULT_TTL)
    driver.put("a", "3", id="delayed", delay_us=HOUR, headers=RESULT_TTL)
    driver.put("a", "4", id="last", key="k")
    for name in ("parked", "delayed", "ready"):
        assert driver.engine.cancel(name, "a", now_us=driver.now) == "cancelled"
        assert driver.engine.cancel(name, "a", now_us=driver.now) == "unknown"
        outcome = kept(driver, name).outcome
        assert outcome is not None
        assert msgspec.json.decode(outcome) == {
            "status": "cancelled",
            "topic": "a",
            "published_us": driver.now,
        }
    assert driver.run() == ["4"], "the next message of the key is ready"


def test_cancel_leased(driver: EngineDriver) -> None:
    """Cancelling a leased message ends its lease, frees its slot and notifies listeners."""
    driver.policy("a", concurrency=1)
    driver.put("a", "1", "2", id=None, headers=RESULT_TTL)
    (lease,) = driver.lease()
    listener = driver.engine.result_listener()
    listener.subscribe(ABORT)
    await_subscriptions(listener, ABORT)
    assert driver.engine.cancel(lease.id, "a", now_us=driver.now) == "aborted"
    notified: list[str] = []
    while ABORT + result_name(lease.id, "a") not in notified:
        notified += reports(listener)
    listener.close()
    assert driver.engine.extend([(lease.handle, lease.fence)], HOUR, now_us=driver.now) == [False]
    assert driver.settle([lease]) == ["lost"]
    assert driver.run() == ["2"]
    driver.put("a", "3", id="x")
    driver.settle(driver.lease(), "dead")
    assert driver.engine.cancel("x", "a", now_us=driver.now) == "dead", "a dead letter stays"


def test_result_listener(driver: EngineDriver) -> None:
    """A listener is notified when its subscription is active, and of each end."""
    listener = driver.engine.result_listener()
    driver.put("a", "1", id="x", headers=RESULT_TTL)
    driver.put("a", "2", id="y", headers=RESULT_TTL)
    driver.put("b", "3", id="x", headers=RESULT_TTL)
    name = result_name("x", "a")
    listener.subscribe(name)
    assert reports(listener) == [name]
    ends = [an_end(lease, b"so") for lease in driver.lease()]
    settling = threading.Timer(0.05, driver.engine.settle, [ends], {"now_us": driver.now})
    settling.start()
    assert reports(listener) == [name], "only of the subscribed message"
    settling.join()
    assert kept(driver, "y").outcome == b"so"
    listener.unsubscribe(name)
    listener.wake()
    assert not [each for each in listener.poll(0.05) or [] if each != name]
    listener.close()


def test_messages_of_two_topics_with_the_same_id(driver: EngineDriver) -> None:
    """Each has its own outcome and progress, and deleting one's leaves the other's."""
    for topic in ("a", "b"):
        driver.put(topic, "1", id="x", headers=RESULT_TTL)
    leases = {lease.topic: lease for lease in driver.lease()}
    notes = [
        ProgressReport("x", topic, topic.encode(), HOUR, lease.handle, lease.fence)
        for topic, lease in leases.items()
    ]
    assert driver.engine.report_progress(notes, now_us=driver.now) == [True, True]
    swap = ProgressReport("x", "b", b"more", HOUR, before=b"a")
    assert driver.engine.report_progress([swap], now_us=driver.now) == [False]
    driver.engine.settle([an_end(leases["a"], b"of a")], now_us=driver.now)
    assert kept(driver, "x", "a") == StoredResult(b"of a", b"a")
    assert kept(driver, "x", "b") == StoredResult(None, b"b")
    driver.engine.settle([an_end(leases["b"], b"of b")], now_us=driver.now)
    assert kept(driver, "x", None) == StoredResult(), "an id that was chosen needs its topic"
    driver.engine.delete_result("x")
    driver.engine.delete_result("x", "a")
    assert kept(driver, "x", "a") == StoredResult()
    assert kept(driver, "x", "b") == StoredResult(b"of b", b"b")


def test_generated_id_that_another_topic_uses(driver: EngineDriver) -> None:
    """A message that was published with another one's generated id has its own outcome."""
    (receipt,) = driver.put("a", "1", headers=RESULT_TTL)
    driver.put("b", "2", id=receipt.id, headers=RESULT_TTL)
    first, second = sorted(driver.lease(), key=lambda lease: lease.topic)
    driver.engine.settle([an_end(second, b"of b")], now_us=driver.now)
    assert kept(driver, receipt.id, None).outcome is None
    assert kept(driver, receipt.id, "a").outcome is None
    driver.engine.settle([an_end(first, b"of a")], now_us=driver.now)
    assert kept(driver, receipt.id, None).outcome == b"of a"
    assert kept(driver, receipt.id, "a").outcome == b"of a"
    assert kept(driver, receipt.id, "b").outcome == b"of b"


def test_redrive_with_the_id_of_another_topic(driver: EngineDriver) -> None:
    """A dead letter that waits again loses its own outcome only."""
    for topic in ("a", "b"):
        driver.policy(topic, retries=0)
        driver.put(topic, "1", id="x", headers=RESULT_TTL)
    driver.settle(driver.lease(), "retry")
    driver.engine.dead_redrive("a", ["x"], now_us=driver.now)
    assert kept(driver, "x", "a").outcome is None
    assert b'"dead"' in (kept(driver, "x", "b").outcome or b"")


def test_followers_of_messages_with_the_same_id(driver: EngineDriver) -> None:
    """A follower is notified of the end of its own message."""
    for topic in ("a", "b"):
        driver.put(topic, "1", id="x", headers=RESULT_TTL)
        assert driver.engine.on_end("x", topic, b'["%s"]' % topic.encode()) is None
    leases = {lease.topic: lease for lease in driver.lease()}
    driver.engine.settle([an_end(leases["b"], b"2")], now_us=driver.now)
    (notice,) = driver.lease()
    assert (notice.topic, notice.body) == ("b", b'{"id":"x","outcome":2,"followers":[["b"]]}')
    assert driver.engine.on_end("x", "a", b"[]") is None
    assert driver.engine.on_end("x", "b", b"[]") == b"2"


def test_signals(driver: EngineDriver) -> None:
    """
    A message waits for its signals. Each counts once, adds its body, and the last starts the
    ttl.
    """
    driver.policy("a", ttl=5)
    driver.put("a", "own", id="x", headers=waits_for(3), delay_us=HOUR)
    assert driver.lease(after=100) == []
    assert signals(driver, 2, 2, 3) == ["accepted", "duplicate", "accepted"]
    assert driver.lease() == []
    assert driver.engine.find("x", "a").state == "delayed"  # type: ignore[union-attr]
    assert signals(driver, 1, 1) == ["accepted", "duplicate"]
    (lease,) = driver.lease()
    assert lease.bodies == [b"own", b"s2", b"s3", b"s1"]
    driver.settle([lease])
    assert signals(driver, 4) == ["duplicate"], "it no longer waits for signals"


def test_signal_0(driver: EngineDriver) -> None:
    """Signal 0 ends the wait at once."""
    driver.put("a", "own", id="x", headers=waits_for(10))
    assert signals(driver, 5, 0, 6) == ["accepted", "accepted", "duplicate"]
    assert driver.lease()[0].bodies == [b"own", b"s5", b"s0"]


def test_delay_and_ttl_of_the_last_signal(driver: EngineDriver) -> None:
    """The last signal may set the message's delay and ttl, counted from its publish."""
    driver.policy("a", ttl=50)
    for name in ("later", "at", "expired", "plain"):
        driver.put("a", name, id=name, headers={SIGNALS_HEADER: "1"})
    driver.later(10)
    now = driver.now
    driver.engine.put(
        [
            Draft("a", b"s", id="later", signal=1, delay_us=5 * SECOND, ttl_us=30 * SECOND),
            Draft("a", b"s", id="at", signal=1, at_us=now + 6 * SECOND, ttl_us=15 * SECOND),
            Draft("a", b"s", id="expired", signal=1, ttl_us=9 * SECOND),
            Draft("a", b"s", id="plain", signal=1),
        ],
        now_us=now,
    )
    assert driver.run() == ["plain"]
    assert driver.run(after=5.5) == ["later"]
    assert driver.run(after=5) == []
    assert {view.id for _, view in driver.engine.dead_list(limit=9)} == {"at", "expired"}


def test_signals_with_a_settle(driver: EngineDriver) -> None:
    """An ack or a reject publishes signals, also over a full backlog; a lost lease does not."""
    driver.policy("a", max_backlog=1)
    driver.put("a", "own", id="x", headers=waits_for(2))
    driver.put("b", "1", "2", "3")
    leases = driver.lease()
    actions: list[Action] = ["ack", "dead", "retry"]
    ends = [
        Settlement(lease.handle, lease.fence, action)
        for lease, action in zip(leases, actions, strict=True)
    ]
    drafts = {n: [Draft("a", b"%d" % n, id="x", signal=n + 1)] for n in range(3)}
    assert driver.engine.settle(
        [Settlement(leases[0].handle, 0)], publish={0: drafts[2]}, now_us=driver.now
    ) == ["lost"]
    assert driver.engine.settle(ends, publish=drafts, now_us=driver.now) == [
        "acked",
        "died",
        "retried",
    ]
    (lease,) = driver.lease(topics=["a"])
    assert lease.bodies == [b"own", b"0", b"1"]


def test_cancel_while_waiting_for_signals(driver: EngineDriver) -> None:
    """A cancelled or purged message leaves no signals behind."""
    for go in (
        lambda: driver.engine.cancel("x", "a", now_us=driver.now),
        lambda: driver.engine.topic_purge("a", now_us=driver.now),
    ):
        driver.put("a", "own", id="x", headers=waits_for(2))
        signals(driver, 1)
        go()
        assert signals(driver, 2) == ["duplicate"]
    driver.put("a", "own", id="x", headers=waits_for(2))
    assert signals(driver, 1) == ["accepted"]
    assert driver.lease() == []


def test_on_end(driver: EngineDriver) -> None:
    """
    `on_end` publishes an end notice with all followers, or returns the outcome of an ended one.
    """
    driver.policy("a", max_backlog=1, merge="first", ttl=5)
    driver.put("a", "1", id="x", headers=RESULT_TTL)
    assert driver.engine.on_end("x", "a", b'["one"]') is None
    assert driver.engine.on_end("x", "a", b'["two"]') is None
    (lease,) = driver.lease()
    driver.put("a", "fills it")
    driver.engine.settle([an_end(lease, b'{"status":"success"}')], now_us=driver.now)
    assert driver.engine.on_end("x", "a", b'["three"]') == b'{"status":"success"}'
    (notice,) = driver.lease(after=10)
    assert notice.headers == {TASK_HEADER: ENDED}
    assert msgspec.json.decode(notice.body) == {
        "id": "x",
        "outcome": {"status": "success"},
        "followers": [["one"], ["two"]],
    }
    driver.settle([notice])
    assert driver.lease() == [], "once"


def test_on_end_of_an_id_that_joined_another_message(driver: EngineDriver) -> None:
    """The followers of each id follow the one message."""
    driver.policy("a", merge="last")
    for name in ("x", "y"):
        driver.put("a", name, id=name, key="k", headers=RESULT_TTL)
        assert driver.engine.on_end(name, "a", b'["%s"]' % name.encode()) is None
    (lease,) = driver.lease()
    driver.engine.settle([an_end(lease, b'{"status":"success"}')], now_us=driver.now)
    (notice,) = driver.lease()
    assert msgspec.json.decode(notice.body)["followers"] == [["x"], ["y"]]


@pytest.mark.parametrize("buckets", [None, 4])
def test_end_notices_are_not_dropped(driver: EngineDriver, buckets: int | None) -> None:
    """Who waits for the end would wait forever."""
    driver.policy("a.*", buckets=buckets, max_backlog=2, on_full="drop_oldest")
    driver.put("a.a", "1", id="x", headers=RESULT_TTL)
    assert driver.engine.on_end("x", "a.a", b'["one"]') is None
    (lease,) = driver.lease()
    driver.engine.settle([an_end(lease, b"1")], now_us=driver.now)
    for n in "1234":
        driver.later(1)
        driver.put("a.a", n)
    assert driver.waiting("a.a") == 2
    notice, last = driver.lease()
    assert msgspec.json.decode(notice.body)["followers"] == [["one"]]
    assert last.body == b"4"


def test_end_notices_of_a_deleted_topic(driver: EngineDriver) -> None:
    """
    The topic's leases have ended, so its concurrency holds back neither the notice nor what comes.
    """
    driver.policy("a", concurrency=1)
    driver.put("a", "1")
    assert driver.bodies() == ["1"]
    driver.put("a", "2", id="x", headers=RESULT_TTL)
    assert driver.engine.on_end("x", "a", b'["one"]') is None
    assert driver.engine.topic_delete("a", now_us=driver.now) == 2
    (notice,) = driver.lease()
    assert msgspec.json.decode(notice.body)["followers"] == [["one"]]
    driver.settle([notice])
    driver.put("a", "3")
    assert driver.bodies() == ["3"]


@pytest.mark.parametrize("how", ["purged", "cancelled", "expired", "dead", "deleted"])
def test_end_notice_of_a_flow(driver: EngineDriver, how: str) -> None:
    """A flow's message that ends without a handler publishes an end notice with its body."""
    driver.policy("a", retries=0)
    driver.put("a", '{"n":1}', id="x", headers={**RESULT_TTL, FLOW_HEADER: "1"}, ttl_us=HOUR)
    status = "cancelled"
    if how == "purged":
        driver.engine.topic_purge("a", now_us=driver.now)
    elif how == "cancelled":
        driver.engine.cancel("x", "a", now_us=driver.now)
    elif how == "expired":
        status = "expired"
        driver.later(3601)
    elif how == "dead":
        status = "dead"
        driver.settle(driver.lease(), "retry")
    else:
        driver.lease()
        driver.engine.topic_delete("a", now_us=driver.now)
    driver.engine.tick(now_us=driver.now)
    (lease,) = driver.lease()
    notice = msgspec.json.decode(lease.body)
    assert (notice["id"], notice["outcome"]["status"], notice["body"]) == ("x", status, {"n": 1})


@pytest.mark.parametrize("policy", [{}, {"partitions": 2}, {"buckets": 2}], ids=str)
@pytest.mark.parametrize("how", ["purge", "delete", "delete leased"])
def test_end_notices_are_not_removed(
    driver: EngineDriver, policy: dict[str, Any], how: str
) -> None:
    """
    Who follows messages is told of their ends, although the topic is purged again before that, or
    deleted: somebody may repeat a purge whose answer was lost.
    """
    driver.policy("a.*" if "buckets" in policy else "a.b", **policy)
    drafts = [Draft("a.b", b"%d" % n, id=f"x{n}", headers=RESULT_TTL) for n in range(3)]
    driver.engine.put(drafts, now_us=driver.now)
    for n in range(3):
        driver.engine.on_end(f"x{n}", "a.b", b"%d" % n)
    assert driver.engine.topic_purge("a.b", now_us=driver.now) == 3
    driver.put("a.b", "more")
    leases = driver.lease(2) if how == "delete leased" else []
    if how == "purge":
        assert driver.engine.topic_purge("a.b", now_us=driver.now) == 1
    else:
        assert driver.engine.topic_delete("a.b", now_us=driver.now) == 1
    answers = ["gone" if lease.body == b"more" else "lost" for lease in leases]
    assert driver.settle(leases) == answers
    notices = [msgspec.json.decode(body) for body in driver.run(10)]
    assert sorted(follower for notice in notices for follower in notice["followers"]) == [0, 1, 2]
    assert driver.waiting("a.b") == 0


def test_purge_behind_many_end_notices(driver: EngineDriver) -> None:
    """A purge reaches the messages behind more end notices than a page has messages."""
    drafts = [Draft("a", b"x" * 20_000, id=f"x{n}", headers=RESULT_TTL) for n in range(300)]
    driver.engine.put(drafts, now_us=driver.now)
    for n in range(300):
        driver.engine.on_end(f"x{n}", "a", b"1")
    assert driver.engine.topic_purge("a", now_us=driver.now) == 300
    driver.engine.put([Draft("a", b"x" * 1_000_000) for _ in range(24)], now_us=driver.now)
    assert driver.engine.topic_purge("a", now_us=driver.now) == 24
    assert driver.waiting("a") == 300


def test_on_end_of_an_unknown_message(driver: EngineDriver) -> None:
    """`on_end` of an unknown message, or of one without results, is an error."""
    driver.put("a", "1", id="x")
    for name in ("x", "nobody"):
        with pytest.raises(
            UsageError, match=f"job {name}: it is unknown, or its result is not stored"
        ):
            driver.engine.on_end(name, "a", b"[]")


def test_publish_with_ack_wakes_workers(driver: EngineDriver) -> None:
    """A message published with an ack wakes a waiting worker."""
    driver.put("a", "1")
    leases = driver.lease()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(driver.engine.wait, SOON)
        while not waiting.running():
            pass
        ends = [Settlement(lease.handle, lease.fence) for lease in leases]
        settling = threading.Timer(
            0.1,
            driver.engine.settle,
            [ends],
            {"publish": {0: [Draft("b", b"2")]}, "now_us": driver.now},
        )
        settling.start()
        assert waiting.result(SOON)
        settling.join()


@pytest.mark.parametrize(
    "fields", [{}, {"partitions": 4}, {"buckets": 2}, {"serial": "hold"}], ids=str
)
@pytest.mark.parametrize("action", ["ack", "dead", "purge", "delete"])
def test_watch_topic(
    driver: EngineDriver, fields: dict[str, Any], action: Literal["ack", "dead", "purge", "delete"]
) -> None:
    """Each settle or removal of a watched topic is notified; an idle topic has nothing to watch."""
    driver.policy("t.*", **fields)
    assert driver.engine.watch_topic("t.a", 60, now_us=driver.now) == []
    driver.put("t.a", "1", key="k")
    listener = driver.engine.result_listener()
    names = driver.engine.watch_topic("t.a", 60, now_us=driver.now)
    assert len(names) == 1
    assert names[0].startswith(CHANGED)
    listener.subscribe(*names)
    await_subscriptions(listener, *names)
    if action == "purge":
        driver.engine.topic_purge("t.a", now_us=driver.now)
    elif action == "delete":
        driver.engine.topic_delete("t.a", now_us=driver.now)
    else:
        leases = driver.lease()
        while listener.poll(0.05):  # of the lease
            pass
        driver.settle(leases, action)
    notified = reports(listener)
    assert notified == names * len(notified)
    listener.close()


def test_watch_ends(driver: EngineDriver) -> None:
    """After the seconds of a watch, at most one change is notified."""
    driver.put("a", "1", "2", "3")
    (name,) = driver.engine.watch_topic("a", 5, now_us=driver.now)
    driver.run(1, after=6)
    listener = driver.engine.result_listener()
    listener.subscribe(name)
    await_subscriptions(listener, name)
    while listener.poll(0.2):
        pass
    driver.run(1)
    assert not listener.poll(0.2)
    listener.close()


INVALID_TTLS = (
    "9999999999999",
    "9" * 19,
    "9" * 30,
    "9" * 5000,
    "600,9999999999999",
    "-1",
    "nan",
    "",
    ",",
    "0",
    "1,2,3",
)


def test_invalid_result_ttl(driver: EngineDriver) -> None:
    """An invalid result ttl in a header does not disturb death, expiry, cancel or redrive."""
    for n, value in enumerate(INVALID_TTLS):
        headers = {RESULT_TTL_HEADER: value, FLOW_HEADER: "1"}
        drafts = [
            Draft("a", b"1", id=f"{name} {n}", headers=headers)
            for name in ("dead", "cancelled", "acked")
        ]
        driver.engine.put(
            [*drafts, Draft("a", b"1", id=f"late {n}", headers=headers, ttl_us=SECOND)],
            now_us=driver.now,
        )
        assert driver.engine.cancel(f"cancelled {n}", "a", now_us=driver.now) == "cancelled"
    leases = driver.lease(500, after=2)
    ends = [
        Settlement(
            lease.handle,
            lease.fence,
            "dead" if lease.id.startswith("dead") else "ack",
            reason="why",
        )
        for lease in leases
    ]
    assert set(driver.engine.settle(ends, now_us=driver.now)) == {"died", "acked"}
    dead = [f"dead {n}" for n in range(len(INVALID_TTLS))]
    assert driver.engine.dead_redrive("a", dead, now_us=driver.now) == len(dead)
    driver.engine.tick(now_us=driver.now)
    assert driver.engine.topic_stats("a", now_us=driver.now).leased == 0


def test_invalid_signal_counts_change_nothing(driver: EngineDriver) -> None:
    """The number must be from 1 to 100,000; another one refuses the whole batch."""
    for count in ("9" * 5000, "100001", "-1", "x", "", "0", "1.5", "\u00b2"):
        with pytest.raises(BadMessage, match=f"{SIGNALS_HEADER} to be a number from 1 to 100,000"):
            driver.engine.put(
                [Draft("a", b"1"), Draft("a", b"1", headers={SIGNALS_HEADER: count})],
                now_us=driver.now,
            )
    assert driver.engine.topic_stats("a", now_us=driver.now).waiting == 0
