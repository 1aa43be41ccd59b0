"""`laneway election`: who holds which election, and asking a holder to step down."""

from __future__ import annotations

import logging
from typing import Any

import click

from laneway import arguments
from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
    show_list,
)
from laneway.cluster.election import Election
from laneway.cluster.term_store import ElectionState

zookeeper_option = click.option(
    "--zookeeper",
    envvar="LANEWAY_ZOOKEEPER",
    metavar="HOSTS/ROOT",
    help=(
        "The elections stored in ZooKeeper, like zk1:2181,zk2:2181/laneway."
        " [default: $LANEWAY_ZOOKEEPER, else those in the store]"
    ),
)


@click.group()
def election() -> None:
    """Show elections, and ask holders to step down."""
    # an error is one line on standard error, and not one for each try of ZooKeeper's client
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


@election.command("list")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of elections to list.",
)
@click.option("--after", help="Continue after this name.")
@zookeeper_option
@json_option
@pass_session
def list_elections(
    session: Session, *, limit: int, after: str | None, zookeeper: str | None, as_json: bool
) -> None:
    """List elections by name, with their holders."""
    app = session.app()
    if zookeeper is None:
        states = app.elections.list(limit=limit, after=after or None)
    else:
        from laneway.cluster.zookeeper import election_names

        names = [name for name in election_names(zookeeper, app.namespace) if name > (after or "")]
        states = [_find(session, name, zookeeper).state() for name in names[:limit]]
    show_list(
        states,
        ("election", "term", "state", "holder", "since"),
        lambda each: (each.name, str(each.number), each.state, each.holder or "-", _since(each)),
        as_json=as_json,
        empty="there are no elections",
    )


@election.command()
@click.argument("name")
@zookeeper_option
@json_option
@pass_session
def show(session: Session, name: str, *, zookeeper: str | None, as_json: bool) -> None:
    """Show who holds the election NAME."""
    state = _known(session, name, zookeeper).state()
    if as_json:
        print_json(state)
        return
    for line in _lines(state):
        say(line)


@election.command("step-down")
@click.argument("name")
@click.option(
    "--wait",
    metavar="DURATION",
    help="Return when the term has ended, at most after this time; exit code 1 if it has not.",
)
@zookeeper_option
@json_option
@pass_session
def step_down(
    session: Session, name: str, *, wait: str | None, zookeeper: str | None, as_json: bool
) -> None:
    """
    Ask the holder of the election NAME to step down. It hands over within its own bound, and
    another candidate takes the next term; it itself does if there is no other.
    """
    seconds = arguments.seconds_or_none("election step-down", "--wait", wait)
    known = _known(session, name, zookeeper)
    asked = known.state()
    if asked.state == "free":
        exit_with(f"election {name}: nobody holds it now", REFUSED)
    state = known.step_down(wait=seconds)
    is_over = state.number != asked.number or state.state == "free"
    if as_json:
        print_json(state)
    elif is_over:
        say(f"{asked.holder} has stepped down from {name}; " + _lines(state)[0])
    else:
        say(f"{asked.holder} was asked to step down from {name} (term {asked.number})")
    if seconds and not is_over:
        exit_with(
            f"election {name}: {asked.holder} still holds term {asked.number} after {seconds:g} s",
            REFUSED,
        )


def _find(session: Session, name: str, zookeeper: str | None) -> Election:
    return session.app().election(name, zookeeper=zookeeper)


def _known(session: Session, name: str, zookeeper: str | None) -> Election:
    """The election; exits if there was never one with that name."""
    found = _find(session, name, zookeeper)
    if found.state().number == 0:
        exit_with(
            f'there is no election "{name}"; `laneway election list` lists them',
            REFUSED,
        )
    return found


def _lines(state: ElectionState) -> list[str]:
    if state.state == "free":
        ended = "handed over" if state.handed_over else "not handed over"
        return [f"free: nobody holds it; the last term was {state.number}, {ended}"]
    lines = [f"{state.state}: {state.holder} holds term {state.number} since {_since(state)}"]
    if state.left is not None:
        lines.append(f"it ends in {state.left:.1f} s unless its holder renews it")
    return lines


def _since(state: ElectionState) -> Any:
    return state.since.isoformat(" ", "seconds") if state.since is not None else "-"
