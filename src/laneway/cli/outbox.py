"""`laneway outbox`: the tables in a user's own database, and forwarding what is in them."""

from __future__ import annotations

import time
from contextlib import closing

import click

from laneway.cli.session import Session, json_option, pass_session, print_json, say
from laneway.presenting import duration
from laneway.printable import redacted
from laneway.producing.forwarder import Forwarder
from laneway.producing.outbox_source import OutboxSource
from laneway.units import counted

LOOK_SECONDS = 0.2
"""How often `forward --drain` looks whether messages wait, in seconds."""


@click.group()
def outbox() -> None:
    """Create, show and forward the outbox in a database of your own."""


@outbox.command()
@click.argument("database")
@pass_session
def create(session: Session, database: str) -> None:
    """Create the tables in DATABASE, such as postgresql://user@host/name or sqlite:///app.db."""
    with closing(OutboxSource(database, session.namespace)) as source:
        source.create()
    say(f"the tables of the outbox are in {redacted(database)}")


@outbox.command()
@click.argument("database")
@json_option
@pass_session
def status(session: Session, database: str, *, as_json: bool) -> None:
    """Show what waits in the outbox of DATABASE. No store is opened."""
    with closing(OutboxSource(database, session.namespace)) as source:
        held = source.status()
    if as_json:
        print_json(held)
        return
    say(f"{counted(held.waiting, 'message')} waiting for namespace {held.namespace}")
    if held.oldest_at is not None:
        say(f"  oldest      published {duration(max(0.0, time.time() - held.oldest_at))} ago")
    say(f"  forwarder   {held.forwarder or 'none runs'}")
    if held.error is not None:
        say(f"  last error  {held.error}")
    if held.rejected:
        say(f"  rejected    {held.rejected:,}; the column reason of laneway_outbox has the reasons")


@outbox.command()
@click.argument("database")
@click.option("--drain", is_flag=True, help="Exit when no message waits.")
@pass_session
def forward(session: Session, database: str, *, drain: bool) -> None:
    """
    Forward the outbox of DATABASE to the store (--url) until it is stopped.

    The workers of an application with Laneway(outbox=…) do the same.
    """
    app = session.app(create=True)
    _ = app.engine  # a store that is away is an error now
    with closing(OutboxSource(database, app.namespace)) as source:
        waiting = source.status().waiting  # an error now, too
        forwarder = Forwarder(
            OutboxSource(database, app.namespace), app.runtime.holder, app.runtime.unsent
        )
        forwarder.start()
        try:
            while waiting or not drain:
                time.sleep(LOOK_SECONDS)
                waiting = source.status().waiting if drain else 0
        finally:
            forwarder.stop()
    say("nothing waits")
