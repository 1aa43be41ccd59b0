"""`laneway job`: show, watch, cancel and requeue one call of a task."""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import click
import msgspec

from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
)
from laneway.tasks.job import Job, JobState

topic_option = click.option(
    "--topic", help="The job's topic; needed for an id that you chose, or of a flow."
)


@click.group()
def job() -> None:
    """Show, watch, cancel and requeue single calls of tasks."""


@job.command()
@click.argument("job_id")
@topic_option
@json_option
@pass_session
def show(session: Session, job_id: str, *, topic: str | None, as_json: bool) -> None:
    """Show the state of JOB_ID, and its result or error."""
    state = _known(session, job_id, topic).state()
    if as_json:
        print_json(state)
        return
    say(f"{state.status}" + (f" in {state.topic}" if state.topic else ""))
    for name, value in (
        ("result", state.result),
        ("progress", state.info),
        ("meta", state.meta or None),
    ):
        if value is not None or (name == "result" and state.status == "success"):
            say(f"  {name}: {msgspec.json.encode(value, enc_hook=repr).decode()}")
    if state.attempts:
        say(f"  attempts that failed: {state.attempts}")
    if state.finished_at is not None:
        say(f"  ended: {datetime.fromtimestamp(state.finished_at, UTC).isoformat(' ', 'seconds')}")
    if state.error is not None:
        say(f"  error: {state.error}")
    if state.traceback:
        say("  " + state.traceback.replace("\n", "\n  "), lines=True)


@job.command()
@click.argument("job_id")
@topic_option
@click.option("--timeout", help="How long to watch, like 30s.")
@pass_session
def watch(session: Session, job_id: str, *, topic: str | None, timeout: str | None) -> None:
    """Show the progress of JOB_ID until it ends; exit code 1 unless it succeeds."""
    try:
        state: JobState = _known(session, job_id, topic).follow(timeout, stream=sys.stdout)
    except TimeoutError as error:
        exit_with(str(error), REFUSED)
    if state.status != "success":
        raise SystemExit(REFUSED)


@job.command()
@click.argument("job_id")
@topic_option
@pass_session
def cancel(session: Session, job_id: str, *, topic: str | None) -> None:
    """Cancel JOB_ID; if it is running, it is stopped."""
    found = _known(session, job_id, topic)
    if not found.cancel():
        exit_with(f"{job_id} has already ended: {found.status}", REFUSED)
    say(f"{job_id} is cancelled")


@job.command()
@click.argument("job_id")
@topic_option
@pass_session
def requeue(session: Session, job_id: str, *, topic: str | None) -> None:
    """Put JOB_ID back into its topic if it is a dead letter."""
    found = _known(session, job_id, topic)
    if not found.requeue():
        exit_with(f"{job_id} is not a dead letter: {found.status}", REFUSED)
    say(f"{job_id} waits again")


def _known(session: Session, job_id: str, topic: str | None) -> Job[object]:
    found: Job[object] = session.app().job(job_id, topic)
    if found.state().status == "unknown":
        hint = "" if topic else "; an id that you chose, or of a flow, needs its --topic"
        exit_with(f"job {job_id} is unknown, or its result has expired{hint}", REFUSED)
    return found
