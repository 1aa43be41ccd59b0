"""Topics and their messages: read, pause, purge, delete, and what an operator does to a message."""

from __future__ import annotations

from typing import Any

from laneway import arguments, units
from laneway.admin import messages, policies, subscriptions, top_topics
from laneway.engines.base import MessageView, TopicStats
from laneway.errors import Refused
from laneway.gateway import visible_reasons
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.problems import Problem
from laneway.gateway.routes.policies import field_answers
from laneway.gateway.schema import (
    BackOffBody,
    ConfirmBody,
    CountAnswer,
    CursorAnswer,
    ExplainAnswer,
    ExplainTopicAnswer,
    ListTopicsQuery,
    LookupAnswer,
    LookupBody,
    MessageActionAnswer,
    MessageAnswer,
    MessagesAnswer,
    ReasonAnswer,
    SubscriptionAnswer,
    SubscriptionBody,
    SubscriptionsAnswer,
    TopicAnswer,
    TopicDetails,
    TopicsAnswer,
)
from laneway.gateway.wire import encode, message_answer, moment_or_none, topic_fields
from laneway.policy import check_policy_pattern, check_topic


def list_topics(call: Call) -> TopicsAnswer:
    """
    List topics by name, page by page, or the first ones of another order.

    `order`: backlog, age, rate (deliveries), in-rate (arrivals), worker-time, failures, dead or
    throttled.

    A list costs the same whatever the number of topics.
    """
    query: ListTopicsQuery = call.query
    engine = call.engine
    found: list[TopicStats] = []
    for pattern in call.caller.narrowed(check_policy_pattern(query.pattern)):
        found += top_topics.topics(
            engine,
            query.order,
            pattern=pattern,
            limit=query.limit,
            after=None if query.after is None else arguments.name("topics", "after", query.after),
        )
    now_us = engine.time_us()
    page = top_topics.first_of(found, query.order, now_us, query.limit)
    is_full = len(page) == query.limit
    return TopicsAnswer(
        [TopicAnswer(**topic_fields(stats, now_us)) for stats in page],
        page[-1].topic if is_full and query.order == "name" else None,
        is_full,
    )


def show_topic(call: Call) -> TopicDetails:
    """
    Show a topic: its state, its counters, and its policy with the source of each field.

    For a topic that is idle or unknown, all numbers are 0.
    """
    engine, topic = call.engine, call.topic
    stats = engine.topic_stats(topic)
    return TopicDetails(
        **topic_fields(stats, engine.time_us(topic)),
        policy=field_answers(engine.policies(), topic),
        cursors=[
            CursorAnswer(priority, scan, done)
            for priority, (scan, done) in sorted(stats.cursors.items())
        ],
    )


def list_messages(call: Call) -> MessagesAnswer:
    """
    List the messages that will be delivered next, then the delayed ones, or those of a state.
    Nothing is changed.
    """
    limit: int = call.query.limit
    views = call.engine.topic_peek(call.topic, limit=limit + 1, state=call.query.state)
    return MessagesAnswer(
        [_message(call, view) for view in views[:limit]],
        truncated=len(views) > limit,
    )


def show_message(call: Call) -> MessageAnswer:
    """
    Show a message that waits, is leased or is dead.

    An id of your own is unique in its topic only, so name the topic.
    """
    return _message(call, _view(call))


def _message(call: Call, view: MessageView) -> MessageAnswer:
    return message_answer(view, shows_body=call.shows_bodies, shows_holder=call.caller.sees_all)


def explain(call: Call) -> ExplainAnswer:
    """Explain what a message waits for, and when it will probably start."""
    topic = call.topic if "topic" in call.parameters else None
    found = visible_reasons.of_message(call.engine, call.caller, _id(call), topic)
    caller = call.caller
    if not caller.sees_all and (found.topic is None or not caller.covers(found.topic)):
        raise missing(call)  # whether it is elsewhere is not said
    message = found.message
    return ExplainAnswer(
        id=found.id,
        topic=found.topic,
        state=found.state,
        reasons=found.reasons,
        starts_at=moment_or_none(found.starts_us),
        ahead=found.ahead,
        message=None if message is None else _message(call, message),
    )


def explain_topic(call: Call) -> ExplainTopicAnswer:
    """
    Explain why a topic delivers nothing, or not enough, and what to do about it.

    The condition of the topic's endpoint is in the answer for callers with the scope `endpoints`.
    """
    found = visible_reasons.of_topic(call.services.runtime, call.caller, call.topic)
    return ExplainTopicAnswer(
        topic=found.topic,
        state=found.state,
        waiting=found.waiting,
        leased=found.leased,
        dead=found.dead,
        message=found.message,
        reasons=[ReasonAnswer(each.cause, each.text, each.advice) for each in found.reasons],
    )


def _id(call: Call) -> str:
    return arguments.name("message", "the id", call.parameters["id"])


def _view(call: Call) -> MessageView:
    topic = call.topic if "topic" in call.parameters else None
    view = call.engine.find(_id(call), topic)
    if view is None or not call.caller.covers(view.topic):
        raise missing(call)
    return view


def visible_topic(call: Call) -> str | None:
    """
    The topic of the path's message, or None if the path names none and all are visible.

    Raises Problem if the message is not visible to the caller.
    """
    if call.caller.sees_all:
        return call.topic if "topic" in call.parameters else None
    return _view(call).topic


def missing(call: Call) -> Problem:
    """The problem of the path's message: it has ended, or nothing is known of it."""
    message_id = call.parameters["id"]
    if "topic" in call.parameters:
        (state,) = call.engine.lookup(call.topic, [message_id]).values()
        if state == "finished":
            return Problem(
                "gone",
                f'the message "{message_id[:80]}" of {call.topic:.80} has ended; only that'
                " is known of it",
            )
    return Problem(
        "not-found",
        f'no message with the id "{message_id[:80]}" waits, is leased or is dead; an id that you'
        " chose needs its topic in the path",
    )


def lookup(call: Call) -> LookupAnswer:
    """Look up the states of many messages of a topic by their ids."""
    body: LookupBody = call.body
    call.caller.check_topic(check_topic(body.topic))
    return LookupAnswer(call.engine.lookup(body.topic, arguments.texts("lookup", "ids", body.ids)))


# Changes


def pause(call: Call) -> Response:
    """Stop delivery from a topic; it still accepts messages."""
    before = policies.operator_fields(call.engine, call.topic)
    call.engine.policy_set("operator", call.topic, {"paused": True})
    return _answer(call, before)


def resume(call: Call) -> Response:
    """
    Deliver from a topic again, even if a pattern's policy pauses it.

    It is refused if the topic's endpoint is disabled.
    """
    before = policies.operator_fields(call.engine, call.topic)
    policies.resume(call.engine, call.topic)
    return _answer(call, before)


def back_off(call: Call) -> Response:
    """
    Deliver nothing from a topic for a time, then one message until one is acked; 0 ends it.

    It holds for what waits now: a topic in which nothing waits does not back off. PUT a policy
    with `paused` for what is published later.
    """
    body: BackOffBody = call.body
    seconds = arguments.seconds("topic", "delay", body.delay)
    call.engine.topic_back_off(call.topic, round(seconds * units.SECOND))
    answer = TopicAnswer(
        **topic_fields(call.engine.topic_stats(call.topic), call.engine.time_us(call.topic))
    )
    return Response(200, encode(answer))


def purge(call: Call) -> CountAnswer:
    """
    Remove all messages of a topic that wait. Leases stay valid.

    `confirm` is the topic's name.
    """
    body: ConfirmBody = call.body
    call.confirm(body.confirm, call.topic)
    if body.dry_run:
        return CountAnswer(call.engine.topic_stats(call.topic).waiting, dry_run=True)
    return CountAnswer(call.engine.topic_purge(call.topic))


def delete(call: Call) -> CountAnswer:
    """
    Remove everything of a topic: messages, leases, dead letters, known ids, counters.

    `confirm` is the topic's name.
    """
    body: ConfirmBody = call.body
    call.confirm(body.confirm, call.topic)
    if body.dry_run:
        stats = call.engine.topic_stats(call.topic)
        return CountAnswer(stats.waiting + stats.leased + stats.dead, dry_run=True)
    return CountAnswer(call.engine.topic_delete(call.topic))


def _answer(call: Call, before: dict[str, Any]) -> Response:
    engine, topic = call.engine, call.topic
    answer = TopicAnswer(**topic_fields(engine.topic_stats(topic), engine.time_us(topic)))
    return Response(200, encode(answer), undo=(topic, before))


# One message


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


def _act(
    call: Call, action: messages.MessageAction, reason: str | None = None
) -> MessageActionAnswer:
    topic, message_id = visible_topic(call), call.parameters["id"]
    try:
        done = messages.act(call.engine, action, message_id, topic, reason)
    except messages.NoSuchMessage as error:
        problem = missing(call)
        raise problem if problem.kind == "gone" else Problem("not-found", str(error)) from error
    return MessageActionAnswer(message_id, done)


# Subscriptions


def list_subscriptions(call: Call) -> SubscriptionsAnswer:
    """List the subscriptions of a topic, with how many messages each has."""
    return SubscriptionsAnswer(
        [
            SubscriptionAnswer(
                name=each.name,
                topic=each.topic,
                kind=each.kind,
                where=dict(each.where),
                pattern=each.pattern,
                layer=each.layer,
                waiting=each.waiting,
                leased=each.leased,
                dead=each.dead,
            )
            for each in subscriptions.find(call.engine, call.topic)
        ]
    )


def subscribe(call: Call) -> SubscriptionBody:
    """
    Declare a subscription of a topic or pattern, for the operator.

    From now on it gets a copy of each message whose headers fit `where`. The subscription `audit`
    of the topic `orders` is the topic `orders#audit` (`orders%23audit` in a path).
    """
    body: SubscriptionBody = call.body
    name = call.parameters["name"]
    settings = subscriptions.settings_of(body.kind, body.where, body.expires)
    for changed, fields in subscriptions.changes(call.engine, call.pattern, name, settings):
        call.engine.policy_set("operator", changed, fields)
    return body


def unsubscribe(call: Call) -> CountAnswer:
    """
    Remove a subscription, with everything that waits in it. `confirm` is its name.
    """
    body: ConfirmBody = call.body
    name = call.parameters["name"]
    call.confirm(body.confirm, name)
    if body.dry_run:
        return CountAnswer(subscriptions.count_held(call.engine, call.pattern, name), dry_run=True)
    try:
        return CountAnswer(subscriptions.remove(call.engine, call.pattern, name))
    except Refused as error:
        raise Problem("not-found", str(error)) from error
