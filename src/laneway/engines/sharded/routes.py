"""
The policies as this process knows them, with the route of each topic: its policy and its shard.

Every client knows the policies of patterns; a version says whether they are current. A topic's own
policy is stored on its home shard only. Clients learn it where it decides how a message is written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from laneway.engines.shared.naming import parse_generated_id
from laneway.message import Draft
from laneway.policy import FIELDS, Layers, PolicyTable, Resolved
from laneway.subscriptions import FIELD, base_of, is_copy
from laneway.tiers import Tiers

MOST_ROUTES = 200_000
"""Topics whose route is cached."""

CHANGES_ROUTES = frozenset(name for name, field in FIELDS.items() if field.in_route)
"""
Fields of a topic's own policy that decide how a client writes a message. Subscriptions do, too.
"""


def changes_routes(layers: Layers) -> bool:
    """Whether clients have to know a topic's own policy."""
    return any(
        not CHANGES_ROUTES.isdisjoint(fields) or any(field.startswith(FIELD) for field in fields)
        for fields in layers.values()
    )


class Route(msgspec.Struct, frozen=True, gc=False):
    """
    What a publisher has to know of a topic.

    `own`: the id of the topic's own policy, b"" where none is known. `shard`: that of the topic, or
    of its first partition. `allows_plain_record`: the policy needs nothing of a message that its
    shortest record does not hold (no merge, ttl, partitions, buckets or backlog limit).
    `is_copied`: its messages may have copies. `is_serial`: a message with a key waits for the one
    before it. `head`: what the engine writes before the body of a message
    without key, id and headers.
    """

    policy: Resolved
    own: bytes
    shard: int
    allows_plain_record: bool
    is_copied: bool
    is_serial: bool
    head: bytes


class Routes:
    """The policies of one namespace, and where its topics are."""

    def __init__(self, tiers: Tiers, shards: int, head_of: Callable[[str], bytes]) -> None:
        self.policies = PolicyTable(tiers)
        self.version = 0
        self.has_partitions = False
        """Whether there may be topics with partitions."""
        self._shards = shards
        self._head_of = head_of
        self._routes: dict[str, Route] = {}
        self._own: dict[str, bytes] = {}
        self._layers: dict[bytes, Layers] = {}

    # Changes

    def load(self, version: int, rows: list[tuple[str, str, dict[str, Any]]]) -> None:
        """Replace the policies that every client knows."""
        self.policies.load(rows)
        self.has_partitions = any("partitions" in fields for _, _, fields in rows)
        self.version = version
        self._routes.clear()

    def learn(self, topic: str, own: bytes, layers: Layers) -> None:
        """Remember the topic's own policy and its id, if it changes the route."""
        if own and changes_routes(layers):
            if len(self._own) >= MOST_ROUTES:
                self._own.clear()
                self._layers.clear()
                self._routes.clear()
            self._own[topic] = own
            self._layers[own] = layers
        else:
            self._own.pop(topic, None)
        self._routes.pop(topic, None)

    def forget_own(self) -> None:
        """Forget all topics' own policies, because the server lost them."""
        self._own.clear()
        self._routes.clear()

    def set_tiers(self, tiers: Tiers) -> None:
        self.policies.tiers = tiers
        self.policies.forget_resolved()
        self._routes.clear()

    # Own policies

    def known_own(self, drafts: Sequence[Draft]) -> dict[str, str]:
        """
        The ids of the own policies that are remembered, by topic. The put compares them with those
        that the shard stores.
        """
        own = self._own
        return (
            {draft.topic: own[draft.topic].decode() for draft in drafts if draft.topic in own}
            if own
            else {}
        )

    # Routes

    def route(self, topic: str) -> Route:
        """The topic's policy, and where it is."""
        route = self._routes.get(topic)
        if route is None:
            if len(self._routes) >= MOST_ROUTES:
                self._routes.clear()
            route = self._routes[topic] = self._new_route(topic)
        return route

    def _new_route(self, topic: str) -> Route:
        own = self._own.get(topic, b"")
        policy = (
            self.policies.resolve_own(topic, self._layers[own])
            if own
            else self.policies.resolve(topic)
        )
        allows_plain_record = (
            policy.merge is None
            and policy.ttl is None
            and policy.partitions == 1
            and policy.buckets is None
            and policy.max_backlog is None
            and policy.max_backlog_bytes is None
        )
        # A bucket is one lane, so all its topics are on one shard.
        hashed = zlib.crc32(topic.encode())
        if policy.buckets is not None and policy.buckets_pattern is not None:
            hashed = zlib.crc32(policy.buckets_pattern.encode()) + hashed % policy.buckets
        return Route(
            policy,
            own,
            self.route(base_of(topic)).shard if is_copy(topic) else hashed % self._shards,
            allows_plain_record,
            policy.is_copied,
            policy.serial is not None,
            self._head_of(topic),
        )

    def shard_of(self, topic: str, part: int) -> int:
        """The shard of a message's lane. `part` selects the partition."""
        route = self.route(base_of(topic))
        return (route.shard + part % route.policy.partitions) % self._shards

    def shards_of(self, topic: str) -> list[int]:
        """
        The shards of a topic's lanes: its partitions are on neighboring shards. A subscription's
        copies are where their messages are.
        """
        route = self.route(base_of(topic))
        return sorted(
            {(route.shard + part) % self._shards for part in range(route.policy.partitions)}
        )

    def home(self, topic: str) -> int:
        """The shard that stores the topic's own policy; of a subscription, that of its topic."""
        return zlib.crc32(base_of(topic).encode()) % self._shards

    def ttl_of(self, draft: Draft) -> int:
        """Microseconds after which a message expires; 0: never."""
        return self.route(draft.topic).policy.ttl_us(draft.ttl_us) or 0


def generated_number(nonce: str, shards: int, message_id: str) -> tuple[int, int] | None:
    """Shard and number of the message with a generated id; None for an id of the user's own."""
    handle = parse_generated_id(nonce, message_id)
    return (handle % shards, handle // shards) if handle is not None else None
