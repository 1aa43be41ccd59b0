"""`laneway workers` and `laneway ping`: the workers of the namespace, and whether they answer."""

from __future__ import annotations

from collections.abc import Sequence

import click

from laneway.admin.workers import WorkerInfo
from laneway.cli.session import (
    REFUSED,
    Session,
    json_option,
    pass_session,
    print_json,
    say,
    show_list,
)
from laneway.presenting import beginning, duration

COLUMNS = (
    "worker",
    "state",
    "pool",
    "topics",
    "busy",
    "leased",
    "oldest",
    "running",
    "heartbeat",
    "up",
    "program",
)

EXAMPLES = """\b
Examples:
  laneway workers --pool gpu
  laneway ping                             exit code 1 when one does not answer
"""


@click.command(short_help="List the workers, and what they do.", epilog=EXAMPLES)
@click.option("--pool", help="Only workers that serve this pool.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=200, show_default=True)
@click.option("--after", help="Continue after this worker.")
@json_option
@pass_session
def workers(
    session: Session, *, pool: str | None, limit: int, after: str | None, as_json: bool
) -> None:
    """
    List the workers by id: their slots, their leases, and the message that has run longest.

    A worker that died stays on the list for a few seconds.
    """
    app = session.app()
    found = app.workers(pool, limit=limit, after=after)
    now = app.engine.time_us() / 1e6
    show_list(
        found,
        COLUMNS,
        lambda each: (
            each.id,
            each.state,
            _names(each.pools),
            _topics(each),
            f"{each.busy:,}/{each.concurrency:,}",
            each.leased,
            duration(_ago(each.oldest_since, now)),
            _running(each),
            _since(each.last_heartbeat, now),
            duration(_ago(each.started, now)),
            each.program if each.version is None else f"{each.program} {each.version}",
        ),
        as_json=as_json,
        empty="no worker is running" if pool is None else f'no worker serves pool "{pool}"',
    )


def _ago(moment: float | None, now: float) -> float | None:
    return None if moment is None else max(0.0, now - moment)


def _since(moment: float, now: float) -> str:
    return f"{duration(_ago(moment, now))} ago"


def _names(names: Sequence[str]) -> str:
    return beginning(", ".join(names), 30)


def _topics(worker: WorkerInfo) -> str:
    """What it serves: the topics it names, else what its handlers cover."""
    names = worker.topics if worker.topics is not None else worker.patterns
    if names is not None:
        names = [name for name in names if not name.startswith("laneway.")]
    return "*" if names is None else _names(names)


def _running(worker: WorkerInfo) -> str | None:
    if worker.oldest_id is None:
        return None
    return beginning(f"{worker.oldest_topic} {worker.oldest_id}", 40)


@click.command(short_help="Ask the workers whether they are alive.", epilog=EXAMPLES)
@click.argument("worker_id", metavar="[WORKER]", required=False)
@click.option(
    "--timeout",
    default="5s",
    show_default=True,
    help="How long to wait for the answers.",
)
@json_option
@pass_session
def ping(session: Session, worker_id: str | None, *, timeout: str, as_json: bool) -> None:
    """
    Ask one worker, or all, for a heartbeat now, and wait for it.

    Exit code 1 if one does not answer in time, or if no worker is running.
    """
    answers = session.app().control.ping(worker_id, timeout=timeout)
    if as_json:
        print_json(answers)
    else:
        for each, seconds in answers.items():
            say(f"{each}: {'no answer' if seconds is None else f'alive, {duration(seconds)}'}")
        if not answers:
            say("no worker is running")
    if not answers or None in answers.values():
        raise SystemExit(REFUSED)


_timeout_option = click.option(
    "--timeout", default="5s", show_default=True, help="How long to wait for the answer."
)


@click.command(short_help="Let a worker finish what runs, and end.")
@click.argument("worker_id", metavar="WORKER")
@_timeout_option
@pass_session
def drain(session: Session, worker_id: str, *, timeout: str) -> None:
    """Tell WORKER to take no more messages, to finish those that run, and to end."""
    session.app().control.drain(worker_id, timeout=timeout)
    say(f"{worker_id} takes no more messages, and ends when its handlers have")


@click.command(short_help="Show the stacks of a worker.")
@click.argument("worker_id", metavar="WORKER")
@_timeout_option
@pass_session
def stacks(session: Session, worker_id: str, *, timeout: str) -> None:
    """Show what WORKER does: its messages, and the stack of each thread and coroutine."""
    say(session.app().control.stacks(worker_id, timeout=timeout))
