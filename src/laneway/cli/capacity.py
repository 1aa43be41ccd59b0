"""`laneway capacity`: what a fleet needs for a load."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from typing import Any

import click

from laneway.cli.fleet import costs, model
from laneway.cli.session import json_option, print_json, say, table

ENGINES = tuple(model.NODES)


WITHOUT_SERIAL = ("key_concurrency", "key_rate")
"""Rules that no policy has together with `serial`."""

COUNT = click.FloatRange(1, 1e15)


def _numbers(
    option: str,
    texts: tuple[str, ...],
    most: float,
    names: Iterable[str] | None = None,
    *,
    least: float = 0,
) -> dict[str, float]:
    """The values of an option NAME=NUMBER; `names`: those that exist, or None if any may."""
    found = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"{option}: expected NAME=NUMBER, got {text!r:.60}")
        if name in found:
            raise click.UsageError(f"{option} {name}: given twice")
        if names is not None and name not in names:
            raise click.UsageError(f"{option}: expected {', '.join(names)}, got {name:.60}")
        with contextlib.suppress(ValueError):
            found[name] = float(value)
        if not least <= found.get(name, -1.0) <= most:
            raise click.UsageError(
                f"{option} {name}: expected a number from {least:g} to {most:g}, got {value!r:.60}"
            )
    return found


def _shares(rules: tuple[str, ...], limited: float) -> dict[str, float]:
    """Which share of the messages each rule holds for. Raises UsageError."""
    shares = _numbers("--rule", rules, 1)
    if limited and "limits" in shares:
        raise click.UsageError("--limited and --rule limits are the same; remove one of them")
    for name in sorted(shares.keys() & set(WITHOUT_SERIAL)):
        if shares[name] + shares.get("serial", 0) > 1:
            raise click.UsageError(
                f"--rule {name} and --rule serial: no policy has both, so their shares add up to at"
                " most 1"
            )
    return shares | ({"limits": limited} if limited else {})


@click.command()
@click.option("--topics", type=COUNT, required=True, help="Topics that exist at some time.")
@click.option(
    "--rate", type=click.FloatRange(0.001, 1e12), required=True, help="Messages a second."
)
@click.option("--workers", type=click.FloatRange(1, 1e9), required=True, help="Worker processes.")
@click.option(
    "--engine", "engines", type=click.Choice(ENGINES), multiple=True, help="Default: each one."
)
@click.option(
    "--message-bytes",
    type=click.FloatRange(0, 1e9),
    default=100,
    show_default=True,
    help="Bytes of a body.",
)
@click.option(
    "--limited",
    type=click.FloatRange(0, 1),
    default=0,
    help="Share of the messages with a rate and a concurrency.",
)
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="NAME=SHARE",
    help="Share of the messages with another rule that the costs have, like serial=0.2.",
)
@click.option("--backlog", type=click.FloatRange(0, 1e15), default=0, help="Messages that wait.")
@click.option(
    "--policies", type=click.FloatRange(0, 1e15), default=0, help="Topics with an own policy."
)
@click.option(
    "--batch",
    type=click.FloatRange(1, 10_000),
    default=100,
    show_default=True,
    help="Messages of one call, on average.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, model.MOST_SHARDS),
    help="Or files of each SQLite host. Default: as few as are enough.",
)
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="NAME=DOLLARS",
    help="core (an hour), memory (1 GiB, an hour), disk (1 GiB, a month), network (1 GB).",
)
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Size of a node: cores, memory and disk (GiB), network (Gbit/s), connections.",
)
@click.option(
    "--costs",
    "path",
    type=click.Path(),
    help="A file that `laneway bench --costs FILE` wrote. Default: costs that we measured.",
)
@json_option
def capacity(  # one argument for each option
    *,
    topics: float,
    rate: float,
    workers: float,
    engines: tuple[str, ...],
    message_bytes: float,
    limited: float,
    rules: tuple[str, ...],
    backlog: float,
    policies: float,
    batch: float,
    shards: int | None,
    prices: tuple[str, ...],
    nodes: tuple[str, ...],
    path: str | None,
    as_json: bool,
) -> None:
    """
    Compute what a fleet needs for a load, from measured costs: nodes, memory, disk, network, and
    dollars for 10^9 messages; the first bottleneck, and what ten times the load breaks.

    This is a computation. docs/capacity.md shows how well it predicts what was measured.
    """
    known = costs.load(path or costs.OURS)
    shares = _shares(rules, limited)
    for number in (topics, rate, workers, message_bytes, limited, backlog, policies, batch):
        if math.isnan(number):
            raise click.UsageError("nan is not a number")
    if shards is not None and shards & (shards - 1):
        raise click.UsageError(f"--shards: expected a power of two, got {shards}")
    load = model.Load(
        topics=topics,
        rate=rate,
        workers=workers,
        body=message_bytes,
        backlog=backlog,
        batch=batch,
        rules=shares,
        policies=policies,
    )
    missing = [engine for engine in engines if engine not in known]
    if missing or not known.keys() & set(ENGINES):
        missing = missing or list(ENGINES)
        raise click.UsageError(
            f"the costs have no engine {missing[0]}, only {', '.join(known) or 'an empty list'};"
            f" measure it with `laneway bench --costs FILE --engine {missing[0]}`"
        )
    plans = [
        model.plan(
            engine,
            known[engine],
            load,
            prices=model.PRICES | _numbers("--price", prices, 1e6, model.PRICES),
            node=_numbers("--node", nodes, 1e6, model.NODES["valkey"], least=0.01),
            shards=shards,
        )
        for engine in engines or [each for each in ENGINES if each in known]
    ]
    if as_json:
        print_json({"load": load, "plans": plans})
        return
    _show(plans, known)


def _show(plans: list[model.Plan], known: dict[str, costs.EngineCosts]) -> None:
    """The plans as a table, and a sentence for each bottleneck."""
    rows: list[tuple[str, Any]] = [
        ("nodes", lambda plan: f"{plan.nodes:,}"),
        ("shards", lambda plan: f"{plan.shards:,}"),
        ("cores of the store", lambda plan: f"{plan.store_cores:,.1f}"),
        ("cores of workers, without handlers", lambda plan: f"{plan.worker_cores:,.1f}"),
        ("idle work, % of the store", lambda plan: f"{plan.idle_share * 100:,.2f}"),
        ("memory, GiB", lambda plan: f"{plan.memory_gib:,.1f}"),
        ("disk, GiB", lambda plan: f"{plan.disk_gib:,.1f}"),
        ("network, Gbit/s", lambda plan: f"{plan.network_gbit:,.2f}"),
        ("round trips of a message", lambda plan: f"{plan.round_trips:,.3f}"),
        ("dollars for 10^9 messages", lambda plan: f"{plan.dollars:,.2f}"),
        ("first bottleneck", lambda plan: plan.bottleneck.name),
    ]
    table(
        ("", *(plan.engine for plan in plans)),
        [(name, *map(value, plans)) for name, value in rows],
        empty="",
    )
    for plan in plans:
        over = [need for need in plan.needs if need.is_fixed and need.used > 1]
        for need in over:
            say(f"{plan.engine}: {need.name}: {need.used:,.1f} times what there is")
        if plan.breaks:
            say(f"{plan.engine}, ten times the load: {'; '.join(plan.breaks)}")
        else:
            say(f"{plan.engine}, ten times the load: ten times the nodes")
    for plan in plans:
        found = known[plan.engine]
        say(f"costs of {plan.engine}: {found.date}, {found.machine}; `{found.command}`")
