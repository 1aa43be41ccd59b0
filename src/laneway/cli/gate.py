"""`laneway gate` and `laneway topic-group`: limits that many topics share, and weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from laneway.cli.session import Session, json_option, pass_session, say, show_list
from laneway.policy import Gate

LIMIT_COLUMNS = ("per s", "burst", "concurrency", "leased", "topics waiting")


def limit_cells(each: Mapping[str, Any]) -> tuple[Any, ...]:
    """The cells of `LIMIT_COLUMNS` for a gate or a topic group."""
    rate, burst = (each[name] and f"{each[name]:,.10g}" for name in ("rate", "burst"))
    return rate, burst, each["concurrency"], each["leased"], each["waiting"]


@click.group()
def gate() -> None:
    """Show and change gates: limits that several topics share."""


@gate.command("list")
@json_option
@pass_session
def list_gates(session: Session, *, as_json: bool) -> None:
    """List gates with their limits and the number of topics that wait at each."""
    show_list(
        session.engine().gate_list(),
        ("gate", *LIMIT_COLUMNS),
        lambda each: (each["name"], *limit_cells(each)),
        as_json=as_json,
        empty="no gates are defined",
    )


@gate.command("set")
@click.argument("name")
@click.option("--rate", help="Deliveries per second: 100, 100/s, 600/m.")
@click.option(
    "--burst",
    type=int,
    help="Deliveries in one burst after a pause; default: 1 + a twentieth of the rate.",
)
@click.option("--concurrency", type=int, help="Maximum number of concurrent leases.")
@click.option(
    "--max-cost",
    type=int,
    help="Maximum cost of a message; default: what the rate produces in 60 s, but at least the "
    "burst.",
)
@pass_session
def set_gate(
    session: Session,
    name: str,
    *,
    rate: str | None,
    burst: int | None,
    concurrency: int | None,
    max_cost: int | None,
) -> None:
    """Define or change a gate as the operator; this overrides what code declares."""
    if rate is None and concurrency is None:
        raise click.UsageError("a gate needs a limit: give --rate, --concurrency or both")
    session.engine(create=True).gate_set(
        name, Gate.of(name, rate, burst, concurrency, max_cost), layer="operator"
    )
    say(f"gate {name} is set")


@gate.command("reset", short_help="Open a gate that owes permits.")
@click.argument("name")
@pass_session
def reset_gate(session: Session, name: str) -> None:
    """
    Open a gate that owes permits, such as after a message of a high cost.

    Its rate has the whole burst again. Its leases stay.
    """
    if not session.engine().gate_reset(name):
        raise click.UsageError(f'there is no gate "{name}"; `laneway gate list` lists them')
    say(f"gate {name} is reset")


@click.group("topic-group")
def topic_group() -> None:
    """
    Show and change the weights and limits of topic groups.

    The policy field `group` puts topics into a group. Not the group of a flow.
    """


@topic_group.command("list")
@json_option
@pass_session
def list_topic_groups(session: Session, *, as_json: bool) -> None:
    """List the topic groups that have settings."""
    show_list(
        session.engine().topic_group_list(),
        ("group", "weight", *LIMIT_COLUMNS),
        lambda each: (each["name"], f"{each['weight']:g}", *limit_cells(each)),
        as_json=as_json,
        empty="no topic group has settings",
    )


@topic_group.command("set")
@click.argument("name")
@click.option("--weight", type=float, help="Share in its tier; default 1.")
@click.option("--rate", help="Deliveries per second of all its topics: 100, 100/s, 600/m.")
@click.option(
    "--burst",
    type=int,
    help="Deliveries in one burst after a pause; default: 1 + a twentieth of the rate.",
)
@click.option(
    "--concurrency", type=int, help="Maximum number of concurrent leases of all its topics."
)
@pass_session
def set_topic_group(
    session: Session,
    name: str,
    *,
    weight: float | None,
    rate: str | None,
    burst: int | None,
    concurrency: int | None,
) -> None:
    """Set the operator's settings of a group; each option overrides what the code declares."""
    if weight is None and rate is None and concurrency is None:
        raise click.UsageError("give --weight, --rate, --concurrency, or several of them")
    settings = Gate.of_group(name, rate, burst, concurrency, weight)
    session.engine(create=True).topic_group_set(name, settings, layer="operator")
    say(f"topic group {name} is set")


@topic_group.command("reset")
@click.argument("name")
@pass_session
def reset_topic_group(session: Session, name: str) -> None:
    """Remove what an operator set for a group; what code declares applies again."""
    session.engine().topic_group_set(name, Gate(), layer="operator")
    say(f"topic group {name} has no settings of an operator")
