"""Grants divide a gate over shards: never above its limits, and alike. Without any server."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from laneway.engines.sharded.grants import AT_ONCE, EVERY, Answer, Grant, Grants, Usage, slots
from laneway.policy import Gate
from tests.sharded.simulated import STEP_US, Shards

SECONDS = 60
ALWAYS = -1
"""How many messages a lane has that never ends."""

QUICK, SHORT, LONG = (0.0, 0.001), (0.03, 0.07), (0.5, 1.5)
"""For how long handlers run, in seconds."""


def one_lane_each(shards: int) -> list[dict[str, int]]:
    return [{f"lane {shard}": ALWAYS} for shard in range(shards)]


@pytest.mark.parametrize("shards", [1, 4, 64])
@pytest.mark.parametrize(
    "limits",
    [Gate(10.0), Gate(10.0, 1), Gate(100.0), Gate(400.0, 5), Gate(100.0, None, 3)],
    ids=str,
)
def test_a_rate_is_reached_and_never_exceeded(limits: Gate, shards: int) -> None:
    """Also if demand is on one shard only; and the lanes of all shards get the same."""
    for lanes in (one_lane_each(shards), [{"one": ALWAYS}, *({} for _ in range(shards - 1))]):
        simulated = Shards(limits, lanes, random.Random(shards))
        simulated.run(SECONDS, (0.01, 0.02))
        assert simulated.most_above() <= limits.effective_burst + 1e-6
        fair = (limits.rate or 0.0) * SECONDS
        assert len(simulated.delivered) >= 0.8 * fair
        if limits.concurrency is None and limits.burst is None:
            assert len(simulated.delivered) >= 0.95 * fair
        counts = [simulated.got[lane] for each in lanes for lane in each]
        assert min(counts) >= 0.8 * sum(counts) / len(counts)
        mean = SECONDS * len(counts) / sum(counts)
        is_narrow = limits.concurrency is not None or limits.burst is not None
        assert simulated.longest_pause() <= 5 * mean + (5 if is_narrow else 2)


@pytest.mark.parametrize("shards", [2, 8, 64])
@pytest.mark.parametrize("handler", [QUICK, SHORT, LONG], ids=["quick", "short", "long"])
@pytest.mark.parametrize("concurrency", [1, 2, 3, 40])
def test_slots_go_round(concurrency: int, handler: tuple[float, float], shards: int) -> None:
    """Each shard has its turn, and slots are seldom free."""
    lanes = one_lane_each(shards)
    simulated = Shards(Gate(concurrency=concurrency), lanes, random.Random(concurrency))
    seconds = SECONDS if handler != LONG else SECONDS * max(1, shards // concurrency // 4)
    simulated.run(seconds, handler, step_us=STEP_US * (4 if handler == LONG else 1))
    assert simulated.most_leased <= concurrency
    counts = [simulated.got[lane] for each in lanes for lane in each]
    assert min(counts) >= 0.8 * sum(counts) / len(counts)
    if handler != QUICK:
        mean = sum(handler) / 2 + 0.005
        assert len(simulated.delivered) >= 0.8 * seconds * concurrency / mean
    if handler != LONG:
        assert simulated.longest_pause() <= (20 if shards <= 32 * concurrency else 30)


@pytest.mark.parametrize("seed", range(30))
def test_random_demand(seed: int) -> None:
    """It comes and goes on any shard. Each lane that waits gets something; nothing is exceeded."""
    draw = random.Random(seed)
    print(f"seed {seed}")
    shards = draw.choice([2, 4, 9, 32])
    limits = Gate(
        draw.choice([None, 5.0, 30.0, 200.0]), draw.choice([None, 1, 4]), draw.choice([1, 2, 7, 50])
    )
    if limits.rate is None:
        limits = Gate(concurrency=limits.concurrency)
    lanes = [{f"{shard}.{n}": 0 for n in range(draw.randint(1, 3))} for shard in range(shards)]
    simulated = Shards(limits, lanes, draw)
    for _ in range(8):
        for each in simulated.lanes:
            for lane in each:
                each[lane] += draw.choice([0, 0, draw.randint(1, 20)])
        simulated.run(draw.uniform(0.5, 3), SHORT)
    assert simulated.most_leased <= (limits.concurrency or 0)
    if limits.rate is not None:
        assert simulated.most_above() <= limits.effective_burst + 1e-6
    left = sum(sum(each.values()) for each in simulated.lanes)
    slowest = min(limits.rate or 1e9, (limits.concurrency or 0) / 0.055)
    simulated.run(left / slowest * 1.4 + 5, SHORT)
    assert sum(sum(each.values()) for each in simulated.lanes) == 0


def test_a_shard_with_many_lanes_gets_more() -> None:
    """Lanes get the same, wherever they are."""
    lanes = [{f"{shard}.{n}": ALWAYS for n in range(1 + 20 * (shard == 3))} for shard in range(8)]
    for limits in (Gate(20.0), Gate(concurrency=2)):
        simulated = Shards(limits, lanes, random.Random(1))
        simulated.run(SECONDS, SHORT)
        counts = [simulated.got[lane] for each in lanes for lane in each]
        assert min(counts) >= 0.8 * sum(counts) / len(counts)


def test_a_gate_that_is_set_again() -> None:
    """Its new limits hold at once, beside what is leased."""
    for seed in range(20):
        draw = random.Random(seed)
        simulated = Shards(Gate(concurrency=20), one_lane_each(6), draw)
        simulated.run(1, SHORT)
        before, limits = simulated.limits, Gate(concurrency=draw.randint(1, 20))
        simulated.set_limits(limits)
        leased = sum(each.leased for each in simulated.states)
        simulated.grants.begin("g", limits, before, simulated.now)
        granted = sum(max(each.limits.concurrency or 0, each.leased) for each in simulated.states)
        assert granted == max(leased, limits.concurrency or 0)
        simulated.run(1, SHORT)
        simulated.most_leased = 0
        simulated.run(1, SHORT)
        assert simulated.most_leased <= (limits.concurrency or 0)


def test_a_turn_that_nothing_uses_ends() -> None:
    """The lanes of a shard wait for another gate: its place goes on."""
    simulated = Shards(Gate(concurrency=1), one_lane_each(3), random.Random(1))
    simulated.blocked = {1}
    simulated.run(20, SHORT)
    assert simulated.got["lane 1"] == 0
    assert min(simulated.got["lane 0"], simulated.got["lane 2"]) >= 40


class Many:
    """Many gates, whose grants all stay as they are."""

    shards = 2

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.asked: list[str] = []
        self.is_claimed = False

    def has_gates(self) -> bool:
        return True

    def waited_gates(self) -> set[str]:
        return self.names

    def claim_grants(self, seconds: float) -> bool:
        assert 0 < seconds < EVERY
        self.is_claimed, was_claimed = True, self.is_claimed
        return not was_claimed

    def hold_grants(self, seconds: float) -> None:
        assert 0 < seconds < EVERY

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        self.asked += gates
        usage = [Usage(0, 1, 2, Gate(concurrency=2)) for _ in range(2)]
        return [(Gate(concurrency=4), usage)] * len(gates)

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        raise AssertionError("grants that stay as they are are not written again")

    def end_grant(self, gate: str, shard: int, now_us: int | None) -> None:
        raise AssertionError


def test_a_look_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease waits for it: of many gates each look asks about some, all have their turn."""
    many = Many({f"account {n}" for n in range(10 * AT_ONCE)})
    monkeypatch.setattr("laneway.engines.sharded.grants.LONGEST", 0.0)
    seen: set[str] = set()
    for _ in range(300):
        Grants(many).renew()
        assert len(many.asked) == AT_ONCE
        seen |= set(many.asked)
        many.asked, many.is_claimed = [], False
    assert seen == many.names


def test_one_process_looks_for_all() -> None:
    many = Many({"account"})
    Grants(many).renew()
    Grants(many).renew()
    assert many.asked == ["account"]


def test_slots_follow_demand() -> None:
    assert slots(10, [3, 1, 0], [1, 0]) == ([7, 3, 0], [1])
    assert slots(10, [3, 1, 0], [0, 1], beside=6) == ([3, 1, 0], [])
    assert slots(2, [9, 1, 1], [0, 1, 2]) == ([1, 1, 0], [1])
    assert slots(None, [3], [0]) == ([0], ())
