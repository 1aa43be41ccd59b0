"""The arithmetic of rates, virtual time and shares."""

from __future__ import annotations

import random

import pytest

from laneway.engines.shared import fairness
from laneway.policy import default_burst

NOW = 1_700_000_000_000_000


@pytest.mark.parametrize("rate", [1, 3, 7.5, 50, 333, 1_000, 7_001, 9_999, 10_000])
@pytest.mark.parametrize("burst", [1, 1.05, 2.5, 5, 500])
def test_a_rate_is_never_exceeded_and_missed_by_less_than_one_percent(
    rate: float, burst: float
) -> None:
    """In a time T at most rate·T + burst deliveries; with a backlog at least 0.99·rate·T - 1."""
    draw = random.Random(f"{rate}/{burst}")
    tat, now, taken = 0, NOW, 0
    end = NOW + 10_000_000
    while now < end:
        got = min(fairness.permits(tat, now, rate, burst), draw.choice([1, 3, 1000]))
        if got:
            tat = fairness.take_permits(tat, now, rate, got)
            taken += got
        now = max(fairness.next_permit_us(tat, now, rate, burst), now + draw.choice([1, 10]))
    assert taken <= rate * 10 + burst + 1
    assert taken >= 0.99 * rate * 10 - 1


@pytest.mark.parametrize("rate", [0.1, 1, 2, 5, 10, 19, 20, 25, 39, 40, 100, 1_000, 10_000])
def test_visit_up_to_50_ms_late_loses_no_permit_with_the_default_burst(rate: float) -> None:
    """This holds for any lateness of each visit between 0 and 50 ms."""
    burst = default_burst(rate)
    draw = random.Random(rate)
    tat, now, moments = 0, NOW, []
    end = NOW + round(max(10, 20 / rate) * 1_000_000)
    while now <= end:
        got = fairness.permits(tat, now, rate, burst)
        assert got
        tat = fairness.take_permits(tat, now, rate, got)
        moments += [now] * got
        late = draw.choice([0, 50_000, draw.randint(0, 50_000)])
        now = fairness.next_permit_us(tat, now, rate, burst) + late
    earliest = float("-inf")
    for number, moment in enumerate(moments):
        due = rate * (moment - NOW) / 1_000_000
        earliest = max(earliest, due - number)
        assert number + 1 - due + earliest <= burst + 1e-6
    assert len(moments) >= 0.9975 * rate * (end - NOW) / 1_000_000 - 1


def test_next_permit_is_the_first_time_that_admits_a_delivery() -> None:
    """One microsecond earlier, no delivery is admitted."""
    draw = random.Random(7)
    for _ in range(2_000):
        rate, burst = draw.choice([0.3, 2, 17, 999, 10_000]), draw.choice([1, 1.25, 2.5, 4, 9])
        tat = fairness.take_permits(0, NOW, rate, draw.randint(1, int(burst)))
        at = fairness.next_permit_us(tat, NOW, rate, burst)
        assert fairness.permits(tat, at, rate, burst) >= 1
        if at > NOW:
            assert fairness.permits(tat, at - 1, rate, burst) == 0


@pytest.mark.parametrize("rate", [3, 50, 1_000])
@pytest.mark.parametrize("burst", [1, 2.5, 40, 500])
def test_a_rate_holds_with_costs(rate: float, burst: float) -> None:
    """Costs up to the burst exceed it in no time; larger ones are paid for afterwards."""
    draw = random.Random(f"{rate}/{burst}")
    tat, now = 0, NOW
    taken: list[tuple[int, int]] = []
    while now < NOW + 30_000_000:
        cost = draw.choice([1, max(1, int(burst)), int(burst) + 7, 2])
        now = fairness.next_permit_us(tat, now, rate, burst, cost)
        assert fairness.admits(tat, now, rate, burst, cost)
        assert now == NOW or not fairness.admits(tat, now - 1, rate, burst, cost) or not taken
        tat = fairness.take_permits(tat, now, rate, cost)
        assert fairness.rebase(tat, now, rate, burst, cost) == tat
        taken.append((now, cost))
    seconds = (taken[-1][0] - NOW) / 1_000_000
    used = sum(cost for _, cost in taken[:-1])
    assert used <= rate * seconds + burst + 1e-6
    assert used >= 0.99 * rate * seconds - burst - 8


def test_costs_under_several_rates_at_once() -> None:
    """Each delivery conforms to all of them; the answer names those that stop the next one."""
    clocks = [(0, 10.0, 30.0), (0, 10.0, 50.0)]
    assert fairness.admitted(clocks, NOW, [20, 10, 5]) == (2, [True, False])
    assert fairness.admitted(clocks, NOW, [20, 10]) == (2, [False, False])
    assert fairness.admitted(clocks, NOW, [60, 1]) == (1, [True, True])
    assert fairness.admitted([], NOW, [7, 7]) == (2, [])


def test_after_a_raise_the_next_permit_is_at_most_one_new_interval_away() -> None:
    """The wait that the old rate caused is dropped."""
    tat = fairness.take_permits(0, NOW, 0.01, 1)
    tat = fairness.rebase(tat, NOW, 100, 1)
    assert fairness.next_permit_us(tat, NOW, 100, 1) <= NOW + 10_000


def test_shares_hold_exactly_for_any_size_of_call() -> None:
    """6 : 3 : 1 over 1,000 deliveries, leased one at a time or in batches."""
    shares = {"high": 6.0, "mid": 3.0, "low": 1.0}
    for size in (1, 2, 7, 100):
        carry = dict.fromkeys(shares, 0)
        total = dict.fromkeys(shares, 0)
        for _ in range(0, 2_000, size):
            given = fairness.split(size, shares, carry)
            carry = fairness.carries(shares, carry, given, shares)
            assert sum(given.values()) == size
            for tier, number in given.items():
                total[tier] += number
        everything = sum(total.values())
        assert {tier: round(number / everything, 2) for tier, number in total.items()} == {
            "high": 0.6,
            "mid": 0.3,
            "low": 0.1,
        }


def test_what_a_tier_without_work_cannot_keep_is_of_those_with_work() -> None:
    """So the carries add up to nothing, and after a long wait the tier is the next."""
    shares = {"high": 6.0, "mid": 3.0, "low": 1.0}
    carry = dict.fromkeys(shares, 0)
    for _ in range(1_000):
        given = fairness.split(1, {"high": 6.0, "low": 1.0}, carry)
        carry = fairness.carries(shares, carry, given, {"high", "low"})
    assert abs(sum(carry.values())) < fairness.CARRY_SCALE / 100
    assert carry["mid"] == fairness.CARRY_SCALE
    assert fairness.split(1, shares, carry) == {"high": 0, "mid": 1, "low": 0}


def test_small_weights_are_exact_and_the_largest_still_advances() -> None:
    """A lane of weight 3 pays exactly a third."""
    for weight in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10):
        assert fairness.stride(1, weight) * weight == fairness.VT_SCALE
    assert fairness.stride(1, 1000) >= 1
