"""`laneway topic-group`: the weights and limits of topic groups."""

from __future__ import annotations

import click

from laneway.cli.gate import LIMIT_COLUMNS, limit_cells
from laneway.cli.session import Session, json_option, pass_session, say, show_list
from laneway.policy import Gate


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
