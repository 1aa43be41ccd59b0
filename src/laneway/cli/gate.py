"""`laneway gate`: limits that many topics share."""

from __future__ import annotations

import click

from laneway.cli.session import Session, json_option, pass_session, print_json, say, table


@click.group()
def gate() -> None:
    """Show and change gates."""


@gate.command("list")
@json_option
@pass_session
def list_gates(session: Session, *, as_json: bool) -> None:
    """Every gate, its limits, and how many topics wait at it."""
    found = session.engine().gate_list()
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            each["rate"],
            each["burst"] and f"{each['burst']:g}",
            each["concurrency"],
            each["leased"],
            each["waiting"],
        )
        for each in found
    ]
    table(
        ("gate", "per s", "burst", "concurrency", "leased", "topics waiting"),
        rows,
        empty="no gates are defined",
    )


@gate.command("set")
@click.argument("name")
@click.option("--rate", help="Deliveries per second: 100, 100/s, 600/m.")
@click.option(
    "--burst",
    type=int,
    help="Deliveries at once after a pause; default: 1 + a twentieth of the rate.",
)
@click.option("--concurrency", type=int, help="Most leases at once.")
@pass_session
def set_gate(
    session: Session, name: str, *, rate: str | None, burst: int | None, concurrency: int | None
) -> None:
    """Define or change a gate as the operator; it stands above the code's."""
    from laneway.policy import Gate

    if rate is None and concurrency is None:
        raise click.UsageError("a gate limits something: give --rate, --concurrency or both")
    session.engine(create=True).gate_set(
        name, Gate.of(name, rate, burst, concurrency), layer="operator"
    )
    say(f"gate {name} is set")
