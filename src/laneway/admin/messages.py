"""Operator actions on one message: try it now, make it dead, drop, cancel or release it."""

from __future__ import annotations

from typing import Literal

from laneway import arguments
from laneway.engines.base import BY_OPERATOR, FullEngine
from laneway.errors import Refused
from laneway.message import Settlement

MessageAction = Literal["retry", "dead", "drop", "cancel", "release"]

Done = Literal["ready", "redriven", "dead", "dropped", "cancelled", "aborted", "released"]
"""
What was done: `"ready"`: it was delayed; `"redriven"`: it was dead; `"dead"`: it is a dead letter;
`"dropped"`, `"cancelled"`: it was removed; `"aborted"`: its lease ended, its worker is notified;
`"released"`: its lease ended, and it waits again.
"""

MAX_REASON = 500
"""Most characters of the reason of a dead letter."""


def act(
    engine: FullEngine,
    action: MessageAction,
    message_id: str,
    topic: str | None,
    reason: str | None = None,
) -> Done:
    """
    Run an action on a message, and return what was done.

    Arguments: `topic`: required for ids that a user chose; `reason`: a dead letter's.

    Raises UsageError, and Refused if the message does not exist or is in another state.
    """
    arguments.name("message", "the id", message_id)
    if action == "retry":
        return _retry(engine, message_id, topic)
    if action == "dead":
        return _make_dead(engine, message_id, topic, reason)
    if action == "drop":
        return _drop(engine, message_id, topic)
    if action == "release":
        return _release(engine, message_id, topic)
    answer = engine.cancel(message_id, topic)
    if answer not in ("cancelled", "aborted"):
        raise _refusal(action, message_id, answer)
    return answer


def _retry(engine: FullEngine, message_id: str, topic: str | None) -> Done:
    answer = engine.message_move(message_id, topic, to="ready")
    if answer == "dead":
        view = engine.find(message_id, topic)
        if view is not None and engine.dead_redrive(view.topic, [message_id]):
            return "redriven"
    elif answer == "moved":
        return "ready"
    raise _refusal("retry", message_id, answer)


def _make_dead(engine: FullEngine, message_id: str, topic: str | None, reason: str | None) -> Done:
    if reason is not None:
        reason = arguments.name("message", "the reason", reason)[:MAX_REASON]
    answer = engine.message_move(message_id, topic, to="dead", reason=reason or BY_OPERATOR)
    if answer != "moved":
        raise _refusal("dead", message_id, answer)
    return "dead"


def _drop(engine: FullEngine, message_id: str, topic: str | None) -> Done:
    view = engine.find(message_id, topic)
    if view is None or view.state == "leased":
        raise _refusal("drop", message_id, "unknown" if view is None else "leased")
    if view.state == "dead":
        if engine.dead_drop(view.topic, [message_id]):
            return "dropped"
    elif engine.cancel(message_id, topic) in ("cancelled", "aborted"):  # leased in between
        return "dropped"
    raise _refusal("drop", message_id, "unknown")


def _release(engine: FullEngine, message_id: str, topic: str | None) -> Done:
    """End a lease: its holder's later settlements are refused by the fence."""
    view = engine.find(message_id, topic)
    if view is None or view.handle is None or view.fence is None:
        raise _refusal("release", message_id, "unknown" if view is None else "free")
    (outcome,) = engine.settle([Settlement(view.handle, view.fence, "release")])
    if outcome == "lost":  # its holder has settled it meanwhile
        raise _refusal("release", message_id, "free")
    return "released"


WHY = {
    "waiting": "it is not delayed: it waits for its turn, its serial key or its signals",
    "leased": "it is leased; `cancel` stops its handler, `release` ends a lease that nobody holds",
    "dead": "it is a dead letter",
    "free": "it is not leased",
    "unknown": "it does not wait, is not leased and is not dead; an id that you chose needs its "
    "topic",
}
"""Why an action is refused, by the message's state."""


class NoSuchMessage(Refused):
    """The message does not exist."""


def _refusal(action: MessageAction, message_id: str, state: str) -> Refused:
    text = f'message "{message_id[:80]}": {action} was refused: {WHY[state]}'
    return NoSuchMessage(text) if state == "unknown" else Refused(text)
