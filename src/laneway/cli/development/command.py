"""`laneway dev`: everything that a program needs during its development, in one terminal."""

from __future__ import annotations

import os

import click

from laneway.cli.session import Session, pass_session
from laneway.config import DEV_URL

EXAMPLES = """\b
Examples:
  laneway dev shop:app                     worker, schedules and gateway; reloads on change
  laneway dev                              the gateway alone
  laneway dev shop:app --sink 8000         also a receiver of webhooks, with switches
"""


@click.command(short_help="Run a program and the gateway; reload on change.", epilog=EXAMPLES)
@click.argument("target", metavar="[MODULE[:APP]]", required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=7878,
    show_default=True,
    help="The gateway's port, or the next free one; 0 for any free port.",
)
@click.option(
    "--sink",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Receive webhooks on this local port, and show them on a page.",
)
@click.option("--pool", default="default", show_default=True, help="The pool to serve.")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Maximum number of concurrent handlers.",
)
@click.option(
    "--no-login",
    is_flag=True,
    help="Accept all users of this machine, and programs without a token.",
)
@pass_session
def dev(
    session: Session,
    target: str | None,
    *,
    port: int,
    sink: int | None,
    pool: str,
    concurrency: int,
    no_login: bool,
) -> None:
    """
    Run an application's worker, its schedules and the gateway in one terminal.

    The store is sqlite:///laneway-dev.db unless --url or $LANEWAY_URL names another one, even if
    the code names one. The URL that is shown logs one browser in, once; o in the terminal opens it
    with a new login. When a source file changes, the program is loaded again; if that fails, the
    error is shown and the old code keeps running.
    """
    from laneway.cli.development.session import DevSession, Setup

    url, source = _store(session)
    namespace = session.namespace if session.namespace_given else None
    setup = Setup(
        target=target,
        url=url,
        store_source=source,
        namespace=namespace,
        port=port,
        pool=pool,
        concurrency=concurrency,
        sink=sink,
        has_login=not no_login,
    )
    DevSession(setup).run()


def _store(session: Session) -> tuple[str, str]:
    """The store's URL, and what named it."""
    if session.url is not None:
        return session.url, "option --url"
    url = os.environ.get("LANEWAY_URL")
    return (url, "environment LANEWAY_URL") if url else (DEV_URL, "the default of dev")
