"""Subscriptions: many readers of one topic."""

from __future__ import annotations

from laneway.admin import subscriptions
from laneway.errors import Refused
from laneway.gateway.call import Call
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    ConfirmBody,
    CountAnswer,
    SubscriptionAnswer,
    SubscriptionBody,
    SubscriptionsAnswer,
)
from laneway.policy import Layer

OPERATOR: Layer = "operator"


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
        call.engine.policy_set(OPERATOR, changed, fields)
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
