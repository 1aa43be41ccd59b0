"""`laneway dead`: dead letters."""

from __future__ import annotations

import textwrap
from typing import Any

import click

from laneway.cli.session import (
    REFUSED,
    Session,
    confirm,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
    show_list,
)
from laneway.policy import check_topic
from laneway.presenting import beginning, moment
from laneway.units import counted

_topic_option = click.option("--topic", help="Only dead letters of this topic.")
_limit_option = click.option(
    "--limit", type=click.IntRange(1), help="At most this many, the oldest first."
)


@click.group()
def dead() -> None:
    """List, show, redrive or drop dead letters."""


@dead.command("list")
@_topic_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--after", type=int, default=0, help="Continue after this number.")
@json_option
@pass_session
def list_dead(
    session: Session, *, topic: str | None, limit: int, after: int, as_json: bool
) -> None:
    """List dead letters, the oldest first."""
    found = session.engine().dead_list(
        None if topic is None else check_topic(topic), limit=limit, after=after
    )
    show_list(
        [{"number": number, "message": view} for number, view in found],
        ("number", "id", "topic", "died", "attempts", "reason"),
        _row,
        as_json=as_json,
        empty="no dead letters",
    )


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    view = entry["message"]
    died = moment(view.died_us)
    return str(entry["number"]), view.id, view.topic, died, view.attempts, view.reason


@dead.command("show")
@click.argument("message_id")
@_topic_option
@json_option
@pass_session
def show(session: Session, message_id: str, *, topic: str | None, as_json: bool) -> None:
    """Show a dead letter with its error and history."""
    view = session.engine().find(message_id, topic)
    if view is None or view.state != "dead":
        exit_with(
            f"{message_id}: no dead letter has this id"
            + ("; an id that you chose needs its --topic" if topic is None else ""),
            REFUSED,
        )
    if as_json:
        print_json(view)
        return
    say(f"{view.id} of {view.topic}, dead since {moment(view.died_us)}: {view.reason}")
    say(f"body: {beginning(view.body)}")
    for entry in view.history:
        say(f"  {moment(entry['at_us'])}  {entry['what']}")
    if view.error:
        say(
            "\n" + textwrap.indent(view.error.rstrip(), "  "), lines=True
        )  # indented, so that an error cannot imitate our lines


EXAMPLES = """\b
Examples:
  laneway dead redrive 1e59e48-660d0e8c63a7
  laneway dead redrive --topic push.acme --rate 10/s
"""


@dead.command("redrive", epilog=EXAMPLES)
@click.argument("ids", nargs=-1)
@_topic_option
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--rate", help="Redrive at this rate, such as 10/s.")
@_limit_option
@pass_session
def redrive(
    session: Session,
    ids: tuple[str, ...],
    *,
    topic: str | None,
    everything: bool,
    rate: str | None,
    limit: int | None,
) -> None:
    """Put dead letters back into their topics: by id, --topic or --all."""
    _check_which(ids, topic, everything=everything)
    number = session.app().dead_letters.redrive(topic, list(ids) or None, rate=rate, limit=limit)
    _report(number, "redriven", len(ids), topic, limit)


@dead.command("drop")
@click.argument("ids", nargs=-1)
@_topic_option
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_limit_option
@pass_session
def drop(
    session: Session,
    ids: tuple[str, ...],
    *,
    topic: str | None,
    everything: bool,
    yes: bool,
    limit: int | None,
) -> None:
    """Delete dead letters: by id, --topic or --all."""
    _check_which(ids, topic, everything=everything)
    if not ids and not yes:
        confirm(f"Delete the dead letters of {topic or 'all topics'}?")
    number = session.app().dead_letters.drop(topic, list(ids) or None, limit=limit)
    _report(number, "dropped", len(ids), topic, limit)


def _report(number: int, what: str, named: int, topic: str | None, limit: int | None) -> None:
    """Print the number, and why some of the named ids may be missing; exit with 1 for none."""
    missing = min(named, limit or named) - number
    why = f"; {counted(missing, 'id')} not found among the dead letters" if missing > 0 else ""
    needs_topic = "; an id that you chose needs its --topic" if why and topic is None else ""
    say(f"{number:,} {what}{why}{needs_topic}")
    if not number:
        raise SystemExit(REFUSED)


def _check_which(ids: tuple[str, ...], topic: str | None, *, everything: bool) -> None:
    if not ids and topic is None and not everything:
        raise click.UsageError("name the dead letters: ids, --topic NAME or --all")
    if everything and (ids or topic is not None):
        raise click.UsageError("--all takes no ids and no --topic")
