"""`laneway topics`, `peek`, `pause`, `resume` and `purge`: topics and the messages in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import click

from laneway import Stats
from laneway.admin import policies
from laneway.admin.top_topics import ORDERS, ListOrder
from laneway.cli.session import (
    Session,
    confirm,
    json_option,
    pass_session,
    say,
    show_list,
)
from laneway.engines.base import HELD_STATES, HeldState
from laneway.policy import check_topic
from laneway.presenting import beginning, duration, moment, topic_state
from laneway.subscriptions import is_copy
from laneway.units import counted

COLUMNS: dict[str, Callable[[Stats], object]] = {
    "topic": lambda each: each.topic,
    "waiting": lambda each: each.waiting,
    "oldest": lambda each: duration(each.oldest_age),
    "leased": lambda each: each.leased,
    "limit": lambda each: each.limit,
    "delayed": lambda each: each.delayed,
    "parked": lambda each: each.parked,
    "dead": lambda each: each.dead,
    "per s": lambda each: each.rate_now,
    "in/s": lambda each: each.in_rate,
    "failed/min": lambda each: None if each.failure_rate is None else each.failure_rate * 60,
    "handlers": lambda each: each.worker_time,
    "throttled": lambda each: duration(each.throttled_us / 1e6),
    "tier": lambda each: each.tier,
    "group": lambda each: each.group,
    "state": topic_state,
}
SOMETIMES = frozenset(("limit", "in/s", "failed/min", "handlers", "group"))
"""Columns that are left out if no topic of the list has a value."""

EXAMPLES = """\b
Examples:
  laneway topics                           the largest backlogs
  laneway topics 'push.*' --order age --limit 5
  laneway topics 'orders.*#audit'          which subscription is behind?
  laneway topics --order failures          what fails now?
  laneway topics --order repeats           would merging pay?
"""


@click.command(short_help="List topics, the largest or oldest first.", epilog=EXAMPLES)
@click.argument("pattern", default="*")
@click.option(
    "--order", type=click.Choice((*ORDERS, "repeats")), default="backlog", show_default=True
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.option("--after", help="With --order name: continue after this topic.")
@json_option
@pass_session
def topics(
    session: Session,
    pattern: str,
    *,
    order: ListOrder | Literal["repeats"],
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """
    List the topics that match PATTERN ('push.*'), the first ones by --order. A pattern like
    'orders.*#audit' lists the subscriptions of that name.

    The cost does not grow with the number of topics.
    The column "limit" has the leases that concurrency="auto" admits now.

    --order repeats reads a sample of the waiting messages: how many would `merge` fold into others?
    """
    if after is not None and order != "name":
        raise click.UsageError("--after pages through --order name only")
    app = session.app()
    found = app.topics(order=order, pattern=pattern, limit=limit, after=after)
    if order == "repeats":
        _show_repeats(found, pattern, as_json=as_json)
        return
    others = "" if order == "name" else f" by {order}; --order name lists all topics"
    if is_copy(pattern):
        others = f" by {order}; laneway subscription list lists all subscriptions of a topic"
    shown = {
        name: value
        for name, value in COLUMNS.items()
        if name not in SOMETIMES or any(value(each) is not None for each in found)
    }
    # Only programs that push need it.
    from laneway.push.table import troubles

    wrong = {} if as_json else troubles(app.engine, [each.topic for each in found])
    show_list(
        found,
        (*shown, *(["endpoint"] if wrong else [])),
        lambda each: (
            *(value(each) for value in shown.values()),
            *([wrong.get(each.topic, "")] if wrong else []),
        ),
        as_json=as_json,
        empty=f'no topic matches "{pattern}"{others}',
    )


def _show_repeats(found: list[Stats], pattern: str, *, as_json: bool) -> None:
    show_list(
        found,
        ("topic", "waiting", "sampled", "repeats", "merge would save", "tier", "state"),
        lambda each: (
            each.topic,
            each.waiting,
            each.sampled,
            f"{each.repeats or 0.0:.0%}",
            round((each.repeats or 0.0) * each.waiting),
            each.tier,
            topic_state(each),
        ),
        as_json=as_json,
        empty=f'no key or body repeats in the backlogs of "{pattern}": merging would save nothing',
    )


@click.command()
@click.argument("topic")
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True)
@click.option("--state", type=click.Choice(HELD_STATES), help="Only messages of this state.")
@json_option
@pass_session
def peek(
    session: Session, topic: str, *, limit: int, state: HeldState | None, as_json: bool
) -> None:
    """Show the next messages of TOPIC without leasing them, then the delayed ones."""
    show_list(
        session.engine().topic_peek(check_topic(topic), limit=limit, state=state),
        ("id", "state", "priority", "key", "attempts", "since", "body"),
        lambda each: (
            each.id,
            each.state,
            each.priority,
            each.key,
            each.attempts,
            moment(each.since_us),
            beginning(each.body),
        ),
        as_json=as_json,
        empty=f"nothing is {state} in {topic}" if state else f"nothing waits in {topic}",
    )


# Changes of a topic


@click.command(short_help="Stop delivery from the topics of PATTERN.")
@click.argument("pattern")
@pass_session
def pause(session: Session, pattern: str) -> None:
    """Stop delivery from the topics of PATTERN; they still accept messages."""
    session.engine_for(pattern).policy_set("operator", pattern, {"paused": True})
    say(f"{pattern} is paused: it accepts messages; deliver them with `laneway resume {pattern}`")


@click.command()
@click.argument("pattern")
@pass_session
def resume(session: Session, pattern: str) -> None:
    """Deliver from the topics of PATTERN again."""
    engine = session.engine_for(pattern)
    was_paused = engine.policies().why(pattern).get("paused", (False,))[0]
    policies.resume(engine, pattern)
    say(f"{pattern} {'is no longer' if was_paused else 'was not'} paused")


@click.command()
@click.argument("topic")
@click.option(
    "--delete", is_flag=True, help="Also remove leases, dead letters, known ids and counters."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@pass_session
def purge(session: Session, topic: str, *, delete: bool, yes: bool) -> None:
    """Remove the waiting messages of TOPIC; leased messages stay."""
    handle = session.app().topic(topic)
    stats = handle.stats()
    if not yes:
        what = counted(stats.waiting, "waiting message")
        if delete:
            what += f", {stats.leased:,} leased and {stats.dead:,} dead"
        confirm(f"Remove {what} of {topic}?")
    number = handle.delete() if delete else handle.purge()
    say(f"{number:,} removed from {topic}")
