"""`fairlead top`: the namespace, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from fairlead.cli.session import Session, duration, pass_session
from fairlead.cli.topics import ORDERS

if TYPE_CHECKING:
    from fairlead import Fairlead
    from fairlead.engines.base import Overview


@click.command()
@click.option("--order", type=click.Choice(ORDERS[1:]), default="backlog", show_default=True)
@click.option("--limit", type=click.IntRange(1, 200), default=15, show_default=True)
@click.option("--every", type=click.FloatRange(0.1), default=1.0, show_default=True, help="Seconds between looks.")
@click.option("--once", is_flag=True, help="Print once and end.")
@pass_session
def top(session: Session, *, order: str, limit: int, every: float, once: bool) -> None:
    """Show throughput, tiers and the top topics, refreshed until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    app = session.app()
    console = Console(width=None if sys.stdout.isatty() else 160)  # a pipe has no width, and scripts want whole names
    before = app.engine.overview()
    if once or not sys.stdout.isatty():
        time.sleep(min(every, 1.0))
        console.print(screen(app, before, order, limit)[0])
        return
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            picture, before = screen(app, before, order, limit)
            live.update(picture, refresh=True)
            time.sleep(every)


def screen(app: Fairlead, before: Overview, order: str, limit: int) -> tuple[Any, Overview]:
    """One picture, with rates since the last one."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    now = app.engine.overview()
    span = max((now.now_us - before.now_us) / 1e6, 1e-3)
    head = Text(
        f"{app.url} · {app.namespace} · {now.topics:,} active topics\n"
        f"in {(now.published - before.published) / span:,.0f}/s · started {(now.delivered - before.delivered) / span:,.0f}/s · "
        f"done {(now.done - before.done) / span:,.0f}/s · retried {(now.retried - before.retried) / span:,.0f}/s\n"
        f"waiting {now.waiting:,} · leased {now.leased:,} · dead {now.dead:,} · merged {now.merged:,} · expired {now.expired:,}"
    )
    tiers = Table("pool", "tier", "share", "delivered/s", "part", "topics ready", title="tiers", title_justify="left")
    given = {(tier.pool, tier.tier): tier.delivered for tier in before.tiers}
    deltas = [tier.delivered - given.get((tier.pool, tier.tier), 0) for tier in now.tiers]
    for tier, delta in zip(now.tiers, deltas, strict=True):
        part = f"{delta / sum(deltas):.1%}" if sum(deltas) else "-"
        ready = f"{tier.runnable:,}" + ("+" if tier.runnable >= 1000 else "")
        tiers.add_row(tier.pool, tier.tier, str(tier.share), f"{delta / span:,.0f}", part, ready)
    listed = Table(
        "topic", "waiting", "oldest", "leased", "dead", "per s", "throttled", "tier", "state", title=f"top by {order}", title_justify="left"
    )
    for each in app.topics(order=order, limit=limit):
        listed.add_row(
            each.topic, f"{each.waiting:,}", duration(each.oldest_age) or "-", f"{each.leased:,}", f"{each.dead:,}", f"{each.rate_now:,.1f}",
            duration(each.throttled_us / 1e6), each.tier, each.state,
        )  # fmt: skip
    return Group(head, tiers, listed), now
