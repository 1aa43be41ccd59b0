"""`laneway pause` and `laneway resume`."""

from __future__ import annotations

import click

from laneway.admin import policies
from laneway.cli.session import Session, pass_session, say


@click.command(short_help="Stop delivery from the topics of PATTERN.")
@click.argument("pattern")
@pass_session
def pause(session: Session, pattern: str) -> None:
    """Stop delivery from the topics of PATTERN; they still accept messages."""
    session.engine_for(pattern).policy_set("operator", pattern, {"paused": True})
    say(f"{pattern} is paused: it accepts messages; deliver them with `laneway resume {pattern}`")


@click.command()
@click.argument("pattern")
@pass_session
def resume(session: Session, pattern: str) -> None:
    """Deliver from the topics of PATTERN again."""
    policies.resume(session.engine_for(pattern), pattern)
    say(f"{pattern} is no longer paused")
