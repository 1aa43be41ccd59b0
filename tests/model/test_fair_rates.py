"""The fair rates of topics, compared with cases that are computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fairness.cases import draw_case
from tests.model.fair_rates import Gate, Group, System, Tier, Topic, fair_rates

SPECIFICATION = Path(__file__).parents[2] / "docs" / "specification.md"

FAST = 0.05
"""Seconds of a handler: one slot handles 20 messages a second."""


def rates(system: System) -> Any:
    """The rates, to compare with expected ones."""
    return pytest.approx(fair_rates(system), rel=1e-3)


def a_topic(name: str, *gates: str, seconds: float = FAST, **fields: object) -> Topic:
    return Topic(name, seconds, gates=gates, **fields)  # type: ignore[arg-type]


def test_a_rate_and_a_concurrency() -> None:
    """The topic at both gates gets half of the narrow one; the others get the rest of each."""
    topics = [a_topic("a", "A"), a_topic("b", "B"), a_topic("ab", "A", "B")]
    gates = {"A": Gate(rate=10), "B": Gate(concurrency=1)}
    assert rates(System(topics, 10, gates)) == {"a": 5, "b": 15, "ab": 5}


def test_a_groups_concurrency_beside_a_gate() -> None:
    topics = [a_topic("h1", group="H"), a_topic("h2", "A", group="H"), a_topic("a", "A")]
    system = System(topics, 10, {"A": Gate(rate=10)}, {"H": Group(concurrency=1)})
    assert rates(system) == {"h1": 15, "h2": 5, "a": 5}


def test_what_a_group_uses_elsewhere_does_not_count_at_a_gate() -> None:
    """A group's busy topic takes nothing from its topic at a gate."""
    topics = [a_topic("h1", group="H"), a_topic("h2", "A", group="H"), a_topic("x", "A")]
    assert rates(System(topics, 5, {"A": Gate(rate=10)})) == {"h1": 90, "h2": 5, "x": 5}


def test_the_example_of_the_specification() -> None:
    section = SPECIFICATION.read_text().partition("\n## Fair rates\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:3] == "| `"]
    written = {row[0].strip("`"): float(row[-1]) for row in rows}
    topics = [
        a_topic("acme.mail", group="acme"),
        a_topic("acme.crm", "crm", group="acme"),
        a_topic("globex.crm", "crm"),
        a_topic("reports", rate=2),
    ]
    system = System(topics, 10, {"crm": Gate(rate=10)}, {"acme": Group(concurrency=1)})
    assert rates(system) == written


def test_weights_costs_and_own_limits() -> None:
    """
    Weights count messages: of 12 permits a message of cost 2 and one of cost 1 with weight 2 use 4.
    """
    topics = [a_topic("c", "A", cost=2), a_topic("w", "A", weight=2)]
    assert rates(System(topics, 10, {"A": Gate(rate=12)})) == {"c": 3, "w": 6}
    topics.append(a_topic("own", "A", rate=1))
    assert rates(System(topics, 10, {"A": Gate(rate=12)})) == {"c": 2.75, "w": 5.5, "own": 1}


def test_own_concurrency_and_keys() -> None:
    """Alone, a topic gets what its own limits admit."""
    topics = [
        a_topic("one", concurrency=1),
        a_topic("serial", keys=3, is_serial=True),
        a_topic("slots", keys=2, key_concurrency=2),
        a_topic("rated", keys=4, key_rate=0.5),
        a_topic("least", rate=6, cost=3, keys=1, is_serial=True),
        a_topic("asks", most=1.5),
    ]
    due = {"one": 20, "serial": 60, "slots": 80, "rated": 2, "least": 2, "asks": 1.5}
    assert rates(System(topics, 100)) == due


def test_a_group_is_one_entry_of_each_tier_at_a_gate() -> None:
    """Whatever the number of its topics."""
    topics = [a_topic(name, "A", group="G", tier=name) for name in ("high", "low")]
    topics += [a_topic("x", "A"), a_topic("y", "A", group="H")]
    system = System(topics, 100, {"A": Gate(rate=12)}, tiers={"high": Tier(6), "low": Tier(1)})
    assert rates(system) == {"high": 3, "low": 3, "x": 3, "y": 3}
    weighted = System(topics, 100, {"A": Gate(rate=12)}, {"G": Group(weight=4)}, system.tiers)
    assert rates(weighted) == {"high": 4.8, "low": 4.8, "x": 1.2, "y": 1.2}


def test_partitions_are_entries() -> None:
    topics = [a_topic("p", "A", partitions=3), a_topic("x", "A")]
    assert rates(System(topics, 100, {"A": Gate(rate=12)})) == {"p": 9, "x": 3}


def test_tiers_share_the_slots() -> None:
    """By messages; what a tier does not use goes to the others by their shares."""
    tiers = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}
    topics = [a_topic(name, tier=name) for name in tiers]
    assert rates(System(topics, 5, tiers=tiers)) == {"high": 60, "mid": 30, "low": 10}
    topics[0] = a_topic("high", tier="high", rate=20)
    assert rates(System(topics, 5, tiers=tiers)) == {"high": 20, "mid": 60, "low": 20}


def test_a_tier_that_is_fair_by_time() -> None:
    """Its topics get equal worker time; the tier gets messages by its share."""
    tiers = {"mid": Tier(1), "low": Tier(1, "time")}
    topics = [
        a_topic("m", tier="mid", seconds=0.2),
        a_topic("short", tier="low", seconds=0.1),
        a_topic("long", tier="low", seconds=0.3),
    ]
    assert rates(System(topics, 7, tiers=tiers)) == {"m": 20, "short": 15, "long": 5}


def test_a_strict_tier_takes_the_slots_first() -> None:
    """And at gates; the other tiers compete there as one."""
    tiers = {"vip": Tier("strict"), "mid": Tier(1)}
    topics = [a_topic("v", "A", tier="vip"), a_topic("m", "A"), a_topic("x")]
    gates = {"A": Gate(rate=10)}
    assert rates(System(topics, 1, gates, tiers=tiers)) == {"v": 10, "m": 0, "x": 10}
    assert rates(System([topics[0], topics[2]], 1, tiers=tiers)) == {"v": 20, "x": 0}


def test_limits_in_a_circle() -> None:
    """
    Each limit waits for the other one: the group's rate for `u`, and the slots for `t`.

    `u` and `v` share what `t` leaves, and `t` gets what `u` leaves of the group's rate.
    """
    tiers = {"high": Tier(4), "low": Tier(1)}
    topics = [
        a_topic("t", tier="high", group="G"),
        a_topic("u", tier="low", group="G", weight=3),
        a_topic("v", tier="low"),
    ]
    system = System(topics, 2, groups={"G": Group(rate=30)}, tiers=tiers)
    assert fair_rates(system) == pytest.approx({"t": 20, "u": 10, "v": 10}, rel=0.01)


def test_limits_that_disagree() -> None:
    """Two allocations are fair; each topic gets what it has in both of them."""
    topics = [
        a_topic("t", "A", tier="high", weight=1),
        a_topic("u", "A", tier="low", weight=5),
    ]
    tiers = {"high": Tier(5), "low": Tier(1)}
    found = fair_rates(System(topics, 1, {"A": Gate(rate=20)}, tiers=tiers))
    assert found == pytest.approx({"t": 20 / 6, "u": 20 / 6}, rel=1e-2)


def test_a_topic_without_limits_uses_the_slots_that_are_left() -> None:
    """The rates of many topics depend on each other here."""
    system = draw_case(222).system
    used = sum(fair_rates(system)[topic.name] * topic.seconds for topic in system.topics)
    assert used == pytest.approx(system.slots)
