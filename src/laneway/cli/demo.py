"""`laneway demo`: a demonstration that takes half a minute."""

from __future__ import annotations

import click

from laneway.cli.session import exit_with, json_option


@click.command(short_help="Run a demonstration of half a minute.")
@click.option(
    "--seconds",
    type=click.FloatRange(6),
    default=30.0,
    show_default=True,
    help="How long the demo runs.",
)
@click.option("--merchants", type=click.IntRange(20), default=1_000, show_default=True)
@click.option(
    "--flood",
    type=click.IntRange(0),
    default=200_000,
    show_default=True,
    help="How many messages one merchant publishes in one burst.",
)
@click.option(
    "--engine",
    type=click.Choice(["sqlite", "valkey", "postgres"]),
    default="sqlite",
    show_default=True,
    help="valkey, postgres: the demo starts its own server.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "memory"]),
    default="fsync",
    show_default=True,
    help="memory: works with Redis before 7.2 too.",
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
    Run 1,000 merchants on a temporary store: one publishes a flood, one always fails, and the
    others must not notice.
    """
    from laneway.demo.runner import DemoFailed, run

    try:
        code = run(
            engine=engine,
            durability=durability,
            seconds=seconds,
            merchants=merchants,
            flood=flood,
            seed=seed,
            as_json=as_json,
        )
    except DemoFailed as error:
        exit_with(str(error), 1)
    raise SystemExit(code)
