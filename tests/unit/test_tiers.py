"""Tiers in their layers: what is in force, which is the default, and what cannot go."""

from __future__ import annotations

import pytest

from laneway import Laneway
from laneway.errors import BadPolicy, UsageError
from laneway.tiers import Tier, TierLayers, Tiers, moves_lanes, share_text

THREE = {"high": Tier(6), "mid": Tier(3), "low": Tier(1)}
TWO = {"vip": Tier(6), "rest": Tier(1)}


def nobody(_: str) -> None:
    """No policy names any tier."""


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
def test_the_default_is_the_stated_one_else_mid_else_the_last(
    tiers: dict[str, Tier] | None, stated: str | None, default: str
) -> None:
    assert TierLayers.new(tiers, stated).in_force().default == default


def test_a_default_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadPolicy, match='there is no tier "gold"; there are: vip, rest'):
        TierLayers.new(TWO, "gold")
    with pytest.raises(BadPolicy, match='there is no tier "gold"'):
        Laneway("sqlite://", tiers={"vip": 6, "rest": 1}, default_tier="gold")
    with pytest.raises(UsageError, match="default_tier"):
        Laneway("sqlite://", default_tier=3)  # type: ignore[arg-type]


def test_an_operators_setting_precedes_the_codes_and_is_reset() -> None:
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
def test_the_default_and_what_a_policy_names_cannot_be_removed(layer: str) -> None:
    layers = TierLayers.new(THREE, None)
    with pytest.raises(BadPolicy, match='"mid" cannot be removed: it is the default'):
        layers.change(layer, {"mid": None}, nobody)
    with pytest.raises(BadPolicy, match=r'"low" cannot be removed: policy push\.\* names it'):
        layers.change(layer, {"low": None}, only("low"))  # type: ignore[arg-type]
    assert list(layers.change(layer, {"low": None}, nobody).in_force()) == ["high", "mid"]
    assert layers.change(layer, {"nothing": None}, nobody) is layers


def test_what_the_operator_added_cannot_be_reset_while_a_policy_names_it() -> None:
    layers = TierLayers.new(THREE, None).change("operator", {"gold": Tier(1)}, nobody)
    with pytest.raises(BadPolicy, match="gold"):
        layers.reset(None, only("gold"))  # type: ignore[arg-type]


def test_adding_a_tier_moves_no_default() -> None:
    layers = TierLayers.new(TWO, None).change("code", {"last": Tier(1), "mid": Tier(1)}, nobody)
    assert layers.in_force().default == "rest"


def test_the_last_program_that_declares_other_tiers_sets_the_codes_layer() -> None:
    """The same declaration again changes nothing, so that changes made since stay."""
    layers = TierLayers.new(THREE, None).change("code", {"high": Tier(7)}, nobody)
    assert layers.declare(THREE, None, nobody) is layers
    assert layers.declare(None, None, nobody) is layers
    other = layers.declare(TWO, None, nobody)
    assert (other.in_force(), other.in_force().default) == (TWO, "rest")
    assert other.declare(TWO, "vip", nobody).in_force().default == "vip"
    back = other.declare(THREE, None, nobody)
    assert (back.in_force(), back.in_force().default) == (THREE, "mid")


def test_a_tier_that_is_declared_no_more_stays_while_a_policy_names_it() -> None:
    layers = TierLayers.new(THREE, None).declare(TWO, None, only("high"))  # type: ignore[arg-type]
    assert list(layers.in_force()) == ["vip", "rest", "high"]


def test_a_program_may_state_the_default_alone() -> None:
    layers = TierLayers.new(THREE, None).declare(None, "low", nobody)
    assert (layers.in_force(), layers.in_force().default) == (THREE, "low")
    with pytest.raises(BadPolicy, match="gold"):
        layers.declare(None, "gold", nobody)


def test_the_record_is_read_as_it_was_written_and_as_it_was_before_there_were_layers() -> None:
    layers = TierLayers.new({"a": Tier("strict"), "b": Tier(2.5, "time")}, "a").change(
        "operator", {"b": None}, nobody
    )
    assert TierLayers.read(layers.json()) == layers
    old = TierLayers.read(
        '[["high", {"share": 6, "fair_by": "messages"}], ["last", {"share": "strict"}]]'
    )
    assert old.in_force() == {"high": Tier(6.0), "last": Tier("strict")}
    assert old.in_force().default == "last"


def test_lanes_move_where_a_tier_goes_or_another_is_the_default() -> None:
    three = Tiers(THREE)
    assert not moves_lanes(three, Tiers({**THREE, "gold": Tier(1), "high": Tier(1)}))
    assert moves_lanes(three, Tiers(THREE, "low"))
    assert moves_lanes(three, Tiers({"high": Tier(6), "mid": Tier(3)}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("high", "share 6 of 10"),
        ("vip", "strict: before all others"),
        ("none", "no such tier any more"),
    ],
)
def test_text_of_a_tier(name: str, text: str) -> None:
    assert share_text({**THREE, "vip": Tier("strict")}, name) == text


@pytest.mark.parametrize(
    "changes", [{"": 1}, {"a\n": 1}, {"x" * 101: 1}, {"a": 0}, {"a": "much"}, {"a": True}]
)
def test_wrong_tiers_are_refused_before_the_store_is_asked(changes: dict[str, object]) -> None:
    with pytest.raises(BadPolicy):
        Laneway("sqlite:////nowhere/at/all.db").tiers(changes)  # type: ignore[arg-type]
