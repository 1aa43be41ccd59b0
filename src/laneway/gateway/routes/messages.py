"""What an operator does to one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.admin import messages
from laneway.gateway.problems import Problem
from laneway.gateway.routes.topics import missing, visible_topic
from laneway.gateway.schema import MessageActionAnswer

if TYPE_CHECKING:
    from laneway.admin.messages import MessageAction
    from laneway.gateway.call import Call


def retry(call: Call) -> MessageActionAnswer:
    """Make a message ready now that is delayed, waits for a retry, or is dead."""
    return _act(call, "retry")


def make_dead(call: Call) -> MessageActionAnswer:
    """Make a waiting message a dead letter."""
    return _act(call, "dead", call.query.reason)


def drop(call: Call) -> MessageActionAnswer:
    """Remove a waiting or dead message."""
    return _act(call, "drop")


def cancel(call: Call) -> MessageActionAnswer:
    """Remove a message that waits, or stop its handler if it is leased."""
    return _act(call, "cancel")


def release(call: Call) -> MessageActionAnswer:
    """
    End the lease of a message whose holder has ended: it is delivered again, and no attempt is
    counted. A holder that is still alive can no longer settle it.
    """
    return _act(call, "release")


def _act(call: Call, action: MessageAction, reason: str | None = None) -> MessageActionAnswer:
    topic, message_id = visible_topic(call), call.parameters["id"]
    try:
        done = messages.act(call.engine, action, message_id, topic, reason)
    except messages.NoSuchMessage as error:
        problem = missing(call)
        raise problem if problem.kind == "gone" else Problem("not-found", str(error)) from error
    return MessageActionAnswer(message_id, done)
