"""Tiers in layers: which are in force, which is the default, and which cannot be removed."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import Laneway
from laneway.errors import BadPolicy, UsageError
from laneway.policy import Gate
from laneway.tiers import Tier, TierLayers, Tiers, check_tiers, moves_lanes, share_text

THREE = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}
TWO = {"vip": Tier(6), "rest": Tier(1)}


def nobody(_: str) -> None:
    """A `NamedBy`: no policy names a tier."""


def only(tier: str) -> object:
    return lambda name: "push.*" if name == tier else None


@pytest.mark.parametrize(
    ("tiers", "stated", "default"),
    [
        (None, None, "mid"),
        (THREE, None, "mid"),
        (TWO, None, "rest"),
        (TWO, "vip", "vip"),
        ({"a b/c!": Tier(1)}, None, "a b/c!"),
    ],
)
def test_default_tier_is_the_named_one_else_mid_else_the_last(
    tiers: dict[str, Tier] | None, stated: str | None, default: str
) -> None:
    assert TierLayers.new(tiers, stated).in_force().default == default


def test_default_tier_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadPolicy, match='there is no tier "gold"; available: vip, rest'):
        TierLayers.new(TWO, "gold")
    with pytest.raises(BadPolicy, match='there is no tier "gold"'):
        Laneway("sqlite://", tiers={"vip": 6, "rest": 1}, default_tier="gold")
    with pytest.raises(UsageError, match="default_tier"):
        Laneway("sqlite://", default_tier=3)  # type: ignore[arg-type]


def test_operators_tiers_precede_the_codes_and_can_be_reset() -> None:
    layers = TierLayers.new(THREE, None).change(
        "operator", {"high": Tier(9), "gold": Tier(2), "low": None}, nobody
    )
    layers = layers.change("code", {"high": Tier(7), "new": Tier(1)}, nobody)
    assert layers.in_force() == {"high": Tier(9), "mid": Tier(3), "new": Tier(1), "gold": Tier(2)}
    assert layers.reset("low", nobody).in_force()["low"] == Tier(1)
    assert layers.reset(None, nobody).in_force() == {
        "high": Tier(7),
        "mid": Tier(3),
        "low": Tier(1),
        "new": Tier(1),
    }
    plain = TierLayers.new(THREE, None)
    assert plain.reset(None, nobody) is plain


@pytest.mark.parametrize("layer", ["code", "operator"])
def test_default_tier_and_tiers_named_by_a_policy_cannot_be_removed(layer: str) -> None:
    layers = TierLayers.new(THREE, None)
    with pytest.raises(BadPolicy, match='"mid" cannot be removed: it is the default'):
        layers.change(layer, {"mid": None}, nobody)
    with pytest.raises(BadPolicy, match=r'"low" cannot be removed: policy push\.\* names it'):
        layers.change(layer, {"low": None}, only("low"))  # type: ignore[arg-type]
    assert list(layers.change(layer, {"low": None}, nobody).in_force()) == ["high", "mid"]
    assert layers.change(layer, {"nothing": None}, nobody) is layers


def test_operators_tier_cannot_be_reset_while_a_policy_names_it() -> None:
    layers = TierLayers.new(THREE, None).change("operator", {"gold": Tier(1)}, nobody)
    with pytest.raises(BadPolicy, match="gold"):
        layers.reset(None, only("gold"))  # type: ignore[arg-type]


def test_adding_a_tier_does_not_change_the_default() -> None:
    layers = TierLayers.new(TWO, None).change("code", {"last": Tier(1), "mid": Tier(1)}, nobody)
    assert layers.in_force().default == "rest"


def test_last_program_that_declares_other_tiers_sets_the_codes_layer() -> None:
    """The same declaration again changes nothing, so later changes stay."""
    layers = TierLayers.new(THREE, None).change("code", {"high": Tier(7)}, nobody)
    assert layers.declare(THREE, None, nobody) is layers
    assert layers.declare(None, None, nobody) is layers
    other = layers.declare(TWO, None, nobody)
    assert (other.in_force(), other.in_force().default) == (TWO, "rest")
    assert other.declare(TWO, "vip", nobody).in_force().default == "vip"
    back = other.declare(THREE, None, nobody)
    assert (back.in_force(), back.in_force().default) == (THREE, "mid")


def test_tier_that_is_no_longer_declared_stays_while_a_policy_names_it() -> None:
    layers = TierLayers.new(THREE, None).declare(TWO, None, only("high"))  # type: ignore[arg-type]
    assert list(layers.in_force()) == ["vip", "rest", "high"]


def test_program_may_name_only_the_default_tier() -> None:
    layers = TierLayers.new(THREE, None).declare(None, "low", nobody)
    assert (layers.in_force(), layers.in_force().default) == (THREE, "low")
    with pytest.raises(BadPolicy, match="gold"):
        layers.declare(None, "gold", nobody)


@pytest.mark.parametrize("reserve", [-0.1, 0.91, 1, 20, True, "0.2", None, float("nan")])
def test_reserve_is_a_part_of_the_slots(reserve: Any) -> None:
    with pytest.raises(BadPolicy, match="tiers: a: expected reserve to be a part of each worker's"):
        check_tiers({"a": Tier(1, reserve=reserve)})


def test_names_are_unicode() -> None:
    """No store can keep half of a surrogate pair."""
    with pytest.raises(BadPolicy, match=r"tier .*: expected a name of 1 to 100 characters"):
        check_tiers({"\ud800": 1})
    with pytest.raises(BadPolicy, match="expected a group's name"):
        Gate.of_group("\ud800", 5, None, None, None)


def test_stored_tiers_are_read_as_they_were() -> None:
    layers = TierLayers.new({"a": Tier("strict", reserve=0.2), "b": Tier(2.5, "time")}, "a").change(
        "operator", {"b": None}, nobody
    )
    assert TierLayers.read(layers.json()) == layers


def test_lanes_move_if_a_tier_is_removed_or_the_default_changes() -> None:
    three = Tiers(THREE)
    assert not moves_lanes(three, Tiers({**THREE, "gold": Tier(1), "high": Tier(1)}))
    assert moves_lanes(three, Tiers(THREE, "low"))
    assert moves_lanes(three, Tiers({"high": Tier(6), "mid": Tier(3)}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("high", "share 6 of 10"),
        ("vip", "strict: before all others"),
        ("none", "this tier no longer exists"),
    ],
)
def test_share_is_described_for_people(name: str, text: str) -> None:
    assert share_text({**THREE, "vip": Tier("strict")}, name) == text


@pytest.mark.parametrize(
    "changes", [{"": 1}, {"a\n": 1}, {"x" * 101: 1}, {"a": 0}, {"a": "much"}, {"a": True}]
)
def test_invalid_tiers_are_refused_before_the_store_is_called(changes: dict[str, object]) -> None:
    with pytest.raises(BadPolicy):
        Laneway("sqlite:////nowhere/at/all.db").tiers(changes)  # type: ignore[arg-type]
