"""`laneway topics` and `laneway peek`: what there is."""

from __future__ import annotations

from typing import Any

import click

from laneway.cli.session import (
    Session,
    duration,
    json_option,
    moment,
    pass_session,
    print_json,
    table,
)
from laneway.engines.shared.listing import ORDERS
from laneway.policy import check_topic

EXAMPLES = """\b
Examples:
  laneway topics                           the largest backlogs
  laneway topics 'push.*' --order age --limit 5
"""


@click.command(epilog=EXAMPLES)
@click.argument("pattern", default="*")
@click.option("--order", type=click.Choice(ORDERS), default="backlog", show_default=True)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--after", help="With --order name: go on after this one.")
@json_option
@pass_session
def topics(
    session: Session, pattern: str, *, order: str, limit: int, after: str | None, as_json: bool
) -> None:
    """
    List topics of a pattern ('push.*'), the top of an order first. The cost does not grow with
    their number.
    """
    if after is not None and order != "name":
        raise click.UsageError("--after pages through --order name only")
    found = session.app().topics(order=order, pattern=pattern, limit=limit, after=after)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.topic,
            each.waiting,
            duration(each.oldest_age),
            each.leased,
            each.delayed,
            each.parked,
            each.dead,
            each.rate_now,
            duration(each.throttled_us / 1e6),
            each.tier,
            each.state,
        )
        for each in found
    ]
    columns = (
        "topic",
        "waiting",
        "oldest",
        "leased",
        "delayed",
        "parked",
        "dead",
        "per s",
        "throttled",
        "tier",
        "state",
    )
    others = "" if order == "name" else f" by {order}; --order name lists all topics"
    table(columns, rows, empty=f'no topic of "{pattern}" has anything{others}')


@click.command()
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True)
@json_option
@pass_session
def peek(session: Session, topic: str, *, limit: int, as_json: bool) -> None:
    """Show the messages of TOPIC that are next; nothing is changed."""
    found = session.engine().topic_peek(check_topic(topic), limit=limit)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each.id,
            each.state,
            each.priority,
            each.key,
            each.attempts,
            moment(each.since_us),
            shown(each.body),
        )
        for each in found
    ]
    table(
        ("id", "state", "priority", "key", "attempts", "since", "body"),
        rows,
        empty=f"nothing waits in {topic}",
    )


def shown(body: Any) -> str:
    """The beginning of a body."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return text if len(text) <= 60 else text[:57] + "…"
