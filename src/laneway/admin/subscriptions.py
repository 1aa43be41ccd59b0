"""Listing and removing subscriptions. Policies declare them, see `laneway.subscriptions`."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, get_args

import msgspec

from laneway import subscriptions, units
from laneway.admin.policies import layers_of
from laneway.admin.values import MAX_NAME, Values
from laneway.awaitable import async_variant
from laneway.cluster.consumer import Consumer
from laneway.codec import MAX_ID_CHARACTERS
from laneway.engines.base import Check, FullEngine, HeldState, MessageView, RecordKind
from laneway.engines.shared.copies import NOT_COPIED
from laneway.errors import BacklogFull, BadPolicy, Refused
from laneway.headers import SIGNALS
from laneway.message import Draft
from laneway.policy import Layers, check_fields, check_pattern, is_pattern, sources
from laneway.runtime.runtime import Noun, Runtime
from laneway.subscriptions import FIELD, Kind, Start, Where
from laneway.units import Duration

log = logging.getLogger("laneway.subscriptions")

PAGE = 1000
"""Topics per page of a list."""

MOST_COPIED = 100_000
"""Most messages of a topic that `start="all waiting"` copies."""

PUT_SIZE = 500
"""Copies that one call puts."""

COPYING: RecordKind = "copying"
"""
The kind of the records of `start="all waiting"`; a record's name is the topic of the copies.
"""

CLOCK_US = units.SECOND
"""How far the clocks of a namespace's shards may be apart when copying continues later."""

_GENERATED = re.compile(r"[0-9a-f]+-[0-9a-f]+")
"""The format of ids that an engine may have generated."""


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """
    A subscription as a pattern declares it, for all topics that it covers.

    - `name`: such as `audit`. `topic`: the pattern of its copies' topics, such as `orders.*#audit`.
    - `kind`, `where`, `expires`, `pattern`, `layer`: as in `SubscriptionInfo`.
    """

    name: str
    topic: str
    kind: Kind
    where: Where
    expires: float | None
    pattern: str
    layer: str


class SubscriptionInfo(Declaration, frozen=True, kw_only=True):
    """
    A subscription of a topic.

    - `name`: such as `audit`. `topic`: the topic of its copies, such as `orders#audit`.
    - `kind`: see `Laneway.subscribe`. `where`: the headers that a message must have; empty for
      every message.
    - `expires`: after how many seconds without use it gets no more copies, or None for never.
    - `pattern`: the topic or pattern for which it is declared. `layer`: `code` or `operator`.
    - `waiting`, `leased`, `dead`: how many messages it has.
    """

    waiting: int
    leased: int
    dead: int


def settings_of(
    kind: Kind,
    where: Where | None,
    expires: Duration | None,
    forget_after: Duration | None = None,
) -> dict[str, Any]:
    """The policy field's value, without the settings that are not set."""
    settings = {"kind": kind, "where": where, "expires": expires, "forget_after": forget_after}
    return {name: value for name, value in settings.items() if value is not None}


def subscribe(
    runtime: Runtime,
    pattern: str,
    name: str,
    *,
    kind: Kind,
    start: Start,
    where: Where | None,
    expires: Duration | None,
    forget_after: Duration | None,
) -> None:
    """Declare a subscription; see `Laneway.subscribe`."""
    settings = settings_of(kind, where, expires, forget_after)
    copies_waiting = check_start(pattern, name, start)
    opens = copies_waiting or forget_after is not None or runtime.holder.is_open
    engine = runtime.engine if opens else None
    changed = changes(engine, pattern, name, settings)
    if forget_after is not None:
        _renew(runtime, pattern, name, forget_after)
        layers = layers_of(runtime.engine, pattern)
        for unused in _unused(runtime, pattern, layers):
            with contextlib.suppress(Refused):  # another process removes it too
                remove(runtime.engine, pattern, unused)
        field = subscriptions.field_of(name)
        if layers.get("code", {}).get(field) == dict(changed)[pattern][field]:
            return  # it was renewed

    def declare() -> None:
        for each, fields in changed:
            runtime.holder.set_policy(each, fields)

    if copies_waiting:
        copy_waiting(runtime.engine, pattern, name, declare)
    else:
        declare()


def changes(
    engine: FullEngine | None, pattern: str, name: str, settings: dict[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """
    The policies that declare a subscription, as (topic or pattern, checked fields). A topic's
    subscription with a single consumer has its own pool. `engine`: None before it is opened. Raises
    BadPolicy.
    """
    field = subscriptions.field_of(name)
    declaration = (pattern, check_fields(pattern, {field: settings}))
    kind = declaration[1][field]["kind"]
    if is_pattern(pattern):
        return [declaration]  # its topics get their pool from it
    topic = subscriptions.topic_of(pattern, name)
    if kind != "shared":
        consumed_by = engine.policy_of(topic).consumed_by if engine is not None else None
        if consumed_by is not None:
            raise BadPolicy(
                f"subscription {name} of {pattern}: {consumed_by} has one consumer for all its"
                " topics; leave out kind, or choose another name"
            )
        # The pool is set first, so that no other consumer gets a message.
        return [(topic, {"pool": subscriptions.consumer_pool(topic)}), declaration]
    return [declaration, *_without_pool(engine, topic)]


def check_start(pattern: str, name: str, start: object) -> bool:
    """Whether waiting messages are to be copied. Raises BadPolicy."""
    if start not in get_args(Start):
        raise BadPolicy(
            f'subscription {name} of {pattern}: expected start to be "now" or "all waiting", got'
            f" {start!r:.80}"
        )
    return start == "all waiting"


def copy_waiting(engine: FullEngine, pattern: str, name: str, declare: Callable[[], None]) -> int:
    """
    Declare a subscription by `declare`, and copy the messages of its topics. For an existing
    subscription, only the rest of an interrupted copy is made. Returns the number of copied
    messages. Raises Refused, BacklogFull.

    A record in the store shows that the copying has begun, and when the subscription was declared.
    """
    field, key = subscriptions.field_of(name), subscriptions.topic_of(pattern, name)
    (record,) = engine.record_read(COPYING, [key])
    topics: list[str] = []
    if record is not None or not _layers_with(layers_of(engine, pattern), field):
        topics = [
            topic
            for topic in _topics_of(engine, pattern)
            if not _is_declared_by_others(engine, topic, pattern, field)
        ]
    for topic in topics:
        held = engine.topic_stats(topic)
        if held.waiting + held.leased > MOST_COPIED:
            raise Refused(
                f"subscription {name} of {topic}: {held.waiting + held.leased:,} messages wait, and"
                f' at most {MOST_COPIED:,} can be copied; subscribe with start="now"'
            )
    if not topics:
        declare()
        return 0
    begun = record or b"null"
    if record is None:
        engine.record_swap(COPYING, key, None, begun)
    declare()
    declared_us = msgspec.json.decode(begun, type=int | None)
    if declared_us is None:
        declared = msgspec.json.encode(engine.time_us())
        engine.record_swap(COPYING, key, begun, declared)
    else:
        declared, declared_us = begun, declared_us + CLOCK_US
    copied = sum(_copy_waiting(engine, topic, name, declared_us) for topic in topics)
    engine.record_swap(COPYING, key, declared, None)
    return copied


def check(engine: FullEngine) -> list[Check]:
    """The doctor's finding about interrupted copying; an empty list without any."""
    return [
        Check(
            "subscriptions",
            ok=False,
            detail=f"{topic} does not have copies of all messages that were waiting when it was "
            f"declared",
            advice="if no program is copying them now, call subscribe again with"
            ' start="all waiting", or remove the subscription',
        )
        for topic, _ in engine.records(COPYING)
    ]


def _copy_waiting(engine: FullEngine, topic: str, name: str, declared_us: int | None) -> int:
    """
    Copy the messages that were published before the subscription. `declared_us`: when it was
    declared, or None for just now. A message published at that moment may have two copies, but none
    is left out.
    """
    subscription = next(
        (each for each in engine.policy_of(topic).subscriptions if each.name == name), None
    )
    if subscription is None:
        return 0  # it was removed meanwhile
    if declared_us is None:
        declared_us = engine.time_us(topic)
    views = [
        view
        for view in _held(engine, topic)
        if view.published_us <= declared_us and subscription.takes(view.headers)
    ]
    drafts = [draft for view in views for draft in _copies(view, name, declared_us)]
    for first in range(0, len(drafts), PUT_SIZE):
        for receipt in engine.put(drafts[first : first + PUT_SIZE]):
            if receipt.outcome == "refused":
                raise BacklogFull(f"subscription {name} of {topic}: {receipt.reason}", [receipt])
    return len(drafts)


def _held(engine: FullEngine, topic: str) -> list[MessageView]:
    """
    The waiting and leased messages of a topic, in the order of delivery. Leased messages are read
    before and after, because messages are leased and returned meanwhile.
    """
    found: dict[str, MessageView] = {}
    states: tuple[HeldState | None, ...] = ("leased", None, "leased")
    for state in states:
        for view in engine.topic_peek(topic, limit=2 * MOST_COPIED, state=state):
            found.setdefault(view.id, view)
    return list(found.values())


def _copies(view: MessageView, name: str, now_us: int) -> Iterator[Draft]:
    """The copy of a waiting message; several copies if messages have merged into it."""
    headers = {
        header: text for header, text in (view.headers or {}).items() if header not in NOT_COPIED
    }
    is_waiting = view.since_us > now_us and SIGNALS not in (view.headers or {})
    bodies = view.bodies or [view.body]
    for number, body in enumerate(bodies):
        copy_id = view.id
        if _GENERATED.fullmatch(copy_id) or len(bodies) > 1:
            copy_id = f"{copy_id}:{name}:{number}"
        if len(copy_id) > MAX_ID_CHARACTERS:
            copy_id = f"copy-{hashlib.blake2b(copy_id.encode(), digest_size=16).hexdigest()}"
        yield Draft(
            subscriptions.topic_of(view.topic, name),
            body,
            view.key,
            view.priority,
            at_us=view.since_us if is_waiting else None,
            id=copy_id,
            headers=headers or None,
        )


def _topics_of(engine: FullEngine, pattern: str) -> list[str]:
    """The topics of a pattern that are not empty, or the topic itself."""
    if not is_pattern(pattern):
        return [pattern]
    return [name for name in _names(engine, pattern) if not subscriptions.is_copy(name)]


def _without_pool(engine: FullEngine | None, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a subscription that had a single consumer and its own pool to its usual pool."""
    if engine is None or engine.policy_of(topic).pool != subscriptions.consumer_pool(topic):
        return []
    return [(topic, {"pool": engine.policies().resolve_patterns(topic).pool})]


def find(engine: FullEngine, topic: str) -> list[SubscriptionInfo]:
    """The subscriptions of a topic, by name."""
    found = []
    kinds = {each.name: each.kind for each in engine.policy_of(topic).subscriptions}
    for field, (value, layer, pattern) in sorted(engine.policies().why(topic).items()):
        if field.startswith(FIELD) and not subscriptions.is_copy(topic):
            subscription = subscriptions.read(field, value)
            kind = kinds.get(subscription.name, subscription.kind)  # it may be the pattern's
            subscription = msgspec.structs.replace(subscription, kind=kind)
            found.append(_info(engine, topic, subscription, pattern, layer))
    return found


def declared(engine: FullEngine, pattern: str) -> list[Declaration]:
    """
    The subscriptions that a pattern and the patterns that it covers declare. Subscriptions of
    single topics are left out: a million of them may exist.
    """
    found = []
    table = engine.policies()
    for name in filter(is_pattern, table.names_under(pattern)):
        layers = table.layers(name)
        fields = {
            field: (value, layer)
            for layer in ("code", "operator")
            for field, value in layers.get(layer, {}).items()
            if field.startswith(FIELD)
        }
        for field, (value, layer) in sorted(fields.items()):
            subscription = subscriptions.read(field, value)
            found.append(
                Declaration(
                    name=subscription.name,
                    topic=subscriptions.topic_of(name, subscription.name),
                    kind=subscription.kind,
                    where=subscription.where_by_header,
                    expires=_seconds(subscription.expires_us),
                    pattern=name,
                    layer=layer,
                )
            )
    return found


def _seconds(expires_us: int | None) -> float | None:
    return None if expires_us is None else expires_us / units.SECOND


def _info(
    engine: FullEngine,
    topic: str,
    subscription: subscriptions.Subscription,
    pattern: str,
    layer: str,
) -> SubscriptionInfo:
    name = subscriptions.topic_of(topic, subscription.name)
    stats = engine.topic_stats(name)
    return SubscriptionInfo(
        name=subscription.name,
        topic=name,
        kind=subscription.kind,
        where=subscription.where_by_header,
        expires=_seconds(subscription.expires_us),
        pattern=pattern,
        layer=layer,
        waiting=stats.waiting,
        leased=stats.leased,
        dead=stats.dead,
    )


def remove(engine: FullEngine, pattern: str, name: str) -> int:
    """
    Remove a subscription of a topic or pattern, with all messages of its topics. Returns the number
    of removed messages. Raises Refused if it does not exist.
    """
    check_pattern(pattern)
    field = subscriptions.field_of(name)
    declaring = _layers_with(layers_of(engine, pattern), field)
    key = subscriptions.topic_of(pattern, name)
    (record,) = engine.record_read(COPYING, [key])
    if record is not None:  # perhaps left by a call that ended before it declared the subscription
        engine.record_swap(COPYING, key, record, None)
    elif not declaring:
        raise Refused(f"subscription {name} of {pattern} does not exist")
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


def count_held(engine: FullEngine, pattern: str, name: str) -> int:
    """How many messages `remove` would remove."""
    field = subscriptions.field_of(name)
    found = 0
    for topic in _topics(engine, check_pattern(pattern), name):
        if not _is_declared_by_others(engine, topic, pattern, field):
            stats = engine.topic_stats(subscriptions.topic_of(topic, name))
            found += stats.waiting + stats.leased + stats.dead
    return found


def _is_declared_by_others(engine: FullEngine, topic: str, pattern: str, field: str) -> bool:
    """Whether a topic would have a subscription without what this pattern declares."""
    others = {topic, *engine.policies().covering(topic)} - {pattern}
    return any(_layers_with(layers_of(engine, other), field) for other in others)


def _layers_with(layers: Layers, field: str) -> list[str]:
    return [layer for layer, fields in sources(layers).items() if field in fields]


def _topics(engine: FullEngine, pattern: str, name: str) -> list[str]:
    """The topics of a pattern whose subscription is not empty."""
    if not is_pattern(pattern):
        return [pattern]
    parts = map(subscriptions.split, _names(engine, pattern))
    return [base for base, subscription in parts if subscription == name]


def _names(engine: FullEngine, pattern: str) -> list[str]:
    """The topics of a pattern that are not empty, including those of subscriptions."""
    names: list[str] = []
    after: str | None = None
    while True:
        page = engine.topic_list(order="name", pattern=pattern, limit=PAGE, after=after)
        names += [stats.topic for stats in page]
        if len(page) < PAGE:
            return names
        after = page[-1].topic


class Subscriptions(Noun):
    """The subscriptions of topics and patterns: `app.subscriptions`."""

    def remove(self, pattern: str, name: str) -> int:
        """
        Remove a subscription of a topic or pattern, with everything that waits in it, its leases
        and dead letters. Returns the number of removed messages. Raises Refused if it does not
        exist.
        """
        return remove(self._runtime.engine, pattern, name)

    def consumer(
        self, /, pattern: str, name: str, *, term: Duration = 10.0, wait: Duration | None = None
    ) -> Consumer:
        """
        Create the only consumer of an exclusive or failover subscription of a pattern, for all its
        topics: `with app.subscriptions.consumer("orders.*", "audit") as consumer:`.

        The arguments and errors are those of `Topic.consumer`, the method for one topic. Also
        raises BadPolicy for an invalid pattern or name.
        """
        topic = subscriptions.topic_of(check_pattern(pattern), subscriptions.check_name(name))
        return Consumer(lambda: self._runtime.engine, self.threads, topic, term=term, wait=wait)

    aremove = async_variant(remove)


# Subscriptions that nobody declares again: `subscribe(forget_after=)`. Each call of `subscribe`
# stores a value that expires after `forget_after`, and removes the subscriptions of its topic whose
# value has expired. No process has to watch them, and a topic whose readers change keeps few
# subscriptions.


def _renew(runtime: Runtime, pattern: str, name: str, forget_after: Duration) -> None:
    """Record that a subscription is in use. Call this before declaring it."""
    Values(runtime).put(_mark(pattern, name), b"1", ttl=forget_after)


def _unused(runtime: Runtime, pattern: str, layers: Layers) -> list[str]:
    """The names of the subscriptions that a topic or pattern declares and nobody has renewed."""
    names = [
        field.removeprefix(FIELD)
        for fields in sources(layers).values()
        for field, value in fields.items()
        if field.startswith(FIELD) and value is not None and "forget_after" in value
    ]
    marks = Values(runtime).get_many(_mark(pattern, name) for name in names)
    found = [name for name, mark in zip(names, marks, strict=True) if mark is None]
    if found:
        log.info("%s: forgetting unused subscriptions: %s", pattern, ", ".join(found))
    return found


def _mark(pattern: str, name: str) -> str:
    """The name of the value that marks the subscription as in use."""
    mark = f"subscription {subscriptions.topic_of(pattern, name)}"
    if len(mark) <= MAX_NAME:
        return mark
    return f"subscription {hashlib.blake2b(mark.encode(), digest_size=16).hexdigest()}"
