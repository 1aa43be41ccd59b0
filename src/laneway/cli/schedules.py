"""`laneway schedules`: calls at fixed times."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import click

from laneway.cli.session import Session, json_option, pass_session, say, show_list
from laneway.engines.base import TASK_HEADER
from laneway.message import Message
from laneway.schedules import store as schedule_store, times
from laneway.units import microseconds


@click.group()
def schedules() -> None:
    """
    Show and change schedules. A program's workers store the schedules that its code declares.
    """


@schedules.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of schedules to list.",
)
@click.option("--after", help="Continue after this name.")
@json_option
@pass_session
def list_schedules(session: Session, *, limit: int, after: str | None, as_json: bool) -> None:
    """List schedules by name, with their times and the next one."""
    show_list(
        schedule_store.planned(session.engine(), limit, after),
        ("schedule", "when", "next", "calls", "missed"),
        lambda each: (
            each.name,
            each.when,
            "paused" if each.is_paused else each.next_at.isoformat(" ", "seconds"),
            each.topic,
            each.missed,
        ),
        as_json=as_json,
        empty="nothing is scheduled",
    )


@schedules.command("add")
@click.argument("name")
@click.option("--every", help="A period: 30s, 10m, 1d, 2 months.")
@click.option("--cron", help="A cron line of five fields, six with seconds first, or @daily.")
@click.option("--sun", help="An event of the sun and a place: sunrise,52.5,13.4.")
@click.option("--at", "moment", help="Once: 2026-12-24T18:00:00+01:00.")
@click.option(
    "--timezone",
    default="UTC",
    show_default=True,
    help="The time zone of the cron line, or of a period in months.",
)
@click.option("--start", help="The first firing of a period in months: 2026-12-24T18:00:00+01:00.")
@click.option("--task", help="The name of the task to call.")
@click.option("--topic", help="The topic to publish to. [default of a task: task.NAME]")
@click.option("--args", "positional", default="[]", help="The task's arguments, as a JSON list.")
@click.option(
    "--kwargs", "named", default="{}", help="The task's keyword arguments, as a JSON object."
)
@click.option("--body", default="null", help="The message body as JSON, without --task.")
@click.option(
    "--missed",
    type=click.Choice(("skip", "one", "all")),
    default="one",
    show_default=True,
    help="What to do with missed firings.",
)
@click.option(
    "--spread",
    default="0s",
    show_default=True,
    help="Delay each firing by up to this time, fixed for each schedule.",
)
@pass_session
def add(
    session: Session,
    name: str,
    *,
    every: str | None,
    cron: str | None,
    sun: str | None,
    moment: str | None,
    timezone: str,
    start: str | None,
    task: str | None,
    topic: str | None,
    positional: str,
    named: str,
    body: str,
    missed: str,
    spread: str,
) -> None:
    """Store the schedule NAME; an existing one is replaced."""
    if task is None and topic is None:
        raise click.UsageError("nothing to publish; give --task NAME, or --topic TOPIC with --body")
    content: Any = (
        {"args": _json("--args", positional, list), "kwargs": _json("--kwargs", named, dict)}
        if task
        else _json("--body", body, object)
    )
    message = Message(
        topic or f"task.{task}", content, headers={TASK_HEADER: task} if task else None
    )
    when = times.chosen(
        name,
        every,
        cron,
        _place(sun),
        _moment("--at", moment),
        timezone,
        _moment("--start", start),
    )
    is_new = schedule_store.put(
        session.engine(create=True),
        schedule_store.new_schedule(
            name, when, message, missed=missed, spread_us=microseconds(spread)
        ),
    )
    planned = schedule_store.find(session.engine(), name)
    if planned is None:
        raise click.UsageError(f"{name} never fires: {when.text()} is in the past")
    outcome = "is scheduled" if is_new else "is already scheduled this way"
    say(f"{name} {outcome}: {when.text()}, next at {planned.next_at.isoformat(' ', 'seconds')}")


@schedules.command()
@click.argument("name")
@pass_session
def remove(session: Session, name: str) -> None:
    """
    Remove the schedule NAME. If code declares it, the program's next worker stores it again.
    """
    _there(session, name)
    schedule_store.remove(session.engine(), name)
    say(f"{name} is removed")


@schedules.command()
@click.argument("name")
@pass_session
def pause(session: Session, name: str) -> None:
    """Pause the schedule NAME."""
    _there(session, name)
    schedule_store.set_paused(session.engine(), name, paused=True)
    say(
        f"{name} is paused; `laneway schedules resume {name}` resumes it, and missed firings follow"
        " its --missed setting"
    )


@schedules.command()
@click.argument("name")
@pass_session
def resume(session: Session, name: str) -> None:
    """Resume the schedule NAME."""
    _there(session, name)
    schedule_store.set_paused(session.engine(), name, paused=None)
    say(f"{name} is resumed")


@schedules.command()
@click.argument("name")
@pass_session
def run(session: Session, name: str) -> None:
    """Publish the call of the schedule NAME once, now. Its next firing stays as it is."""
    _there(session, name)
    receipt = schedule_store.run_now(session.engine(), name)
    if receipt is None or receipt.outcome == "refused":
        reason = "it was removed" if receipt is None else receipt.reason
        raise click.ClickException(f"{name} was not published: {reason}")
    say(f"{name} is published to {receipt.topic} as message {receipt.id}")


def _there(session: Session, name: str) -> None:
    if schedule_store.find(session.engine(), name) is None:
        known = [each.name for each in schedule_store.planned(session.engine(), 20)]
        raise click.UsageError(
            f'there is no schedule "{name}"; available: {", ".join(known) or "none"}'
        )


def _json(option: str, text: str, kind: type) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"{option}: {text!r} is not JSON ({error})") from error
    if not isinstance(value, kind):
        raise click.UsageError(
            f"{option}: expected a JSON {'list' if kind is list else 'object'}, got {text}"
        )
    return value


def _place(text: str | None) -> tuple[str, float, float] | None:
    if text is None:
        return None
    try:
        event, latitude, longitude = text.split(",")
        return event.strip(), float(latitude), float(longitude)
    except ValueError as error:
        raise click.UsageError(
            f"--sun: expected an event and a place, like sunrise,52.5,13.4, got {text!r}"
        ) from error


def _moment(option: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise click.UsageError(
            f"{option}: expected a time like 2026-12-24T18:00:00+01:00, got {text!r}"
        ) from error
