"""`laneway worker`: handle messages."""

from __future__ import annotations

import logging

import click

from laneway import Laneway
from laneway.cli.loading import load_app
from laneway.cli.session import Session, pass_session, say
from laneway.working.log_format import LogStyle, TextLines

log = logging.getLogger("laneway.worker")

LEVELS = ("debug", "info", "warning", "error")


EXAMPLES = """\b
Examples:
  laneway worker shop                      the only application in shop.py
  laneway worker shop:app -c 20 --processes 2
  laneway worker shop:app --burst -u sqlite:///test.db
"""


@click.command(short_help="Handle the messages of an application.", epilog=EXAMPLES)
@click.argument("target", metavar="MODULE[:APP]")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of concurrent handlers in each process.",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Worker processes under a supervisor.",
)
@click.option("--pool", default="default", show_default=True, help="The pool to serve.")
@click.option("--topics", help="Serve only these topics, strictly in this order: high,low.")
@click.option("--burst", is_flag=True, help="Exit when no message can run now.")
@click.option(
    "--grace",
    default="30s",
    show_default=True,
    help="How long running handlers may continue after SIGTERM.",
)
@click.option(
    "--heartbeat-timeout",
    default="9s",
    show_default=True,
    help="How soon after its last heartbeat other workers get a dead worker's messages.",
)
@click.option("--reload", is_flag=True, help="Restart when a source file changes (development).")
@click.option(
    "-l",
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
)
@click.option("--log-json", is_flag=True, help="One JSON object a line.")
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    help="Serve /live and /ready over HTTP; each further process uses the next port.",
)
@click.option(
    "--health-address",
    default="127.0.0.1",
    show_default=True,
    help="The address of the health port.",
)
@click.option(
    "--traceback/--no-traceback",
    default=None,
    help="Log tracebacks even of attempts that will be retried. [default: on a terminal]",
)
@pass_session
def worker(
    session: Session,
    target: str,
    *,
    concurrency: int,
    processes: int,
    pool: str,
    topics: str | None,
    burst: bool,
    grace: str,
    heartbeat_timeout: str,
    reload: bool,
    log_level: str,
    log_json: bool,
    traceback: bool | None,
    health_port: int | None,
    health_address: str,
) -> None:
    """Handle the messages of an application's topics until SIGTERM or Ctrl-C."""
    style = LogStyle(logging.getLevelNamesMapping()[log_level.upper()], log_json)
    app = load_app(target)
    style.apply()  # unless the program has set up logging
    _use_store(session, app)
    named = (
        None if topics is None else [topic.strip() for topic in topics.split(",") if topic.strip()]
    )
    summary = app.run_worker(
        concurrency=concurrency,
        processes=processes,
        pool=pool,
        topics=named,
        burst=burst,
        grace=grace,
        heartbeat_timeout=heartbeat_timeout,
        reload=reload,
        traceback=traceback,
        health_port=health_port,
        health_address=health_address,
    )
    if burst and not (processes == 1 and _logs_result(style)):
        say(f"{summary.acked:,} done, {summary.retried:,} to be retried, {summary.died:,} dead")


def _logs_result(style: LogStyle) -> bool:
    """Whether the worker's last log line, which has the same figures, was printed."""
    ours = [type(handler.formatter) for handler in logging.getLogger().handlers]
    return style.level <= logging.INFO and TextLines in ours


def _use_store(session: Session, app: Laneway) -> None:
    """The options override the code; a namespace that they override is logged."""
    namespace = (
        session.namespace
        if session.namespace_given and session.namespace != app.namespace
        else None
    )
    if namespace is not None:
        log.warning(
            "namespace: %s (option --namespace); ignored: %s (argument in the code)",
            namespace,
            app.namespace,
        )
    app.runtime.use_store(session.url, namespace)
