"""What is kept under a message's id, cancelling, and messages that wait for signals."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from laneway.engines.base import ABORT, CHANGED, ENDED, FLOW_HEADER, KEEPS_HEADER, NEEDS_HEADER, TASK_HEADER
from laneway.errors import BadMessage, UsageError
from laneway.message import Draft, Kept, Note, Settlement
from laneway.testing.bench import EngineBench
from laneway.units import SECOND

KEEPS = {KEEPS_HEADER: "600,86400"}
HOUR = 3600 * SECOND
SOON = 10.0


def kept(bench: EngineBench, message_id: str, topic: str | None = "a") -> Kept:
    return bench.engine.kept([(message_id, topic)], now_us=bench.now)[0]


def waits_for(count: int) -> dict[str, str]:
    return {**KEEPS, NEEDS_HEADER: str(count)}


def signals(bench: EngineBench, *numbers: int, to: str = "x") -> list[str]:
    drafts = [Draft("a", f"s{number}".encode(), id=to, signal=number) for number in numbers]
    return [receipt.outcome for receipt in bench.engine.put(drafts, now_us=bench.now)]


def test_an_outcome_is_kept_with_the_end(bench: EngineBench) -> None:
    """In the same step as the ack or the death; not of a lease that is lost, nor of a message that comes again."""
    bench.put("a", "1", "2", "3", "4")
    leases = bench.lease()
    ends = [
        Settlement(lease.handle, fence, action, id=lease.id, outcome=action.encode(), keep_us=HOUR)
        for lease, fence, action in zip(leases, [0, *(lease.fence for lease in leases[1:])], ["ack", "ack", "dead", "retry"], strict=True)
    ]
    assert bench.engine.settle(ends, now_us=bench.now) == ["lost", "acked", "died", "retried"]
    told = bench.engine.kept([(lease.id, "a") for lease in leases], now_us=bench.now)
    assert [each.outcome for each in told] == [None, b"ack", b"dead", None]
    assert kept(bench, leases[1].id, None).outcome == b"ack", "found without its topic too"
    bench.engine.forget_kept(leases[1].id, "a")
    assert kept(bench, leases[1].id).outcome is None


def test_a_note_needs_the_lease(bench: EngineBench) -> None:
    """Whoever lost it says nothing any more; from outside one may note without any."""
    (receipt,) = bench.put("a", "1")
    (lease,) = bench.lease()
    note = Note(receipt.id, "a", b"half", HOUR, lease.handle, lease.fence)
    assert bench.engine.note([note, Note(receipt.id, "a", b"wrong", HOUR, lease.handle, lease.fence + 1)], now_us=bench.now) == [True, False]
    assert kept(bench, receipt.id) == Kept(None, b"half")
    bench.settle([lease])
    assert bench.engine.note([note], now_us=bench.now) == [False]
    assert bench.engine.note([Note(receipt.id, "a", b"after", HOUR)], now_us=bench.now) == [True]
    assert kept(bench, receipt.id).note == b"after"


@pytest.mark.parametrize("on_expiry", ["drop", "dead"])
def test_ends_that_no_handler_told_are_kept_where_it_is_wanted(bench: EngineBench, on_expiry: str) -> None:
    bench.policy("a", on_expiry=on_expiry, retries=0)
    bench.put("a", "1", id="expired", ttl_us=SECOND, headers=KEEPS)
    bench.put("a", "2", id="nobody asks", ttl_us=SECOND)
    bench.later(2)
    bench.engine.tick(now_us=bench.now)
    bench.put("a", "3", id="purged", headers=KEEPS)
    bench.engine.topic_purge("a", now_us=bench.now)
    bench.put("a", "4", id="dead", headers=KEEPS)
    bench.settle(bench.lease(), "retry")
    ends = {name: kept(bench, name).outcome or b"" for name in ("expired", "nobody asks", "purged", "dead")}
    assert b'"expired"' in ends["expired"]
    assert ends["nobody asks"] == b""
    cancelled = msgspec.json.decode(ends["purged"])
    assert (cancelled["status"], cancelled["topic"]) == ("cancelled", "a")
    assert cancelled["published_us"] == bench.now
    assert b'"dead"' in ends["dead"]
    assert b"retries used up" in ends["dead"]
    bench.engine.dead_redrive("a", ["dead"], now_us=bench.now)
    assert kept(bench, "dead").outcome is None, "it has not ended after all"


def test_what_waits_is_cancelled(bench: EngineBench) -> None:
    """Ready, delayed, parked behind its key; once."""
    bench.policy("a", serial="hold")
    bench.put("a", "1", id="ready", key="k", headers=KEEPS)
    bench.put("a", "2", id="parked", key="k", headers=KEEPS)
    bench.put("a", "3", id="delayed", delay_us=HOUR, headers=KEEPS)
    bench.put("a", "4", id="last", key="k")
    for name in ("parked", "delayed", "ready"):
        assert bench.engine.withdraw(name, "a", now_us=bench.now) == "cancelled"
        assert bench.engine.withdraw(name, "a", now_us=bench.now) == "unknown"
        outcome = kept(bench, name).outcome
        assert outcome is not None
        assert msgspec.json.decode(outcome) == {"status": "cancelled", "topic": "a", "published_us": bench.now}
    assert bench.run() == ["4"], "the next of its key comes forward"
    assert [check for check in bench.engine.doctor() if not check.ok] == []


def test_what_is_leased_is_aborted(bench: EngineBench) -> None:
    """Its lease ends, its slot is free, and whoever listens hears of it."""
    bench.policy("a", concurrency=1)
    bench.put("a", "1", "2", id=None, headers=KEEPS)
    (lease,) = bench.lease()
    ear = bench.engine.ear()
    ear.expect(ABORT)
    assert bench.engine.withdraw(lease.id, "a", now_us=bench.now) == "aborted"
    heard: list[str] = []
    while ABORT + lease.id not in heard:
        told = ear.listen(SOON)
        assert told, "it is heard"
        heard += told
    ear.close()
    assert bench.engine.extend([(lease.handle, lease.fence)], HOUR, now_us=bench.now) == [False]
    assert bench.settle([lease]) == ["lost"]
    assert bench.run() == ["2"]
    bench.put("a", "3", id="x")
    bench.settle(bench.lease(), "dead")
    assert bench.engine.withdraw("x", "a", now_us=bench.now) == "dead", "a dead letter stays"


def test_who_listens_hears_of_each_end(bench: EngineBench) -> None:
    """From another thread, without polling; first that it is listened for."""
    ear = bench.engine.ear()
    first, second = bench.put("a", "1", "2", headers=KEEPS)
    ear.expect(first.id)
    heard = ear.listen(SOON)
    while not heard:
        heard = ear.listen(SOON)
    assert heard == [first.id]
    ends = [Settlement(lease.handle, lease.fence, id=lease.id, outcome=b"so", keep_us=HOUR) for lease in bench.lease()]
    settling = threading.Timer(0.05, bench.engine.settle, [ends], {"now_us": bench.now})
    settling.start()
    heard = ear.listen(SOON)
    while not heard:
        heard = ear.listen(SOON)
    settling.join()
    assert heard == [first.id], "of the others it was not to hear"
    assert kept(bench, second.id).outcome == b"so"
    ear.forget(first.id)
    ear.wake()
    assert not [each for each in ear.listen(0.05) or [] if each != first.id]
    ear.close()


def test_a_message_waits_for_its_signals(bench: EngineBench) -> None:
    """Each counts once, however often it is told; their bodies come behind its own, and its ttl begins then."""
    bench.policy("a", ttl=5)
    bench.put("a", "own", id="x", headers=waits_for(3), delay_us=HOUR)
    bench.later(100)
    assert bench.lease() == []
    assert signals(bench, 2, 2, 3) == ["accepted", "duplicate", "accepted"]
    assert bench.lease() == []
    assert bench.engine.find("x", "a").state == "delayed"  # type: ignore[union-attr]
    assert signals(bench, 1, 1) == ["accepted", "duplicate"]
    (lease,) = bench.lease()
    assert lease.bodies == [b"own", b"s2", b"s3", b"s1"]
    bench.settle([lease])
    assert signals(bench, 4) == ["duplicate"], "nothing waits any more"
    assert [check for check in bench.engine.doctor() if not check.ok] == []


def test_signal_0_ends_the_waiting(bench: EngineBench) -> None:
    bench.put("a", "own", id="x", headers=waits_for(10))
    assert signals(bench, 5, 0, 6) == ["accepted", "accepted", "duplicate"]
    assert bench.lease()[0].bodies == [b"own", b"s5", b"s0"]


def test_the_signal_that_ends_the_waiting_says_when_and_for_how_long(bench: EngineBench) -> None:
    """Its delay or time, and the ttl, which counts from the message's publish; without them those of the policy."""
    bench.policy("a", ttl=50)
    for name in ("later", "at", "expired", "plain"):
        bench.put("a", name, id=name, headers={NEEDS_HEADER: "1"})
    bench.later(10)
    now = bench.now
    bench.engine.put([
        Draft("a", b"s", id="later", signal=1, delay_us=5 * SECOND, ttl_us=30 * SECOND),
        Draft("a", b"s", id="at", signal=1, at_us=now + 6 * SECOND, ttl_us=15 * SECOND),
        Draft("a", b"s", id="expired", signal=1, ttl_us=9 * SECOND),
        Draft("a", b"s", id="plain", signal=1),
    ], now_us=now)  # fmt: skip
    assert bench.run() == ["plain"]
    bench.later(5.5)
    assert bench.run() == ["later"]
    bench.later(5)
    assert bench.run() == []
    assert {view.id for _, view in bench.engine.dead_list(limit=9)} == {"at", "expired"}


def test_signals_come_with_the_end_of_another(bench: EngineBench) -> None:
    """With an ack, and with a refusal; not with a lease that is lost, and not over a full backlog's limit."""
    bench.policy("a", max_backlog=1)
    bench.put("a", "own", id="x", headers=waits_for(2))
    bench.put("b", "1", "2", "3")
    leases = bench.lease()
    ends = [Settlement(lease.handle, lease.fence, action) for lease, action in zip(leases, ["ack", "dead", "retry"], strict=True)]
    told = {n: [Draft("a", b"%d" % n, id="x", signal=n + 1)] for n in range(3)}
    assert bench.engine.settle([Settlement(leases[0].handle, 0)], publish={0: told[2]}, now_us=bench.now) == ["lost"]
    assert bench.engine.settle(ends, publish=told, now_us=bench.now) == ["acked", "died", "retried"]
    (lease,) = bench.lease(topics=["a"])
    assert lease.bodies == [b"own", b"0", b"1"]


def test_a_message_that_waits_for_signals_can_go(bench: EngineBench) -> None:
    """Cancelled or purged, it leaves nothing; one that is put anew begins from nothing."""
    for go in (lambda: bench.engine.withdraw("x", "a", now_us=bench.now), lambda: bench.engine.topic_purge("a", now_us=bench.now)):
        bench.put("a", "own", id="x", headers=waits_for(2))
        signals(bench, 1)
        go()
        assert signals(bench, 2) == ["duplicate"]
    bench.put("a", "own", id="x", headers=waits_for(2))
    assert signals(bench, 1) == ["accepted"]
    assert bench.lease() == []
    assert [check for check in bench.engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("count", ["0", "many", "1000000", ""])
def test_a_wrong_number_of_signals_is_refused(bench: EngineBench, count: str) -> None:
    with pytest.raises(BadMessage, match=f"{NEEDS_HEADER} to be a number from 1 to 100,000"):
        bench.put("a", "1", headers={NEEDS_HEADER: count})


def test_what_follows_a_message_is_told_of_its_end(bench: EngineBench) -> None:
    """By a message in its topic, whatever the end; of one that has ended the outcome is there at once."""
    bench.policy("a", max_backlog=1, merge="first", ttl=5)
    (receipt,) = bench.put("a", "1", id="x", headers=KEEPS)
    assert bench.engine.follow("x", "a", b'["one"]') is None
    assert bench.engine.follow("x", "a", b'["two"]') is None
    (lease,) = bench.lease()
    bench.put("a", "fills it")
    end = Settlement(lease.handle, lease.fence, id=receipt.id, outcome=b'{"status":"success"}', keep_us=HOUR)
    bench.engine.settle([end], now_us=bench.now)
    assert bench.engine.follow("x", "a", b'["three"]') == b'{"status":"success"}'
    bench.later(10)
    (told,) = bench.lease()
    assert told.headers == {TASK_HEADER: ENDED}
    assert msgspec.json.decode(told.body) == {"id": "x", "outcome": {"status": "success"}, "followers": [["one"], ["two"]]}
    bench.settle([told])
    assert bench.lease() == [], "once"


@pytest.mark.parametrize("how", ["purged", "cancelled", "expired", "dead", "deleted"])
def test_an_end_that_no_handler_told_is_told_to_its_flow(bench: EngineBench, how: str) -> None:
    bench.policy("a", retries=0)
    bench.put("a", '{"n":1}', id="x", headers={**KEEPS, FLOW_HEADER: "1"}, ttl_us=HOUR)
    status = "cancelled"
    if how == "purged":
        bench.engine.topic_purge("a", now_us=bench.now)
    elif how == "cancelled":
        bench.engine.withdraw("x", "a", now_us=bench.now)
    elif how == "expired":
        status = "expired"
        bench.later(3601)
    elif how == "dead":
        status = "dead"
        bench.settle(bench.lease(), "retry")
    else:
        bench.lease()
        bench.engine.topic_delete("a", now_us=bench.now)
    bench.engine.tick(now_us=bench.now)
    (told,) = bench.lease()
    said = msgspec.json.decode(told.body)
    assert (said["id"], said["outcome"]["status"], said["body"]) == ("x", status, {"n": 1})
    assert [check for check in bench.engine.doctor() if not check.ok] == []


def test_nobody_follows_what_nobody_keeps(bench: EngineBench) -> None:
    bench.put("a", "1", id="x")
    for name in ("x", "nobody"):
        with pytest.raises(UsageError, match=f"job {name}: nobody knows it, or nothing is kept of it"):
            bench.engine.follow(name, "a", b"[]")


def test_messages_with_an_end_wake_who_waits(bench: EngineBench) -> None:
    """What is published in the same step as an ack rings like any other."""
    bench.put("a", "1")
    leases = bench.lease()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(bench.engine.wait, SOON)
        while not waiting.running():
            pass
        ends = [Settlement(lease.handle, lease.fence) for lease in leases]
        threading.Timer(0.1, bench.engine.settle, [ends], {"publish": {0: [Draft("b", b"2")]}, "now_us": bench.now}).start()
        assert waiting.result(SOON)


# Watching a topic


@pytest.mark.parametrize("fields", [{}, {"partitions": 4}, {"buckets": 2}, {"serial": "hold"}], ids=str)
@pytest.mark.parametrize("action", ["ack", "dead", "purge", "delete"])
def test_changes_of_a_watched_topic_are_notified(bench: EngineBench, fields: dict[str, Any], action: str) -> None:
    """Each settlement or removal; an idle topic has nothing to watch."""
    bench.policy("t.*", **fields)
    assert bench.engine.watch_topic("t.a", 60, now_us=bench.now) == []
    bench.put("t.a", "1", key="k")
    ear = bench.engine.ear()
    names = bench.engine.watch_topic("t.a", 60, now_us=bench.now)
    assert len(names) == 1
    assert names[0].startswith(CHANGED)
    ear.expect(*names)
    while ear.listen(0.2):  # of the subscription itself
        pass
    if action == "purge":
        bench.engine.topic_purge("t.a", now_us=bench.now)
    elif action == "delete":
        bench.engine.topic_delete("t.a", now_us=bench.now)
    else:
        leases = bench.lease()
        while ear.listen(0.2):  # of the lease
            pass
        bench.settle(leases, action)
    notified = ear.listen(SOON)
    assert notified == names * len(notified or ())
    assert notified
    ear.close()


def test_a_watch_ends(bench: EngineBench) -> None:
    """What happens after its seconds is notified at most once."""
    bench.put("a", "1", "2", "3")
    (name,) = bench.engine.watch_topic("a", 5, now_us=bench.now)
    bench.later(6)
    bench.run(1)
    ear = bench.engine.ear()
    ear.expect(name)
    while ear.listen(0.2):
        pass
    bench.run(1)
    assert not ear.listen(0.2)
    ear.close()


IMPOSSIBLE_TIMES = ("9999999999999", "9" * 19, "9" * 30, "9" * 5000, "600,9999999999999", "-1", "nan", "", ",", "0", "1,2,3")


def test_a_time_to_keep_that_cannot_be_harms_nobody(bench: EngineBench) -> None:
    """Another program may have written anything there: it counts as a hundred years, or as nothing. Death, expiry, cancelling and redrive go on."""
    for n, said in enumerate(IMPOSSIBLE_TIMES):
        headers = {KEEPS_HEADER: said, FLOW_HEADER: "1"}
        drafts = [Draft("a", b"1", id=f"{name} {n}", headers=headers) for name in ("dead", "cancelled", "acked")]
        bench.engine.put([*drafts, Draft("a", b"1", id=f"late {n}", headers=headers, ttl_us=SECOND)], now_us=bench.now)
        assert bench.engine.withdraw(f"cancelled {n}", "a", now_us=bench.now) == "cancelled"
    bench.later(2)
    leases = bench.lease(500)
    ends = [Settlement(lease.handle, lease.fence, "dead" if lease.id.startswith("dead") else "ack", reason="why") for lease in leases]
    assert set(bench.engine.settle(ends, now_us=bench.now)) == {"died", "acked"}
    dead = [f"dead {n}" for n in range(len(IMPOSSIBLE_TIMES))]
    assert bench.engine.dead_redrive("a", dead, now_us=bench.now) == len(dead)
    bench.engine.tick(now_us=bench.now)
    assert bench.engine.topic_stats("a", now_us=bench.now).leased == 0


def test_a_number_of_signals_that_cannot_be_is_refused(bench: EngineBench) -> None:
    """Nothing is changed, and what comes with it is refused as well, as every batch is."""
    for said in ("9" * 5000, "100001", "-1", "x", "", "0", "1.5", "\u00b2"):
        with pytest.raises(BadMessage, match=NEEDS_HEADER):
            bench.engine.put([Draft("a", b"1"), Draft("a", b"1", headers={NEEDS_HEADER: said})], now_us=bench.now)
    assert bench.engine.topic_stats("a", now_us=bench.now).waiting == 0
