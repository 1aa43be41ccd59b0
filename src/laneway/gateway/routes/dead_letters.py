"""Dead letters: list, redrive and drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway import arguments
from laneway.admin import dead_letters
from laneway.gateway.problems import Problem
from laneway.gateway.schema import CountAnswer, DeadBody, DeadLettersAnswer, RedriveBody
from laneway.gateway.wire import message_answer
from laneway.policy import check_topic

if TYPE_CHECKING:
    from laneway.gateway.call import Call
    from laneway.gateway.schema import DeadLettersQuery

PAGE = 1000
"""Dead letters that are read at once."""


def list_dead_letters(call: Call) -> DeadLettersAnswer:
    """List dead letters, oldest first, with their reason and history."""
    query: DeadLettersQuery = call.query
    topic = _topic(call, query.topic)
    page = call.engine.dead_list(topic, limit=query.limit, after=query.after)
    return DeadLettersAnswer(
        [message_answer(view, shows_body=call.shows_bodies) for _, view in page],
        str(page[-1][0]) if len(page) == query.limit else None,
    )


def redrive(call: Call) -> CountAnswer:
    """
    Put dead letters back into their topics, the oldest first: all at once or at a rate.

    With a rate they are delayed, each by its place.
    """
    body: RedriveBody = call.body
    topic = _topic(call, body.topic)
    if body.dry_run:
        return _count(call, body, topic)
    return CountAnswer(
        dead_letters.redrive(call.engine, topic, body.ids, rate=body.rate, limit=body.limit)
    )


def drop(call: Call) -> CountAnswer:
    """Delete dead letters, the oldest first."""
    body: DeadBody = call.body
    topic = _topic(call, body.topic)
    if body.dry_run:
        return _count(call, body, topic)
    return CountAnswer(dead_letters.drop(call.engine, topic, body.ids, limit=body.limit))


def _topic(call: Call, topic: str | None) -> str | None:
    """The topic, which the caller may see; None: all."""
    if topic is not None:
        call.caller.check_topic(check_topic(topic))
    elif not call.caller.sees_all:
        raise Problem(
            "forbidden",
            f'the token "{call.caller.name}" is for topics {", ".join(call.caller.patterns)}; name'
            " one of them",
        )
    return topic


def _count(call: Call, body: DeadBody, topic: str | None) -> CountAnswer:
    """How many there are, at most the limit."""
    wanted = None if body.ids is None else set(arguments.texts("dead", "ids", body.ids))
    count = after = 0
    while count < body.limit and (page := call.engine.dead_list(topic, limit=PAGE, after=after)):
        count += sum(wanted is None or view.id in wanted for _, view in page)
        after = page[-1][0]
    return CountAnswer(min(count, body.limit), dry_run=True)
