"""`laneway tier`: the shares of service classes, and the operator's changes to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    say,
    show_list,
)
from laneway.tiers import Tier, TierLayers, check_tiers


@click.group(short_help="Show and change tiers and their shares.")
def tier() -> None:
    """Show and change tiers: service classes of topics, each with a share of the deliveries."""


@tier.command("list")
@json_option
@pass_session
def list_tiers(session: Session, *, as_json: bool) -> None:
    """List tiers with their shares, who set them, and which is the default."""
    columns = ("tier", "share", "part", "fair_by", "reserve", "set_by", "note")
    show_list(
        list(_rows(session.engine().tier_layers())),
        [name.replace("_", " ") for name in columns],
        lambda row: [row[name] for name in columns],
        as_json=as_json,
    )


def _rows(layers: TierLayers) -> Iterator[dict[str, Any]]:
    found = layers.in_force()
    total = sum(float(tier.share) for tier in found.values() if tier.share != "strict")
    for name, tier in found.items():
        yield {
            "tier": name,
            "share": tier.share if isinstance(tier.share, str) else f"{tier.share:g}",
            "part": (
                "before all others" if isinstance(tier.share, str) else f"{tier.share / total:.1%}"
            ),
            "fair_by": tier.fair_by,
            "reserve": f"{tier.reserve:g}",
            "set_by": "operator" if name in layers.operator else "code",
            "note": "default" if name == found.default else "",
        }
    for name in layers.operator:
        if name not in found:
            yield {
                "tier": name,
                "share": "-",
                "part": "-",
                "fair_by": "-",
                "reserve": "-",
                "set_by": "operator",
                "note": "removed",
            }


@tier.command("set", short_help="Set a tier's share as the operator.")
@click.argument("name")
@click.argument("share")
@click.option(
    "--fair-by",
    type=click.Choice(("messages", "time")),
    help="What its topics share equally. [default: unchanged; messages for a new tier]",
)
@click.option(
    "--reserve",
    type=float,
    metavar="PART",
    help="The part of each worker's slots that only its messages may take, such as 0.2."
    " [default: unchanged; 0 for a new tier]",
)
@pass_session
def set_tier(
    session: Session, name: str, share: str, fair_by: str | None, reserve: float | None
) -> None:
    """
    Set the share of tier NAME: a number, or "strict" (served before all others). A new name adds a
    tier.

    This overrides what code declares. All workers obey at their next lease.
    """
    engine = session.engine(create=True)
    before = engine.tier_layers().in_force().get(name, Tier())
    by = fair_by or before.fair_by
    part = before.reserve if reserve is None else reserve
    engine.tier_set("operator", check_tiers({name: Tier(_share(share), by, part)}))  # type: ignore[arg-type]  # click has checked it
    say(f"tier {name} is set")


def _share(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


@tier.command("remove", short_help="Remove a tier as the operator.")
@click.argument("name")
@pass_session
def remove(session: Session, name: str) -> None:
    """Remove tier NAME. Refused for the default tier, and while a policy names it."""
    engine = session.engine()
    if name not in engine.tier_layers().in_force():
        exit_with(f"there is no tier {name}", REFUSED)
    engine.tier_set("operator", {name: None})
    say(f"tier {name} is removed")


@tier.command("reset", short_help="Remove what the operator set.")
@click.argument("name", required=False)
@pass_session
def reset(session: Session, name: str | None) -> None:
    """
    Remove what the operator set for tier NAME, or for all tiers; what code declares holds again.
    """
    if not session.engine().tier_reset(name):
        exit_with("the operator has set nothing" + (f" for tier {name}" if name else ""), REFUSED)
    say(f"the operator's settings {f'of tier {name} ' if name else ''}are removed")
