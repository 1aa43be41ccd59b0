"""`laneway job`: how a task's call stands, watching it, cancelling it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from laneway.cli.session import (
    STATE_SAYS_NO,
    Session,
    json_option,
    leave,
    pass_session,
    print_json,
    say,
)

if TYPE_CHECKING:
    from laneway.tasks.job import Job, JobState

topic_option = click.option(
    "--topic", help="Its topic; needed for ids of your own, unless the topic is that of a queue."
)


@click.group()
def job() -> None:
    """See, watch, cancel and put back single calls of tasks."""


@job.command()
@click.argument("job_id")
@topic_option
@json_option
@pass_session
def show(session: Session, job_id: str, *, topic: str | None, as_json: bool) -> None:
    """Say how JOB_ID stands, and what came of it."""
    state = _known(session, job_id, topic).state()
    if as_json:
        print_json(state)
        return
    say(f"{state.status}" + (f" in {state.topic}" if state.topic else ""))
    for name, value in (
        ("result", state.result),
        ("said", state.info),
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
@click.option("--timeout", help="How long to watch at most, like 30s.")
@pass_session
def watch(session: Session, job_id: str, *, topic: str | None, timeout: str | None) -> None:
    """Show how JOB_ID gets on until it has ended; exit code 1 where it did not succeed."""
    try:
        state: JobState = _known(session, job_id, topic).follow(timeout, stream=sys.stdout)
    except TimeoutError as error:
        leave(str(error), STATE_SAYS_NO)
    if state.status != "success":
        raise SystemExit(STATE_SAYS_NO)


@job.command()
@click.argument("job_id")
@topic_option
@pass_session
def cancel(session: Session, job_id: str, *, topic: str | None) -> None:
    """Take JOB_ID out, whatever it waits for; one that runs is stopped."""
    found = _known(session, job_id, topic)
    if not found.cancel():
        leave(f"{job_id} has ended already: {found.status}", STATE_SAYS_NO)
    say(f"{job_id} is cancelled")


@job.command()
@click.argument("job_id")
@topic_option
@pass_session
def requeue(session: Session, job_id: str, *, topic: str | None) -> None:
    """Put JOB_ID back, where it is a dead letter."""
    found = _known(session, job_id, topic)
    if not found.requeue():
        leave(f"{job_id} is no dead letter: {found.status}", STATE_SAYS_NO)
    say(f"{job_id} waits again")


def _known(session: Session, job_id: str, topic: str | None) -> Job[object]:
    found: Job[object] = session.app().job(job_id, topic)
    if found.state().status == "unknown":
        hint = "" if topic is not None else "; an id of your own is found with --topic"
        leave(
            f"nobody knows a job {job_id}, or nothing is kept of it any more{hint}", STATE_SAYS_NO
        )
    return found
