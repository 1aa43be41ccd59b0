"""Grants divide a gate over shards and never exceed its limits, without any server."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from laneway.engines.sharded.grants import AT_ONCE, EVERY, Grant, Grants, Usage, divide, slots
from laneway.policy import Gate


class Shards:
    """Gates in memory: a grant is at least what is leased, as on every engine."""

    def __init__(self, limits: Gate, usage: list[Usage]) -> None:
        self.shards = len(usage)
        self.limits = limits
        self.usage = usage
        self.written: list[tuple[int, Grant]] = []
        self.is_claimed = False
        self.waited = {"account"}
        self.asked: list[str] = []
        self.most = 0
        """The largest sum of the concurrencies granted at one time."""

    def has_gates(self) -> bool:
        return True

    def waited_gates(self) -> set[str]:
        return self.waited

    def claim_grants(self, seconds: float) -> bool:
        assert 0 < seconds < EVERY
        self.is_claimed, was_claimed = True, self.is_claimed
        return not was_claimed

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        self.asked += gates
        now = [Usage(each.leased, each.waiting, each.granted) for each in self.usage]
        return [(self.limits, now)] * len(gates)

    def end_grant(self, gate: str, shard: int) -> None:
        raise AssertionError

    def grant_each(self, gate: str, grants: Sequence[Grant]) -> list[int]:
        return [self.grant(gate, shard, grant) for shard, grant in enumerate(grants)]

    def grant(self, gate: str, shard: int, grant: Grant) -> int:
        self.written.append((shard, grant))
        if grant.concurrency is None:
            return -1
        granted = max(grant.concurrency, self.usage[shard].leased)
        self.usage[shard].granted = granted
        self.most = max(self.most, sum(each.granted or 0 for each in self.usage))
        return granted


@pytest.mark.parametrize("seed", range(50))
def test_the_sum_of_grants_never_exceeds_the_concurrency(seed: int) -> None:
    """Also while demand moves: those that shrink do so before the others grow."""
    draw = random.Random(seed)
    concurrency, count = draw.randint(1, 20), draw.randint(2, 6)
    shards = Shards(Gate(None, None, concurrency), [Usage(0, 0, None) for _ in range(count)])
    grants = Grants(shards)
    grants.begin("account", shards.limits)
    for _ in range(20):
        for usage in shards.usage:
            usage.leased = draw.randint(0, usage.granted or 0)
            usage.waiting = draw.choice([0, 0, draw.randint(1, 9)])
        grants._renew_all(["account"], [draw.random() for _ in range(count)])
        assert sum(usage.granted or 0 for usage in shards.usage) <= concurrency
    assert shards.most <= concurrency


@pytest.mark.parametrize("seed", range(50))
def test_a_gate_that_is_set_again_never_exceeds_its_concurrency(seed: int) -> None:
    """Also if a shard has more leased than its new part."""
    draw = random.Random(seed)
    count = draw.randint(2, 6)
    shards = Shards(Gate(None, None, 20), [Usage(0, 0, None) for _ in range(count)])
    grants = Grants(shards)
    grants.begin("account", shards.limits)
    for _ in range(10):
        for usage in shards.usage:
            usage.leased, usage.waiting = draw.randint(0, usage.granted or 0), draw.randint(1, 9)
        grants._renew_all(["account"], [draw.random() for _ in range(count)])
        concurrency = draw.randint(1, 20)
        before, shards.most = sum(usage.granted or 0 for usage in shards.usage), 0
        grants.begin("account", Gate(None, None, concurrency))
        leased = sum(usage.leased for usage in shards.usage)
        assert shards.most <= max(before, concurrency)
        assert sum(usage.granted or 0 for usage in shards.usage) == max(leased, concurrency)


def test_a_look_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease waits for it: of many gates each look asks about some, all have their turn."""
    shards = Shards(Gate(None, None, 4), [Usage(0, 1, 2), Usage(0, 1, 2)])
    shards.waited = {f"account {n}" for n in range(10 * AT_ONCE)}
    monkeypatch.setattr("laneway.engines.sharded.grants.LONGEST", 0.0)
    seen: set[str] = set()
    for _ in range(300):
        Grants(shards).renew()
        assert len(shards.asked) == AT_ONCE
        seen |= set(shards.asked)
        shards.asked, shards.is_claimed = [], False
    assert seen == shards.waited
    assert shards.written == [], "grants that stay as they are are not written again"


def test_slots_follow_demand() -> None:
    usage = [Usage(0, 3, None), Usage(0, 1, None), Usage(0, 0, None)]
    assert slots(10, usage, [0.1, 0.2, 0.3]) in ([8, 2, 0], [7, 3, 0])
    assert slots(None, [Usage(0, 3, None)], [0.5]) == [0]


def test_fewer_slots_than_shards_go_round() -> None:
    """Luck decides, so that each shard with demand gets one in turn."""
    draw = random.Random(1)
    seen = {
        tuple(slots(1, [Usage(0, 1, None)] * 3, [draw.random() for _ in range(3)]))
        for _ in range(200)
    }
    assert seen == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}


def test_scarce_slots_of_several_gates_go_to_the_same_shard() -> None:
    """A lane that needs a slot of two gates finds both on its shard."""
    luck = [0.7, 0.2, 0.5]
    one = slots(1, [Usage(0, 9, None), Usage(0, 1, None), Usage(0, 4, None)], luck)
    other = slots(2, [Usage(0, 1, None), Usage(0, 9, None), Usage(0, 4, None)], luck)
    assert one == [0, 1, 0]
    assert other[1]


def test_a_gate_is_shut_where_nobody_waits() -> None:
    written: dict[int, Grant] = {}

    def write(shard: int, grant: Grant) -> int:
        written[shard] = grant
        return -1 if grant.concurrency is None else grant.concurrency

    divide(Gate(100.0, 10, None), [Usage(1, 2, None), Usage(0, 0, None)], [0.1, 0.2], write)
    assert written == {0: Grant(100.0, 10, None), 1: Grant(100.0, 1, 0)}


def test_one_process_renews_for_all() -> None:
    """The claim is for almost the whole interval; a namespace with one shard has no grants."""
    shards = Shards(Gate(None, None, 4), [Usage(1, 0, 3), Usage(0, 1, 1)])
    assert Grants(shards).renew()
    count = len(shards.written)
    assert count == 2
    assert Grants(shards).renew()
    assert len(shards.written) == count
    assert not Grants(Shards(Gate(None, None, 4), [Usage(1, 0, 2)])).renew()
