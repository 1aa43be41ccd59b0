"""`laneway spool`: what a producer's spool holds, and forwarding it."""

from __future__ import annotations

import time

import click

from laneway import Laneway, Spool, arguments
from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
)
from laneway.presenting import duration
from laneway.printable import HIDDEN
from laneway.producing.spool_file import SpoolFile, SpoolStatus, forwarding_process
from laneway.units import counted

SHOW_SECONDS = 1.0
"""How often `drain` shows how many messages wait, in seconds."""


@click.group()
def spool() -> None:
    """Show and forward the spool of a producer: its file of messages for the store."""


@spool.command()
@click.argument("path")
@json_option
@pass_session
def status(_: Session, path: str, *, as_json: bool) -> None:
    """Say what the spool in the file PATH holds, and why it waits. No store is opened."""
    held = read(path)
    if as_json:
        print_json(held)
        return
    say(f"{counted(held.waiting, 'message')} with {held.bytes:,} bytes waiting for {held.store}")
    say(f"  namespace   {held.namespace}")
    if held.oldest_at is not None:
        say(f"  oldest      published {duration(max(0.0, time.time() - held.oldest_at))} ago")
    if held.unclear:
        say(f"  unclear     {held.unclear} may have been sent already; they will be sent again")
    say(f"  forwarder   {'none runs' if held.forwarder is None else f'process {held.forwarder}'}")
    if held.error is not None:
        say(f"  last error  {held.error}")
    if held.rejected:
        say(f"  rejected    {held.rejected:,}; the latest:")
        for topic, message_id, reason in held.reasons:
            say(f"    {message_id} to {topic}: {reason}")


@spool.command()
@click.argument("path")
@click.option("--timeout", help="Stop after this time (10s, 5m); default: when it is empty.")
@pass_session
def drain(session: Session, path: str, *, timeout: str | None) -> None:
    """
    Forward the spool in the file PATH to its store until it is empty.

    The store is --url, else the one that the producer has named. The exit code is 1 if messages are
    left at the timeout, or if the store refused some.
    """
    seconds = arguments.seconds_or_none("spool drain", "--timeout", timeout)
    before = read(path)
    namespace = session.namespace if session.namespace_given else before.namespace
    url = session.url or store_of(before)
    with Laneway(url, namespace=namespace, create=False, spool=Spool(path, exit_timeout=0)) as app:
        _ = app.engine  # a store that is away is an error now
        deadline = None if seconds is None else time.monotonic() + seconds
        while left := app.flush(_pause(deadline)):
            if deadline is not None and time.monotonic() >= deadline:
                exit_with(f"{counted(left, 'message')} left in {path}", REFUSED)
            say(f"{counted(left, 'message')} waiting")
        after = app.spool_status()
    rejected = after.rejected - before.rejected
    if rejected:
        topic, message_id, reason = after.reasons[0]
        refused = counted(rejected, "message")
        exit_with(
            f"{path} is empty; the store refused {refused}, the last {message_id} to {topic}:"
            f" {reason}",
            REFUSED,
        )
    say(f"{path} is empty")


def _pause(deadline: float | None) -> float:
    if deadline is None:
        return SHOW_SECONDS
    return max(0.0, min(SHOW_SECONDS, deadline - time.monotonic()))


def read(path: str) -> SpoolStatus:
    """The content of the spool in a file. Raises UsageError if the file does not exist."""
    file = SpoolFile(path, syncs=False, create=False)
    try:
        return file.status(forwarding_process(file.path))
    finally:
        file.close()


def store_of(held: SpoolStatus) -> str:
    """The URL that the producer has named. A password is not in the file."""
    if not held.store or HIDDEN in held.store:
        raise click.UsageError(
            f"the spool does not have the password of its store {held.store}; give its URL by --url"
        )
    return held.store
