"""The checks of publishing notice a store that breaks a promise; calls that come late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.sql import backlog_limits, forwarding, merging, messages
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Resolved
from laneway.testing.simulation import Broken, End, Fleet, Network, Spool
from laneway.testing.simulation.publishing_checks import Forwarding
from tests.simulation import publishing
from tests.simulation.publishing import Repeater

Break = Callable[[pytest.MonkeyPatch], None]


def run(
    monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any], break_it: Break | None = None
) -> None:
    """Run a fleet with one topic, whose engine `break_it` breaks."""
    fleet = Fleet(partial(open_engine, "sqlite://"), Settings(), seed=1)
    for check in publishing.CHECKS:
        fleet.check(check(fleet.store, fleet.messages, ["t"]))
    fleet.store.apply("policy_set", "code", "t", policy)
    fleet.add(Repeater(fleet.store, "t", draft, 2))
    fleet.workers(1, behavior=fails_once)
    if break_it is not None:
        break_it(monkeypatch)
    try:
        fleet.run(60)
        fleet.finish()
    finally:
        fleet.close()


def fails_once(lease: Lease) -> End:
    return End(0.3, "ack" if lease.attempt > 1 else "retry", delay_us=100_000)


def draft(number: int) -> Draft:
    return Draft("t", b"%d" % number, key=f"k{number % 2}")


def forget_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = messages.finish_ids
    monkeypatch.setattr(
        messages, "finish_ids", lambda *given, remember: finish(*given, remember=False)
    )


def remember_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    window = messages._window
    monkeypatch.setattr(messages, "_window", lambda *given, **named: 1000 * window(*given, **named))


def expire_late(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = Resolved.expires_us
    monkeypatch.setattr(Resolved, "expires_us", lambda *given: (ends(*given) or 0) + 5_000_000)


def expire_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Resolved, "expires_us", lambda policy, own, since: since + 100_000)


def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_limits, "_exceeded", lambda *given, **named: None)


def keep_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_change_waiting", lambda *given: None)


def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "window_due", lambda *given: None)


def lose_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_add_parts", lambda *given: None)


@pytest.mark.parametrize(
    ("policy", "break_it", "words"),
    [
        ({"dedupe": 60}, forget_ids, "was accepted again"),
        ({"dedupe": 1}, remember_ids, "is still known"),
        ({"ttl": 2}, expire_late, "after its ttl"),
        ({"ttl": 5}, expire_early, "before its end"),
        ({"max_backlog": 3}, no_limit, "whose limit is 3"),
        ({"merge": "last"}, keep_the_first, "instead of"),
        ({"merge": "last", "window": 2}, no_window, "before its window's end"),
        ({"merge": "all"}, lose_bodies, "was never delivered"),
    ],
)
def test_a_broken_promise_is_noticed(
    monkeypatch: pytest.MonkeyPatch, policy: dict[str, Any], break_it: Break, words: str
) -> None:
    """Without the defect the same fleet keeps its promises."""
    run(monkeypatch, policy)
    with pytest.raises(Broken, match=words):
        run(monkeypatch, policy, break_it)


def late_fleet(late_calls: float) -> Fleet:
    network = Network(lost_answers=0.2, late_calls=late_calls, latest=3.0)
    return Fleet(partial(open_engine, "sqlite://"), Settings(), seed=1, network=network)


def test_a_batch_that_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that forgets what it took of a spool's last batch is noticed."""

    def run() -> None:
        fleet = late_fleet(0.0)
        fleet.check(Forwarding(fleet.store))
        fleet.add(Spool(fleet.store, "t", draft, 10))
        fleet.workers(2, slots=20, seconds=0.01)
        try:
            fleet.run(60)
            fleet.finish()
        finally:
            fleet.close()

    run()
    monkeypatch.setattr(forwarding, "_keys", lambda stored: set())
    with pytest.raises(Broken, match="was accepted twice from t"):
        run()


def test_a_settlement_that_comes_late() -> None:
    """A late settlement of a lease that has ended is refused; a store that takes it is noticed."""

    def run(*, is_broken: bool) -> None:
        fleet = late_fleet(0.3)
        fleet.publisher("t", rate=5)
        fleet.workers(2, slots=5, behavior=lambda _: End(0.1, "retry", delay_us=0))
        settle = fleet.store.engine.settle

        def takes(settlements: Sequence[Settlement], **options: Any) -> Any:
            return [
                "acked" if is_broken and answer == "lost" else answer
                for answer in settle(settlements, **options)
            ]

        fleet.store.engine.settle = takes  # type: ignore[method-assign]
        try:
            fleet.run(60)
        finally:
            fleet.close()

    run(is_broken=False)
    with pytest.raises(Broken, match=r"after its end|ended long before"):
        run(is_broken=True)
