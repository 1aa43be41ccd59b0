"""`laneway demo`: half a minute that shows what Laneway is for."""

from __future__ import annotations

import click

from laneway.cli.session import json_option


@click.command(short_help="Half a minute that shows what this is for.")
@click.option(
    "--seconds", type=click.FloatRange(6), default=30.0, show_default=True, help="How long it runs."
)
@click.option("--merchants", type=click.IntRange(20), default=1_000, show_default=True)
@click.option(
    "--flood",
    type=click.IntRange(0),
    default=200_000,
    show_default=True,
    help="Messages of the merchant that floods.",
)
@click.option(
    "--engine",
    type=click.Choice(["sqlite", "valkey"]),
    default="sqlite",
    show_default=True,
    help="valkey: a server that it starts.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "memory"]),
    default="fsync",
    show_default=True,
    help="memory: also on a Redis before 7.2.",
)
@click.option("--seed", type=int, default=1, show_default=True)
@json_option
def demo(
    *,
    engine: str,
    durability: str,
    seconds: float,
    merchants: int,
    flood: int,
    seed: int,
    as_json: bool,
) -> None:
    """
    Run 1,000 merchants on a store of their own: one floods, one fails all the time, the others must
    not notice.
    """
    from laneway.demo.show import run

    raise SystemExit(
        run(
            engine=engine,
            durability=durability,
            seconds=seconds,
            merchants=merchants,
            flood=flood,
            seed=seed,
            as_json=as_json,
        )
    )
