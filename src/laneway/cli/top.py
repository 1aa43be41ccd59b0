"""`laneway top`: throughput, tiers and the first topics, live."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from laneway import Laneway, Stats
from laneway.admin.top_topics import ORDERS, ListOrder
from laneway.cli.history import outlook
from laneway.cli.session import Session, json_option, pass_session, print_json
from laneway.engines.base import Overview, TierStats
from laneway.history.figures import History
from laneway.live import Look, look
from laneway.presenting import duration, topic_state
from laneway.printable import escaped
from laneway.units import counted

NARROW = 120
"""Terminal width below which long names are shortened."""

FIGURES = 80
"""About the width of the other columns: the names of topics may have the rest."""

HISTORY_ROWS, HISTORY_SECONDS = 8, 5.0
"""Rows of `--history`, and how often it is read again."""

OWN_COLUMNS: dict[str, tuple[str, Callable[[Stats], str]]] = {
    "in-rate": ("in/s", lambda each: f"{each.in_rate or 0:,.1f}"),
    "failures": ("failed/min", lambda each: f"{(each.failure_rate or 0) * 60:,.1f}"),
    "worker-time": ("handlers", lambda each: f"{each.worker_time or 0:,.1f}"),
}
"""The name and value of what topics are listed by, where the other columns do not have it."""

WIDE = 160
"""Width of the output without a terminal: scripts need whole names."""


@click.command(short_help="Show throughput, tiers and the first topics, live.")
@click.option("--order", type=click.Choice(ORDERS[1:]), default="backlog", show_default=True)
@click.option("--limit", type=click.IntRange(1, 200), default=15, show_default=True)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option(
    "--history",
    "with_history",
    is_flag=True,
    help="Also show inflow and outflow by pattern in the last hour, with a forecast.",
)
@json_option
@pass_session
def top(
    session: Session,
    *,
    order: ListOrder,
    limit: int,
    every: float,
    once: bool,
    with_history: bool,
    as_json: bool,
) -> None:
    """
    Show throughput, tiers and the first topics by --order, updated until you press q.

    With --json, or if the output is not a terminal, print once.
    """
    app = session.app()
    before = app.engine.overview()
    if as_json or once or not sys.stdout.isatty():
        time.sleep(min(every, 1.0))
        seen = look(app, before, order, limit)
        history = app.history.read() if with_history else None
        if as_json:
            print_json(seen.as_dict() | ({"history": history} if history else {}))
        else:
            _print(seen, history)
    else:
        _live(app, before, order, limit, every, with_history=with_history)


def _print(seen: Look, history: History | None) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDE)
    console.print(picture(seen, console.width, history=history))


def _live(
    app: Laneway,
    before: Overview,
    order: ListOrder,
    limit: int,
    every: float,
    *,
    with_history: bool,
) -> None:
    from rich.console import Console
    from rich.live import Live

    from laneway.cli.terminal import Terminal

    try:
        console = Console()
        with Terminal() as terminal, Live(console=console, screen=True, auto_refresh=False) as live:
            seen, due = look(app, before, order, limit), time.monotonic() + every
            history, history_due = None, time.monotonic()
            while True:
                if with_history and time.monotonic() >= history_due:
                    history, history_due = app.history.read(), time.monotonic() + HISTORY_SECONDS
                live.update(
                    picture(seen, console.width, hint="q quits", history=history), refresh=True
                )
                match terminal.wait(due - time.monotonic()):
                    case "quit":
                        return
                    case "time":
                        seen, due = look(app, seen.now, order, limit), time.monotonic() + every
    except KeyboardInterrupt:
        return  # the same as q


def picture(seen: Look, width: int, *, hint: str = "", history: History | None = None) -> Any:
    """Render a look for a terminal of this width."""
    from rich.console import Group

    parts = [_head(seen, hint), "", _tiers(seen), "", _topics(seen, width)]
    if history is not None:
        parts[2:2] = [*_history(history), ""]
    return Group(*parts)


def _history(history: History) -> list[Any]:
    """The last hour by tier and pattern, and where the last minutes lead."""
    table = _table("last hour")
    for name in ("tier", "pattern"):
        table.add_column(name, no_wrap=True)
    for name in ("in/s", "out/s", "published", "done", "died", "merged", "waiting", "oldest"):
        table.add_column(name, justify="right", no_wrap=True)
    for part in history.parts[:HISTORY_ROWS]:
        table.add_row(
            _plain_text(part.tier),
            _plain_text(part.pattern),
            f"{part.inflow:,.1f}",
            f"{part.outflow:,.1f}",
            *(f"{count:,}" for count in (part.published, part.done, part.died, part.merged)),
            f"{part.waiting:,}",
            duration(part.oldest) or "-",
        )
    return [*map(_plain_text, outlook(history)), "", table]


def _head(seen: Look, hint: str) -> Any:
    from rich.text import Text

    now = seen.now
    return Text(
        f"{seen.url} · {escaped(seen.namespace)} · {counted(now.topics, 'active topic')}"
        f"{f' · {hint}' if hint else ''}\nin {seen.rate('published'):,.0f}/s · started"
        f" {seen.rate('delivered'):,.0f}/s · done {seen.rate('done'):,.0f}/s · retried"
        f" {seen.rate('retried'):,.0f}/s\nwaiting {now.waiting:,} · leased {now.leased:,} · dead"
        f" {now.dead:,} · merged {now.merged:,} · expired {now.expired:,}\n"
        f"workers {seen.workers:,} · busy {seen.busy:,} of {seen.slots:,}"
        + "".join(f' · no worker serves pool "{escaped(pool)}"' for pool in seen.unserved_pools)
    )


def _tiers(seen: Look) -> Any:
    table = _table("tiers")
    for name in ("pool", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("share", "delivered/s", "part", "topics ready"):
        table.add_column(name, justify="right", no_wrap=True)
    delivered = seen.delivered()
    for tier, count in sorted(
        zip(seen.now.tiers, delivered, strict=True), key=lambda pair: _rank(pair[0])
    ):
        part = f"{count / sum(delivered):.1%}" if sum(delivered) else "-"
        ready = f"{tier.runnable:,}" + ("+" if tier.runnable >= 1000 else "")
        share = tier.share if isinstance(tier.share, str) else f"{tier.share:g}"
        table.add_row(
            _plain_text(tier.pool),
            _plain_text(tier.tier),
            share,
            f"{count / seen.seconds:,.0f}",
            part,
            ready,
        )
    return table


def _rank(tier: TierStats) -> tuple[str, float, str]:
    """Sort key: by pool, strict tiers first, then the largest share."""
    return tier.pool, float("-inf") if isinstance(tier.share, str) else -tier.share, tier.tier


def _topics(seen: Look, width: int) -> Any:
    from rich.cells import cell_len

    table = _table(f"top by {seen.order}")
    longest = max((cell_len(escaped(each.topic)) for each in seen.topics), default=0)
    # names are shortened, figures are not
    table.expand = width < NARROW or longest > width - FIGURES
    table.add_column("topic", no_wrap=True, overflow="ellipsis", ratio=1 if table.expand else None)
    own = OWN_COLUMNS.get(seen.order)
    for name in ("waiting", "oldest", "leased", "dead", "per s", own[0] if own else "throttled"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("tier", "state"):
        table.add_column(name, no_wrap=True)
    for each in seen.topics:
        table.add_row(
            _plain_text(each.topic),
            f"{each.waiting:,}",
            duration(each.oldest_age) or "-",
            f"{each.leased:,}" + (f" of {each.limit:,}" if each.limit is not None else ""),
            f"{each.dead:,}",
            f"{each.rate_now:,.1f}",
            own[1](each)
            if own
            else duration(each.throttled_us / 1e6)
            if each.throttled_us
            else "-",
            _plain_text(each.tier),
            topic_state(each),
        )
    return table


def _plain_text(name: str) -> Any:
    """A name without markup and control characters."""
    from rich.text import Text

    return Text(escaped(name))


def _table(title: str) -> Any:
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        padding=(0, 2, 0, 0),
    )
