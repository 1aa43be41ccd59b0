"""Listing and removing subscriptions. Policies declare them, see `laneway.subscriptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from laneway import subscriptions
from laneway.engines.base import TopicStats  # noqa: TC001  # the type of a field
from laneway.errors import BadPolicy, Refused
from laneway.policy import check_fields, check_pattern, is_pattern, sources
from laneway.subscriptions import FIELD, Kind, Where

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine
    from laneway.policy import Layers

OPTIONS = ("kind", "where")
"""The options of `subscribe`."""

PAGE = 1000
"""Topics that are listed at once."""


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """
    A subscription of a topic.

    - `name`: like `audit`. `topic`: the topic of its copies, like `orders#audit`.
    - `kind`: see `Laneway.subscribe`. `where`: the headers that it takes; empty: every message.
    - `pattern`: the topic or pattern for which it is declared. `layer`: `code` or `operator`.
    - `waiting`, `leased`, `dead`: how many messages it has.
    """

    name: str
    topic: str
    kind: Kind
    where: Where
    pattern: str
    layer: str
    waiting: int
    leased: int
    dead: int


def settings_of(kind: Kind, where: Where | None) -> dict[str, Any]:
    """The policy field's value; what is not set is left out."""
    settings = {"kind": kind, "where": where}
    return {name: value for name, value in settings.items() if value is not None}


def changes(
    engine: FullEngine | None, pattern: str, name: str, settings: dict[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """
    The policies that declare a subscription, as (topic or pattern, checked fields). One with a
    single consumer has a pool of its own. `engine`: None before it is opened. Raises BadPolicy.
    """
    field = subscriptions.field_of(name)
    declaration = (pattern, check_fields(pattern, {field: settings}))
    kind = declaration[1][field]["kind"]
    if kind != "shared" and is_pattern(pattern):
        raise BadPolicy(
            f'subscription {name} of {pattern}: kind="{kind}" has one consumer for one topic; name'
            " the topic instead of a pattern"
        )
    if is_pattern(pattern):
        return [declaration]
    topic = subscriptions.topic_of(pattern, name)
    if kind != "shared":
        # The pool is set first, so that no other consumer gets a message.
        return [(topic, {"pool": subscriptions.consumer_pool(topic)}), declaration]
    return [declaration, *_without_pool(engine, topic)]


def _without_pool(engine: FullEngine | None, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a subscription that had one consumer, and a pool of its own, to its usual pool."""
    if engine is None or engine.policy_of(topic).pool != subscriptions.consumer_pool(topic):
        return []
    return [(topic, {"pool": engine.policies().resolve_patterns(topic).pool})]


def find(engine: FullEngine, topic: str) -> list[SubscriptionInfo]:
    """The subscriptions of a topic, by name."""
    found = []
    for field, (value, layer, pattern) in sorted(engine.policies().why(topic).items()):
        if field.startswith(FIELD) and not subscriptions.is_copy(topic):
            subscription = subscriptions.read(field, value)
            found.append(_info(engine, topic, subscription, pattern, layer))
    return found


def _info(
    engine: FullEngine,
    topic: str,
    subscription: subscriptions.Subscription,
    pattern: str,
    layer: str,
) -> SubscriptionInfo:
    name = subscriptions.topic_of(topic, subscription.name)
    stats: TopicStats = engine.topic_stats(name)
    return SubscriptionInfo(
        name=subscription.name,
        topic=name,
        kind=subscription.kind,
        where=subscription.where_by_header,
        pattern=pattern,
        layer=layer,
        waiting=stats.waiting,
        leased=stats.leased,
        dead=stats.dead,
    )


def remove(engine: FullEngine, pattern: str, name: str) -> int:
    """
    Remove a subscription of a topic or pattern, and everything that its topics hold. Returns how
    many messages were removed. Raises Refused if there is none.
    """
    check_pattern(pattern)
    field = subscriptions.field_of(name)
    layers = (
        engine.policies().layers(pattern) if is_pattern(pattern) else engine.policy_own(pattern)
    )
    declaring = _layers_with(layers, field)
    if not declaring:
        raise Refused(f"subscription {name} of {pattern}: there is none")
    for layer in declaring:
        engine.policy_set_many(layer, [(pattern, {field: None})])
    if not is_pattern(pattern):
        topic = subscriptions.topic_of(pattern, name)
        own = sources(engine.policy_own(topic))
        if subscriptions.consumer_pool(topic) in {fields.get("pool") for fields in own.values()}:
            for layer in own:
                engine.policy_set_many(layer, [(topic, {"pool": None})])
    return sum(
        engine.topic_delete(subscriptions.topic_of(topic, name))
        for topic in _topics(engine, pattern, name)
        if name not in {each.name for each in engine.policy_of(topic).subscriptions}
    )


def _layers_with(layers: Layers, field: str) -> list[str]:
    return [layer for layer, fields in sources(layers).items() if field in fields]


def _topics(engine: FullEngine, pattern: str, name: str) -> list[str]:
    """The topics of a pattern whose subscription holds something."""
    if not is_pattern(pattern):
        return [pattern]
    found: list[str] = []
    after: str | None = None
    while True:
        page = engine.topic_list(order="name", pattern=pattern, limit=PAGE, after=after)
        for stats in page:
            base, subscription = subscriptions.split(stats.topic)
            if subscription == name:
                found.append(base)
        if len(page) < PAGE:
            return found
        after = page[-1].topic
