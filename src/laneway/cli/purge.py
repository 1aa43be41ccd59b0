"""`laneway purge`: remove the waiting messages of a topic."""

from __future__ import annotations

import click

from laneway.cli.session import Session, confirm, pass_session, say
from laneway.units import counted


@click.command()
@click.argument("topic")
@click.option(
    "--delete", is_flag=True, help="Also remove leases, dead letters, known ids and counters."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def purge(session: Session, topic: str, *, delete: bool, yes: bool) -> None:
    """Remove the waiting messages of TOPIC; leased messages stay."""
    handle = session.app().topic(topic)
    stats = handle.stats()
    if not yes:
        what = counted(stats.waiting, "waiting message")
        if delete:
            what += f", {stats.leased:,} leased and {stats.dead:,} dead"
        confirm(f"Remove {what} of {topic}?")
    number = handle.delete() if delete else handle.purge()
    say(f"{number:,} removed from {topic}")
