"""`laneway dead`: dead letters."""

from __future__ import annotations

import textwrap

import click

from laneway.cli.session import (
    STATE_SAYS_NO,
    Session,
    confirm,
    json_option,
    leave,
    moment,
    pass_session,
    print_json,
    say,
    table,
)
from laneway.cli.topics import shown
from laneway.policy import check_topic

_topic_option = click.option("--topic", help="Only of this topic.")
_limit_option = click.option(
    "--limit", type=click.IntRange(1), help="At most this many, the oldest first."
)


@click.group()
def dead() -> None:
    """Look at dead letters, put them back, or forget them."""


@dead.command("list")
@_topic_option
@click.option("--limit", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--after", type=int, default=0, help="Go on after this number.")
@json_option
@pass_session
def list_dead(
    session: Session, *, topic: str | None, limit: int, after: int, as_json: bool
) -> None:
    """The oldest dead letters."""
    found = session.engine().dead_list(
        None if topic is None else check_topic(topic), limit=limit, after=after
    )
    if as_json:
        print_json([{"number": number, "message": view} for number, view in found])
        return
    rows = [
        (str(number), view.id, view.topic, moment(view.died_us), view.attempts, view.reason)
        for number, view in found
    ]
    table(("number", "id", "topic", "died", "attempts", "reason"), rows, empty="no dead letters")


@dead.command("show")
@click.argument("message_id")
@_topic_option
@json_option
@pass_session
def show(session: Session, message_id: str, *, topic: str | None, as_json: bool) -> None:
    """One dead letter with its error and history."""
    view = session.engine().find(message_id, topic)
    if view is None or view.state != "dead":
        leave(
            f"{message_id}: no dead letter has this id"
            + ("; an id of your own needs its --topic" if topic is None else ""),
            STATE_SAYS_NO,
        )
    if as_json:
        print_json(view)
        return
    say(f"{view.id} of {view.topic}, dead since {moment(view.died_us)}: {view.reason}")
    say(f"body: {shown(view.body)}")
    for entry in view.history:
        say(f"  {moment(entry['at_us'])}  {entry['what']}")
    if view.error:
        say(
            "\n" + textwrap.indent(view.error.rstrip(), "  "), lines=True
        )  # what it says begins no line of ours


EXAMPLES = """\b
Examples:
  laneway dead redrive 1e59e48-660d0e8c63a7
  laneway dead redrive --topic push.acme --rate 10/s
"""


@dead.command("redrive", epilog=EXAMPLES)
@click.argument("ids", nargs=-1)
@_topic_option
@click.option("--all", "everything", is_flag=True, help="All there are.")
@click.option("--rate", help="Spread them: 10/s.")
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
    """Put dead letters back to be tried again: by id, --topic or --all."""
    _check_which(ids, topic, everything=everything)
    number = session.app().redrive(topic, list(ids) or None, rate=rate, limit=limit)
    say(f"{number:,} redriven")
    if not number:
        raise SystemExit(STATE_SAYS_NO)


@dead.command("drop")
@click.argument("ids", nargs=-1)
@_topic_option
@click.option("--all", "everything", is_flag=True, help="All there are.")
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
    """Forget dead letters: by id, --topic or --all."""
    _check_which(ids, topic, everything=everything)
    if not ids and not yes:
        confirm(f"Forget the dead letters of {topic or 'all topics'}?")
    number = session.app().drop_dead_letters(topic, list(ids) or None, limit=limit)
    say(f"{number:,} dropped")
    if not number:
        raise SystemExit(STATE_SAYS_NO)


def _check_which(ids: tuple[str, ...], topic: str | None, *, everything: bool) -> None:
    if not ids and topic is None and not everything:
        raise click.UsageError("say which: ids, --topic NAME or --all")
    if everything and (ids or topic is not None):
        raise click.UsageError("--all leaves nothing to choose; leave out the ids and --topic")
