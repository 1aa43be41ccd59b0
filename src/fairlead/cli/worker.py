"""`fairlead worker`: handle messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from fairlead.cli.loading import load_app
from fairlead.cli.session import Session, pass_session, say
from fairlead.safetext import redacted
from fairlead.working.logs import Style

if TYPE_CHECKING:
    from fairlead import Fairlead

LEVELS = ("debug", "info", "warning", "error")


@click.command(short_help="Handle the messages of an application.")
@click.argument("target", metavar="MODULE:APP")
@click.option("-c", "--concurrency", type=click.IntRange(1), default=100, show_default=True, help="Most handlers at once, in each process.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Whole workers under a supervisor.")
@click.option("--pool", default="default", show_default=True, help="Which topics' pool to serve.")
@click.option("--topics", help="Serve only these, strictly in this order: high,low.")
@click.option("--burst", is_flag=True, help="End when nothing is left to run now.")
@click.option("--grace", default="30s", show_default=True, help="How long running handlers may go on after SIGTERM.")
@click.option("--reload", is_flag=True, help="Begin anew when a source file changes (development).")
@click.option("-l", "--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-json", is_flag=True, help="One JSON object a line.")
@pass_session
def worker(
    session: Session, target: str, *, concurrency: int, processes: int, pool: str, topics: str | None, burst: bool, grace: str, reload: bool,
    log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Handle the messages of an application's topics until SIGTERM or Ctrl-C."""
    Style(logging.getLevelNamesMapping()[log_level.upper()], log_json).apply()
    app = load_app(target)
    _refuse_other_store(session, app)
    named = None if topics is None else [topic.strip() for topic in topics.split(",") if topic.strip()]
    summary = app.run_worker(concurrency=concurrency, processes=processes, pool=pool, topics=named, burst=burst, grace=grace, reload=reload)
    if burst:
        say(f"{summary.acked:,} done, {summary.retried:,} to be retried, {summary.died:,} dead")


def _refuse_other_store(session: Session, app: Fairlead) -> None:
    """The application names its store and namespace itself; a worker that silently served another would be found out late."""
    if session.url is not None and session.url != app.url:
        raise click.UsageError(
            f"the application uses {redacted(app.url)}, --url or FAIRLEAD_URL says {redacted(session.url)}; leave it out, or change the application"
        )
    if session.namespace_given and session.namespace != app.namespace:
        raise click.UsageError(
            f"the application lives in {app.namespace}, --namespace says {session.namespace}; leave it out, or change the application"
        )
