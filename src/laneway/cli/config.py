"""`laneway config`: the store that commands use, and what chose it."""

from __future__ import annotations

import click

from laneway.cli.session import Session, json_option, pass_session, print_json, say
from laneway.config import choose_store
from laneway.printable import redacted


@click.group()
def config() -> None:
    """Show which store a command uses."""


@config.command("show")
@json_option
@pass_session
def show(session: Session, *, as_json: bool) -> None:
    """Show the store that commands use here, what chose it, and what it overrides."""
    store = choose_store(session.url, None)
    if as_json:
        passed_over = [
            {"url": redacted(url), "source": source} for source, url in store.passed_over
        ]
        print_json(
            {
                "url": redacted(store.url),
                "source": store.source,
                "passed_over": passed_over,
                "namespace": session.namespace,
            }
        )
        return
    say(f"store      {redacted(store.url)} ({store.source})")
    for source, url in store.passed_over:
        say(f"           ignored: {redacted(url)} ({source})")
    say(f"namespace  {session.namespace}")
