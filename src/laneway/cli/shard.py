"""`laneway shard`: the servers of a namespace's shards, and moving one."""

from __future__ import annotations

import click

from laneway.cli.session import Session, json_option, pass_session, print_json, say
from laneway.engines import move_shard, shard_servers
from laneway.units import counted


@click.group()
def shard() -> None:
    """Show which server has a shard, and move one. PostgreSQL only."""


@shard.command("list")
@json_option
@pass_session
def list_(session: Session, *, as_json: bool) -> None:
    """Show the server and the database of each shard."""
    servers = shard_servers(session.app().url, session.namespace)
    if as_json:
        print_json(servers)
        return
    for number, server in enumerate(servers):
        say(f"{number}  {server}")


@shard.command()
@click.argument("number", type=click.IntRange(min=0))
@click.argument("server")
@pass_session
def move(session: Session, number: int, server: str) -> None:
    """
    Move shard NUMBER to SERVER (HOST:PORT/DATABASE) while it is in use.

    User, password and options are those of the store's URL, and the database too if SERVER has
    none. If a move was interrupted, repeat it: nothing is lost.
    """
    rows = move_shard(session.app().url, session.namespace, number, server)
    say(f"shard {number} is on {server}; {counted(rows, 'row')} copied")
