"""`laneway purge`: remove the waiting messages of a topic."""

from __future__ import annotations

import click

from laneway.cli.session import Session, confirm, pass_session, say


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
        also = f", {stats.leased:,} leased and {stats.dead:,} dead" if delete else ""
        confirm(f"Remove {stats.waiting:,} waiting{also} messages of {topic}?")
    number = handle.delete() if delete else handle.purge()
    say(f"{number:,} removed from {topic}")
