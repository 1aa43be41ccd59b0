"""`laneway message` and `laneway back-off`: what an operator does to a message or a topic."""

from __future__ import annotations

import click

from laneway import units
from laneway.admin.messages import MessageAction, act
from laneway.cli.session import Session, pass_session, say
from laneway.policy import check_topic

DONE = {
    "ready": "is ready now",
    "redriven": "waits again; it was a dead letter",
    "dead": "is a dead letter",
    "dropped": "is removed",
    "cancelled": "is cancelled",
    "aborted": "is cancelled; its worker is notified",
    "released": "waits again; its holder can no longer settle it",
}

_topic = click.option("--topic", help="The message's topic; needed for an id that you chose.")


@click.group()
def message() -> None:
    """Retry a message now, make it a dead letter, drop, cancel or release it."""


@message.command()
@click.argument("message_id", metavar="ID")
@_topic
@pass_session
def retry(session: Session, message_id: str, *, topic: str | None) -> None:
    """Make a delayed or dead message ready now."""
    _act(session, "retry", message_id, topic)


@message.command()
@click.argument("message_id", metavar="ID")
@_topic
@click.option("--reason", help="The reason, stored with the dead letter.")
@pass_session
def dead(session: Session, message_id: str, *, topic: str | None, reason: str | None) -> None:
    """Make a waiting message a dead letter."""
    _act(session, "dead", message_id, topic, reason)


@message.command()
@click.argument("message_id", metavar="ID")
@_topic
@pass_session
def drop(session: Session, message_id: str, *, topic: str | None) -> None:
    """Remove a waiting or dead message."""
    _act(session, "drop", message_id, topic)


@message.command()
@click.argument("message_id", metavar="ID")
@_topic
@pass_session
def cancel(session: Session, message_id: str, *, topic: str | None) -> None:
    """Remove a message that waits, or stop its handler."""
    _act(session, "cancel", message_id, topic)


@message.command()
@click.argument("message_id", metavar="ID")
@_topic
@pass_session
def release(session: Session, message_id: str, *, topic: str | None) -> None:
    """
    End the lease of a message, so that it is delivered again.

    For a lease whose holder has ended. If the holder is alive, it cannot settle the message any
    more, and its handler runs at the same time as the next one. No attempt is counted.
    """
    _act(session, "release", message_id, topic)


def _act(
    session: Session,
    action: MessageAction,
    message_id: str,
    topic: str | None,
    reason: str | None = None,
) -> None:
    checked = None if topic is None else check_topic(topic)
    done = act(session.engine(), action, message_id, checked, reason)
    say(f"{message_id} {DONE[done]}")


@click.command("back-off", short_help="Deliver nothing from TOPIC for a time.")
@click.argument("topic")
@click.argument("duration")
@pass_session
def back_off(session: Session, topic: str, duration: str) -> None:
    """
    Deliver nothing from TOPIC for DURATION ("10m"), then one message until one is acked; 0 ends it.
    """
    handle = session.app().topic(topic)
    if handle.back_off(duration):
        say(
            f"{topic} backs off"
            if units.seconds(duration)
            else f"{topic} no longer backs off; a message that waits for its own retry waits on"
            " (`laneway message retry ID` delivers it now)"
        )
    else:
        say(
            f"nothing waits in {topic}, so it does not back off; `laneway pause` also holds "
            f"future messages"
        )
