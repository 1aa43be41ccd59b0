"""Now: the state in words, four figures, what stands out, and charts."""

from __future__ import annotations

from typing import Any

from laneway.engines.base import Overview
from laneway.gateway.dashboard import charts
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import NowQuery
from laneway.gateway.dashboard.standing_out import FAILING_PART, MOST, health, sentences
from laneway.gateway.dashboard.view import View
from laneway.history.figures import History
from laneway.tiers import Tiers


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    reader = view.reader
    name = view.query.range
    seconds = charts.seconds_of(name)
    window = charts.window_of(view.query.start, view.query.end)
    overview, history = reader.overview(), reader.history(seconds)
    recent = reader.history(charts.RANGES["15m"])
    per_second = _per_second(recent)
    shown, rows = history, history.rows
    if window:
        seconds = charts.seconds_since(window.start, history.now)
        shown = reader.history(seconds)
        rows = window.part(shown.rows)
    coverage, found = reader.coverage(), sentences(view)
    workers = reader.workers()
    return {
        "overview": overview,
        "is_empty": not (overview.published or overview.topics or coverage.count),
        "recent": recent,
        "per_second": per_second,
        "is_failing": _is_failing(per_second),
        "range": name,
        "ranges": list(charts.RANGES),
        "as_table": view.query.table,
        "window": window,
        "links": _links(view, window, round(history.now), charts.seconds_of(name)),
        "rows": rows[-60:][::-1] if view.query.table else [],
        **charts.charts_of(
            rows, reader.rows(seconds), shown.step, window.seconds if window else seconds
        ),
        "marks": charts.deployments(workers, window.start if window else history.now - seconds),
        "tiers": tiers_of(view.engine.tiers, overview, history),
        "coverage": coverage,
        "versions": sorted(
            {f"{each.facts.program} {each.facts.version or ''}" for each in workers}
        ),
        "dead_workers": sum(each.state == "dead" for each in workers),
        "sentences": found[:MOST],
        "unshown": len(found[MOST:]),
        "health": health(view, found),
    }


def _links(
    view: View, window: charts.Window | None, now: int, seconds: float
) -> list[tuple[str, str | None]]:
    """The links that move the charts in time: texts and paths; without a path: not now."""
    query = view.query

    def link(to: charts.Window | None) -> str:
        return view.urls.page(
            "/",
            range=query.range,
            **({"from": to.start, "to": to.end} if to else {}),
            table="true" if query.table else None,
        )

    if window is None:
        present = charts.Window(now - round(seconds), now)
        return [("Earlier", link(present.moved(-1)))]
    quarter = window.seconds // 4
    middle = charts.Window(window.start + quarter, window.end - quarter)
    later = window.moved(1)
    return [
        ("Earlier", link(window.moved(-1)) if window.start >= window.seconds else None),
        ("Later", link(later) if later.start < now else None),
        ("Zoom in", link(middle) if middle.seconds >= charts.SHORTEST else None),
        ("Whole range", link(None)),
    ]


def _per_second(history: History) -> dict[str, float | None]:
    """What happened in the last rows, per second: about a minute, so that a figure is calm."""
    rows = [row for row in history.rows if row.start >= history.now - 60] or history.rows[-1:]
    seconds = sum(row.seconds for row in rows)
    if not seconds:
        return dict.fromkeys(("published", "delivered", "done", "retried", "died"))
    return {
        name: sum(getattr(row, name) for row in rows) / seconds
        for name in ("published", "delivered", "done", "retried", "died")
    }


def _is_failing(per_second: dict[str, float | None]) -> bool:
    """Whether enough attempts fail to make the figure red; a few always do."""
    failed = (per_second["retried"] or 0.0) + (per_second["died"] or 0.0)
    return failed > FAILING_PART * (failed + (per_second["done"] or 0.0))


def tiers_of(tiers: Tiers, overview: Overview, history: History) -> list[dict[str, Any]]:
    """The tiers of each pool: the share that they are due, and what they got in the range."""
    got: dict[str, int] = {}
    for part in history.parts:
        got[part.tier] = got.get(part.tier, 0) + part.delivered
    total = sum(got.values())
    shares = {name: tier.share for name, tier in tiers.items()}
    weights = {name: share for name, share in shares.items() if isinstance(share, (int, float))}
    found = []
    for name, share in shares.items():
        runnable = sum(each.runnable for each in overview.tiers if each.tier == name)
        pools = sorted({each.pool for each in overview.tiers if each.tier == name})
        due = share / sum(weights.values()) if isinstance(share, (int, float)) else None
        found.append(
            {
                "name": name,
                "share": share,
                "reserve": tiers[name].reserve,
                "due": due,
                "got": got.get(name, 0) / total if total else None,
                "runnable": runnable,
                "pools": pools,
            }
        )
    return sorted(found, key=_order)


def _order(tier: dict[str, Any]) -> tuple[bool, float, str]:
    share = tier["share"]
    is_strict = not isinstance(share, (int, float))
    return not is_strict, 0.0 if is_strict else -float(share), tier["name"]


PAGE = Page(
    name="now",
    path="/",
    title="Now",
    key="n",
    build=build,
    query=NowQuery,
    fragments=("strip", "sentences", "charts", "tiers", "workers"),
    is_whole=True,
)
