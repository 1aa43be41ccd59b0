"""`laneway history`: what came in and went out, where that leads, and alarms for scripts."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import click
import msgspec

from laneway import arguments
from laneway.cli.session import REFUSED, Session, json_option, pass_session, print_json, say, table
from laneway.history.alarms import AlarmRule
from laneway.history.figures import History, HistoryRow, WaitingTimes
from laneway.presenting import duration, moment
from laneway.units import SECOND, counted

MOST_ROWS = 30
"""Rows of a table; more are combined."""

FLOWS = ("published", "delivered", "done", "retried", "died", "merged")

EXAMPLES = """\b
Examples:
  laneway history --last 2d
  laneway history 'push.*' --by pattern
  laneway history --drain-over 1h --oldest-over 5m     exit code 1 while an alarm is active
"""


@click.command(short_help="Show inflow and outflow, with a forecast.", epilog=EXAMPLES)
@click.argument("pattern", default="*")
@click.option("--tier", help="Only this tier.")
@click.option("--last", default="1h", show_default=True, help="How far back, at most 60d.")
@click.option(
    "--step", help="The interval of rows: 10s (kept 2h), 1m (3d) or 15m (60d). Default: by --last."
)
@click.option(
    "--by",
    type=click.Choice(("time", "pattern", "waits")),
    default="time",
    show_default=True,
    help="A row for each interval, for each tier and pattern, or for each class of waiting times.",
)
@click.option("--max-backlog", type=click.IntRange(1), help="The limit of the namespace, if any.")
@click.option(
    "--full-within", metavar="DURATION", help="Alarm if a backlog is full within this time."
)
@click.option("--drain-over", metavar="DURATION", help="Alarm if draining takes longer.")
@click.option("--oldest-over", metavar="DURATION", help="Alarm if a message waits longer.")
@click.option(
    "--waiting-over", type=click.IntRange(0), metavar="COUNT", help="Alarm if more messages wait."
)
@json_option
@pass_session
def history(
    session: Session,
    pattern: str,
    *,
    tier: str | None,
    last: str,
    step: str | None,
    by: str,
    max_backlog: int | None,
    full_within: str | None,
    drain_over: str | None,
    oldest_over: str | None,
    waiting_over: int | None,
    as_json: bool,
) -> None:
    """
    Show what was published, delivered and done, of all topics or of those that PATTERN covers, or
    of the topic of that name, if its policy has --history.

    Workers write the history every 10 s; so does this command. With a limit (--full-within …), the
    exit code is 1 while it is passed.
    """
    app = session.app()
    found = app.history.read(pattern, tier=tier, last=last, step=step, max_backlog=max_backlog)
    seconds = functools.partial(arguments.seconds_or_none, "history")
    rule = AlarmRule(
        name="history",
        full_within=seconds("--full-within", full_within),
        drain_over=seconds("--drain-over", drain_over),
        oldest_over=seconds("--oldest-over", oldest_over),
        waiting_over=waiting_over,
    )
    reasons = rule.reasons(found)
    if as_json:
        print_json({**msgspec.to_builtins(found), "alarms": reasons})
    else:
        _print(found, by)
        for reason in reasons:
            say(f"alarm: {reason}")
    if reasons:
        raise SystemExit(REFUSED)


def _print(found: History, by: str) -> None:
    if by == "pattern":
        _print_parts(found)
    elif by == "waits":
        _print_waits(found)
    else:
        _print_rows(found)
    say()
    for line in outlook(found):
        say(line)


def outlook(found: History) -> list[str]:
    """Inflow against outflow, and where that leads, in two lines."""
    drain = (
        "nothing waits"
        if not found.waiting
        else f"drained in {duration(found.drain_seconds)}"
        if found.drain_seconds is not None
        else f"the backlog has grown by {found.growth:,.1f}/s in the last minute; it does not drain"
        if found.growth > 0
        else "the backlog has not fallen in the last minute; it does not drain"
    )
    full = ""
    if found.max_backlog is not None:
        what = found.full_topic or "the namespace"
        when = (
            "does not fill"
            if found.full_seconds is None
            else "is full"
            if not found.full_seconds
            else f"is full in {duration(found.full_seconds)} at the earliest"
        )
        full = f" · {what} ({counted(found.max_backlog, 'message')}) {when}"
    flow = f"in {found.inflow:,.1f}/s · out {found.outflow:,.1f}/s"
    backlog = f"waiting {found.waiting:,} · oldest {duration(found.oldest) or '-'}"
    return [f"{flow} · {backlog}", drain + full]


def _print_rows(found: History) -> None:
    rows = combined(found.rows, MOST_ROWS)
    table(
        ("from", "for", *FLOWS, "throttled", "waiting", "oldest"),
        [
            (
                moment(round(row.start * SECOND)),
                duration(row.seconds),
                *(getattr(row, name) for name in FLOWS),
                duration(row.throttled) if row.throttled else None,
                row.waiting,
                duration(row.oldest),
            )
            for row in rows
        ],
        empty="nothing was counted yet; a worker, or this command, writes a row every 10 s",
    )


def combined(rows: Sequence[HistoryRow], most: int) -> list[HistoryRow]:
    """The rows, neighbors added up so that at most `most` remain."""
    size = -(-len(rows) // most) or 1
    found = []
    for first in range(0, len(rows), size):
        several = rows[first : first + size]
        whole = HistoryRow(
            start=several[0].start,
            seconds=sum(row.seconds for row in several),
            waiting=several[-1].waiting,
        )
        for row in several:
            for name in (*FLOWS, "throttled"):
                setattr(whole, name, getattr(whole, name) + getattr(row, name))
            if row.oldest is not None:
                whole.oldest = max(whole.oldest or 0.0, row.oldest)
        found.append(whole)
    return found


def _print_parts(found: History) -> None:
    table(
        ("tier", "pattern", "in/s", "out/s", *FLOWS, "throttled", "waiting", "oldest"),
        [
            (
                part.tier,
                part.pattern,
                part.inflow,
                part.outflow,
                *(getattr(part, name) for name in FLOWS),
                duration(part.throttled) if part.throttled else None,
                part.waiting,
                duration(part.oldest),
            )
            for part in found.parts
        ],
        empty="nothing was counted in this time",
    )


def _print_waits(found: History) -> None:
    names = [f"under {duration(bound)}" for bound in found.others.bounds] + ["longer"]
    counts = list(zip(names, found.noisy.counts, found.others.counts, strict=True))
    table(
        ("waited", "noisy topics", "other topics"),
        [row for row in counts if row[1] or row[2]],
        empty="nothing was delivered in this time",
    )
    for what, waits in (("noisy", found.noisy), ("other", found.others)):
        if waits.count:
            say(f"{what} topics: {_quantiles(waits)}")


def _quantiles(waits: WaitingTimes) -> str:
    longest = duration(waits.bounds[-1])
    return ", ".join(
        f"{part:.0%} under {duration(bound)}"
        if (bound := waits.quantile(part)) is not None
        else f"{part:.0%} not under {longest}"
        for part in (0.5, 0.95, 0.99)
    )
