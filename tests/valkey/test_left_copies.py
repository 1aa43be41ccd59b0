"""Messages with more copies than one call puts: the others are left to later calls."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.engine import ValkeyQueue
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import BacklogFull, BadMessage, EngineUnavailable
from laneway.message import Draft, Receipt, Settlement
from laneway.testing.servers import Server
from laneway.units import SECOND
from tests.seeds import seed_for

Opened = Callable[..., FullEngine]

SOURCE = str(Path(__file__).parents[2] / "src")
SUBSCRIPTIONS = 450
"""More than a call puts, also of plain copies."""

NAMES = [f"a#s{n}" for n in range(SUBSCRIPTIONS)]
KILLS = int(os.environ.get("LANEWAY_KILLS", "4"))


OPENING = """\
import sys
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft
engine = open_engine(sys.argv[1], Settings(namespace="n"))
"""
"""How programs of other processes begin."""


def subscribe(engine: FullEngine) -> None:
    engine.policy_set("code", "a", {f"subscription:s{n}": {} for n in range(SUBSCRIPTIONS)})


def counts(engine: FullEngine) -> set[int]:
    """How many messages wait in the topic, and in its subscriptions."""
    return {engine.topic_stats(name).waiting for name in ("a", *NAMES)}


@pytest.fixture
def url() -> Iterator[str]:
    with Server() as server:
        yield server.url


@pytest.fixture
def unfinished(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ValkeyQueue]:
    """An engine that leaves copies and does nothing about it, like a client that has died."""
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        assert isinstance(engine, ValkeyQueue)
        subscribe(engine)
        monkeypatch.setattr(engine, "_finish_copies", lambda *_: None)
        yield engine


CALLS: dict[str, Callable[[FullEngine], object]] = {
    "put one": lambda engine: engine.put([Draft("before", b"")]),
    "put": lambda engine: engine.put([Draft("other", b"", priority=1)] * 2),
    "lease": lambda engine: engine.lease(1, topics=["other"]),
    "settle": lambda engine: engine.settle([Settlement(1, 1)]),
    "policy": lambda engine: engine.policy_set("operator", "x.*", {"retries": 1}),
    "tick": lambda engine: engine.tick(),
    "purge": lambda engine: engine.topic_purge("other"),
    "doctor": lambda engine: engine.doctor(),
}


@pytest.mark.parametrize("call", CALLS)
def test_any_call_of_another_client_puts_what_a_dead_one_left(
    url: str, unfinished: ValkeyQueue, call: str
) -> None:
    with closing(open_engine(url, Settings(namespace="n"))) as other:
        other.put([Draft("before", b"")])
        unfinished.put([Draft("a", b"x", priority=1)])
        assert unfinished._space.counters(0)[0].copying > 0
        CALLS[call](other)
        assert other._space.counters(0)[0].copying == 0  # type: ignore[attr-defined]
        assert counts(other) == {1}
        assert [check for check in other.doctor() if not check.ok] == []


def test_an_ack_whose_client_died(url: str, unfinished: ValkeyQueue) -> None:
    """The message is acked, what it publishes is there, and has the ids of its parent."""
    unfinished.put([Draft("in", b"", id="parent")])
    (lease,) = unfinished.lease(1).leases
    ends = [Settlement(lease.handle, lease.fence)]
    assert unfinished.settle(ends, publish={0: [Draft("a", b"x", priority=2)]}) == ["acked"]
    with closing(open_engine(url, Settings(namespace="n"))) as other:
        ids = set()
        while leases := other.lease(500).leases:
            ids |= {(lease.topic, lease.id) for lease in leases}
        assert ids == {(name, "parent:0") for name in ("a", *NAMES)}
        assert other.settle(ends) == ["lost"]


def test_no_call_puts_many(
    url: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """However the message is published, and whatever its copies need."""
    handled: list[int] = []
    run = Namespace.run

    def counted(self: Namespace, function: str, *arguments: Any, **options: Any) -> Any:
        before = self.counters(0)[0].published
        answer = run(self, function, *arguments, **options)
        handled.append(self.counters(0)[0].published - before)
        return answer

    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.policy_set("code", "a#s400", {"max_backlog": 9})
        engine.policy_set("code", "a", {"subscription:s300": {"expires": 60}})
        monkeypatch.setattr(Namespace, "run", counted)
        drafts = [Draft("a", b"x", **options), Draft("in", b"")]
        assert [receipt.outcome for receipt in engine.put(drafts)] == ["accepted"] * 2
        named = [Draft("a", b"y", id="named", sticky=True, **options)]
        assert engine.forward(named, spool="s", batch="b")[0].outcome == "accepted"
        for batch in "bc":
            assert engine.forward(named, spool="s", batch=batch)[0].outcome == "duplicate"
        (lease,) = engine.lease(1, topics=["in"]).leases
        engine.settle([Settlement(lease.handle, lease.fence)], publish={0: drafts[:1]})
        assert max(handled) <= 400
        assert sum(handled) == 3 * (SUBSCRIPTIONS + 1) + 1
        assert counts(engine) == {3}


@pytest.fixture(params=[{}, {"priority": 1}, {"key": "k"}, {"delay_us": SECOND}])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_a_refusal_of_the_last_copy_refuses_all(url: str) -> None:
    """A limit, or a delay that outlasts the time to live: also beyond what the first call puts."""
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.put([Draft("in", b""), Draft("a#s99", b"")])
        (lease,) = engine.lease(1, topics=["in"]).leases
        ends = [Settlement(lease.handle, lease.fence)]
        late = Draft("a", b"x", delay_us=5 * SECOND)
        large = Draft("a", b"x" * 2_000, priority=1)
        for limit in (1, "1KB"):
            engine.policy_set("code", "a#s99", {"max_backlog": limit})
            (receipt,) = engine.put([large])
            assert receipt.outcome == "refused"
            assert "a#s99" in str(receipt.reason)
            with pytest.raises(BacklogFull, match="a#s99"):
                engine.settle(ends, publish={0: [large]})
            engine.policy_set("code", "a#s99", {"max_backlog": None})
        engine.policy_set("code", "a#s99", {"ttl": 1})
        for refused in (
            lambda: engine.put([late]),
            lambda: engine.settle(ends, publish={0: [late]}),
        ):
            with pytest.raises(BadMessage, match="ttl"):
                refused()
        engine.topic_purge("a#s99")
        assert counts(engine) == {0}
        assert engine.settle(ends) == ["acked"]
        assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_known_id_has_no_copies(url: str, is_stored: bool) -> None:
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.policy_set("code", "a", {"own_backlog": is_stored})
        draft = Draft("a", b"x", id="known", priority=1)
        assert [engine.put([draft])[0].outcome for _ in range(3)] == [
            "accepted",
            "duplicate",
            "duplicate",
        ]
        assert {engine.topic_stats(name).waiting for name in NAMES} == {1}


def test_the_receipt_of_a_message_that_only_later_subscriptions_take(url: str) -> None:
    """The first copies are duplicates, or join others; the receipt is that of the first other."""
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.policy_set("code", "a", {"own_backlog": False})
        first = sorted(NAMES)[:200]
        engine.put([Draft(name, b"", id="k") for name in first])
        assert engine.put([Draft("a", b"x", id="k", priority=1)]) == [Receipt("k", "a")]
        for name in first:
            engine.policy_set("code", name, {"merge": "last"})
        engine.put([Draft(name, b"", key="m") for name in first])
        (receipt,) = engine.put([Draft("a", b"x", key="m", priority=1)])
        assert receipt.outcome == "accepted"
        assert engine.find(receipt.id, sorted(NAMES)[200]) is not None
        assert counts(engine) == {0, 2}


@pytest.mark.parametrize("chunk", [1, -1])
def test_a_chunk_that_fails_holds_nobody_up(unfinished: ValkeyQueue, chunk: int) -> None:
    """One call gets the error, and its chunk is lost; later calls go on, with their own answers."""
    unfinished.put([Draft("a", b"x", priority=1)])
    unfinished._space.read(0, "LSET", "copying", chunk, record_formats.pack(0))
    with pytest.raises(EngineUnavailable):
        unfinished.lease(1)
    lost = 66 if chunk == 1 else (SUBSCRIPTIONS - 65) % 66
    assert len(unfinished.lease(500).leases) == SUBSCRIPTIONS + 1 - lost
    assert unfinished._space.counters(0)[0].copying == 0
    assert [receipt.outcome for receipt in unfinished.put([Draft("b", b"")])] == ["accepted"]
    assert [lease.topic for lease in unfinished.lease(5).leases] == ["b"]


def test_chunks_of_a_call_that_failed_are_forgotten(url: str, unfinished: ValkeyQueue) -> None:
    """They were written, and the counter was not."""
    unfinished._space.read(0, "RPUSH", "copying", b"of a call that failed", b"also")
    unfinished.put([Draft("a", b"x", priority=1)])
    with closing(open_engine(url, Settings(namespace="n"))) as other:
        assert counts(other) == {1}


def test_an_error_after_the_message_was_accepted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not say that nothing was changed; others put the rest."""
    run = Namespace.run

    def failing(self: Namespace, function: str, *arguments: Any, **options: Any) -> Any:
        if function == "finish_copies":
            raise EngineUnavailable("away", applied=False)
        return run(self, function, *arguments, **options)

    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.put([Draft("in", b"")])
        (lease,) = engine.lease(1).leases
        ends = [Settlement(lease.handle, lease.fence)]
        monkeypatch.setattr(Namespace, "run", failing)
        for call in (
            lambda: engine.put([Draft("a", b"x", priority=1)]),
            lambda: engine.settle(ends, publish={0: [Draft("a", b"x", priority=1)]}),
        ):
            with pytest.raises(EngineUnavailable) as raised:
                call()
            assert raised.value.applied is None
        assert engine.settle(ends) == ["lost"]
        assert counts(engine) == {2}


def test_the_server_confirms_the_last_copies(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []
    run = Namespace.run

    def seen(self: Namespace, function: str, *arguments: Any, **options: Any) -> Any:
        calls.append((function, options.get("durable", False)))
        return run(self, function, *arguments, **options)

    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        monkeypatch.setattr(Namespace, "run", seen)
        engine.put([Draft("a", b"x", priority=1)])
        assert calls[0] == ("put", True)
        assert calls[-1] == ("finish_copies", True)
        assert counts(engine) == {1}


@pytest.mark.parametrize("name", ["z5", "z" * 64])
@pytest.mark.parametrize("by_ack", [False, True])
def test_a_new_policy_of_a_copy_that_is_left(url: str, name: str, by_ack: bool) -> None:
    """A client that does not know it is told, also if no copy that it sends first has options."""
    settings = Settings(namespace="n")
    with closing(open_engine(url, settings)) as one, closing(open_engine(url, settings)) as other:
        subscribe(one)
        one.policy_set("code", "a", {f"subscription:{name}": {}})
        one.policy_set("code", f"*#{name}", {"ttl": 3600})
        one.put([Draft("in", b""), Draft("a", b"x")])
        (lease,) = one.lease(1, topics=["in"]).leases
        other.policy_set("code", f"a#{name}", {"max_backlog": 1})
        if by_ack:
            with pytest.raises(BacklogFull):
                one.settle([Settlement(lease.handle, lease.fence)], publish={0: [Draft("a", b"x")]})
        else:
            assert one.put([Draft("a", b"x")])[0].outcome == "refused"
        assert counts(other) == {1}


def test_unused_subscriptions_get_nothing(url: str) -> None:
    """Also those whose copies later calls put; all of them together are no subscription."""
    now = 1_700_000_000 * SECOND
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        names: dict[str, Any] = {f"subscription:s{n}": {"expires": 60} for n in range(200)}
        engine.policy_set("code", "a", names | {"own_backlog": False}, now_us=now)
        outcomes = [
            engine.put([Draft("a", b"x", priority=1)], now_us=at)[0].outcome
            for at in (now, now + 30 * SECOND, now + 120 * SECOND)
        ]
        assert outcomes == ["accepted", "accepted", "unrouted"]
        waiting = {engine.topic_stats(f"a#s{n}", now_us=now).waiting for n in range(200)}
        assert waiting == {2}


def test_a_topic_with_a_backlog_of_its_own_and_unused_subscriptions(url: str) -> None:
    """The message is stored, without copies."""
    now = 1_700_000_000 * SECOND
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        names = {f"subscription:s{n}": {"expires": 60} for n in range(200)}
        engine.policy_set("code", "a", names, now_us=now)
        for at in (now, now + 120 * SECOND):
            engine.put([Draft("a", b"x", priority=1)], now_us=at)
        assert engine.topic_stats("a").waiting == 2
        assert {engine.topic_stats(f"a#s{n}").waiting for n in range(200)} == {1}


def test_copies_of_an_ack_expire_with_the_others(url: str) -> None:
    """Where a subscription has a limit, copies that are left are encoded again."""
    now = 1_700_000_000 * SECOND
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        engine.policy_set("code", "a#s9", {"max_backlog": 9})
        engine.put([Draft("in", b"")], now_us=now)
        (lease,) = engine.lease(1, now_us=now).leases
        short = Draft("a", b"x", ttl_us=SECOND, priority=1)
        ends = [Settlement(lease.handle, lease.fence)]
        engine.settle(ends, publish={0: [short]}, now_us=now)
        assert len(engine.lease(900, now_us=now + SECOND - 1).leases) == SUBSCRIPTIONS + 1


def test_two_clients_at_once(url: str) -> None:
    """Each of them puts what the other one left, and waits for nobody."""
    publishing = OPENING + (
        "for n in range(40):\n"
        "    receipt, = engine.put([Draft('a', b'x', priority=n % 3)])\n"
        "    assert receipt.outcome == 'accepted' and receipt.id\n"
    )
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        others = [
            subprocess.Popen([sys.executable, "-c", publishing, url], env={"PYTHONPATH": SOURCE})
            for _ in range(3)
        ]
        assert [other.wait(60) for other in others] == [0, 0, 0]
        assert counts(engine) == {120}
        bodies = engine.lease(1000, topics=["a#s7"]).leases
        assert [lease.priority for lease in bodies] == [2] * 39 + [1] * 39 + [0] * 42


def test_a_publisher_that_is_killed(url: str) -> None:
    """Each message has all of its copies, or it is not there."""
    seed = seed_for("LANEWAY_KILLS")
    print("seed", seed)
    draw = random.Random(seed)
    publishing = OPENING + (
        "while True:\n"
        "    engine.put([Draft('a', b'x', key='k', priority=1)])\n"
        "    print(flush=True)\n"
    )
    with closing(open_engine(url, Settings(namespace="n"))) as engine:
        subscribe(engine)
        for _ in range(KILLS):
            with subprocess.Popen(
                [sys.executable, "-c", publishing, url],
                env={"PYTHONPATH": SOURCE},
                stdout=subprocess.PIPE,
            ) as publisher:
                assert publisher.stdout is not None
                for _ in range(draw.randint(1, 4)):
                    publisher.stdout.readline()
                try:
                    publisher.wait(draw.random() / 20)
                except subprocess.TimeoutExpired:
                    publisher.send_signal(signal.SIGKILL)
            engine.tick()
            (count,) = counts(engine)
            assert count > 0
        assert [check for check in engine.doctor() if not check.ok] == []
