"""
Changing policies over the shards.

Every client knows the policies of patterns; a version tells who is behind. Clients also know those
of exact topics that decide on which shard a message is: the topic has partitions, or a pattern
above it folds topics into buckets. These are the *shared* policies. The own policy of any other
exact topic is stored on its home shard only, and no client is notified of a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from laneway.engines.sharded.namespace import (
    Behind,
    InUse,
    OwnChange,
    OwnPolicy,
    PolicyChange,
    ShardedNamespace,
)
from laneway.engines.sharded.splitting import group, pages, rounds
from laneway.engines.shared.policy_changes import (
    may_change_lanes,
    topic_in_use,
)
from laneway.errors import TopicInUse
from laneway.policy import Layers, PolicyTable, change_layers, is_pattern, matches, sources
from laneway.subscriptions import Subscription, base_of, is_copy, topic_of

Changes = Sequence[tuple[str, dict[str, Any]]]
"""(pattern or topic, its checked fields; None removes a field)"""

_dumps = msgspec.json.Encoder().encode

AT_ONCE = 250
"""Topics that one call changes."""

PAGE = 1000
"""Topics that one page of all topics has."""


class Policies:
    """Reads and changes the policies of one namespace."""

    def __init__(
        self, namespace: ShardedNamespace, now_us: int | None = None, *, as_stored: bool = False
    ) -> None:
        self._namespace = namespace
        self._as_stored = as_stored
        """See `Admin.policy_set_many`."""
        self._now_us = now_us
        self._checked: set[tuple[int, tuple[str, ...], bytes]] = set()
        """Own policies that were checked: version, covering patterns, layers."""
        self._prefetched: dict[str, OwnPolicy] = {}

    # Reading

    def layers_of(self, name: str) -> Layers:
        """The layers of exactly this pattern or topic."""
        shared = self._policy_table().layers(name)
        return shared if shared or is_pattern(name) else self._namespace.own_layers([name])[name]

    def page(self, after: str, limit: int) -> tuple[list[tuple[str, Layers]], str | None]:
        """Topics with their own policies. The shared ones come first."""
        rows: list[tuple[str, Layers]] = []
        shard, cursor = 0, ""
        if after:
            index, _, cursor = after.partition(":")
            shard = int(index)
        else:
            self._namespace.reload()
            shared = self._policy_table().all_layers()
            rows = [(name, shared[name]) for name in sorted(shared) if not is_pattern(name)]
        following, own = self._namespace.own_page(shard, cursor, limit)
        rows += own
        if following:
            return rows, f"{shard}:{following}"
        return rows, f"{shard + 1}:" if shard + 1 < self._namespace.shards else None

    def every(self) -> Iterator[tuple[str, Layers]]:
        """All topics, each once unless another process changes it meanwhile."""
        after: str | None = ""
        while after is not None:
            page, after = self.page(after, PAGE)
            yield from page

    def _policy_table(self) -> PolicyTable:
        return self._namespace.routes.policies

    # Changing

    def change(self, layer: str, changes: Changes) -> list[dict[str, Any]]:
        """
        Set fields of patterns and topics: first all patterns in one step, then the topics. Returns
        what each sets in the layer then. Raises BadPolicy before anything is changed.
        """
        self._check(layer, changes)
        patterns = [(name, fields) for name, fields in changes if is_pattern(name)]
        if patterns:
            self._change_shared(layer, patterns)
        answers: list[dict[str, Any]] = [{} for _ in changes]
        batch: dict[str, tuple[int, dict[str, Any]]] = {}
        for position, (name, fields) in enumerate(changes):
            if name in batch or len(batch) == AT_ONCE * self._namespace.shards:
                self._change_topics(layer, batch, answers)
                batch = {}
            if is_pattern(name):
                answers[position] = sources(self._policy_table().layers(name)).get(layer, {})
            else:
                batch[name] = (position, fields)
        self._change_topics(layer, batch, answers)
        return answers

    def _check(self, layer: str, changes: Changes) -> None:
        """
        Check several changes before the first is written. What other processes change meanwhile is
        checked again when it is written.
        """
        if len(changes) == 1:
            return
        self._namespace.reload()
        policy_table = self._policy_table().copy()
        self._prefetched = self._namespace.own_policies(
            [name for name, _ in changes if not is_pattern(name) and not policy_table.layers(name)]
        )
        own = {topic: policy.layers for topic, policy in self._prefetched.items()}
        shared = {
            name: fields
            for name, fields in changes
            if is_pattern(name) or policy_table.layers(name)
        }
        for name, fields in changes:
            if name in shared:
                policy_table.put(layer, name, fields)
        for under in {under for name in shared for under in policy_table.names_under(name)}:
            if is_pattern(under) or under in shared:
                policy_table.check(under, as_stored=self._as_stored)
        for name, fields in changes:
            if name in own:
                own[name] = change_layers(name, own[name], layer, fields)
                self._check_own(policy_table, name, own[name])

    def _check_own(self, policy_table: PolicyTable, topic: str, layers: Layers) -> None:
        """Check an own policy; equal ones under the same patterns only once."""
        kind = (self._namespace.routes.version, policy_table.covering(topic), _dumps(layers))
        if kind not in self._checked:
            policy_table.check(topic, layers, as_stored=self._as_stored)
            self._checked.add(kind)

    # Own policies of topics

    def _change_topics(
        self,
        layer: str,
        changes: Mapping[str, tuple[int, dict[str, Any]]],
        answers: list[dict[str, Any]],
    ) -> None:
        """Change topics, (position in `answers`, fields) by topic; repeated for those behind."""
        left = dict(changes)
        while left:
            policy_table, version = self._policy_table(), self._namespace.routes.version
            own = self._read_own([topic for topic in left if not policy_table.layers(topic)])
            planned: list[OwnChange] = []
            for topic, (position, fields) in list(left.items()):
                before = own.get(topic, OwnPolicy(b"", {}))
                layers = change_layers(topic, before.layers, layer, fields)
                if policy_table.layers(topic) or is_shared(policy_table, topic, layers):
                    answers[position] = self._change_shared(layer, [(topic, fields)])
                    del left[topic]
                    if version != self._namespace.routes.version:
                        break
                else:
                    # A policy that stays is not refused because a pattern has changed.
                    if layers != before.layers:
                        self._check_own(policy_table, topic, layers)
                    planned.append(OwnChange(topic, before.id, layers))
                    answers[position] = sources(layers).get(layer, {})
            if version == self._namespace.routes.version:
                for topic in self._write_own(planned, version):
                    del left[topic]

    def _read_own(self, topics: Sequence[str]) -> dict[str, OwnPolicy]:
        """
        Own policies. A prefetched one is used once: if another process has changed it since, the
        next attempt reads it again.
        """
        prefetched = {
            topic: self._prefetched.pop(topic) for topic in topics if topic in self._prefetched
        }
        return prefetched | self._namespace.own_policies(
            [topic for topic in topics if topic not in prefetched]
        )

    def _write_own(self, changes: Sequence[OwnChange], version: int) -> list[str]:
        """Write own policies. Returns the topics that no other process has changed meanwhile."""
        namespace = self._namespace
        written: list[str] = []
        homes = group((namespace.routes.home(change.topic), change) for change in changes)
        for round_ in rounds(homes, AT_ONCE):
            answers = namespace.write_own(round_, version, self._now_us)
            behind = {
                shard: answer.version
                for (shard, _), answer in zip(round_, answers, strict=True)
                if isinstance(answer, Behind)
            }
            for (_, page), answer in zip(round_, answers, strict=True):
                if isinstance(answer, Behind):
                    continue
                for change, own in zip(page, answer, strict=True):
                    if own is not None:
                        namespace.routes.learn(change.topic, *own)
                        written.append(change.topic)
            for shard, its_version in behind.items():
                namespace.agree(shard, its_version)
            if behind:
                break
        return written

    # Shared policies

    def _change_shared(self, layer: str, changes: Changes) -> dict[str, Any]:
        """
        Change patterns, or one topic, in one step. Repeated if another process has changed
        something meanwhile. Returns what the first sets in the layer then.
        """
        namespace = self._namespace
        names = list(dict(changes))
        topic = None if is_pattern(names[0]) else names[0]
        while True:
            namespace.reload()
            before, version = self._policy_table().copy(), namespace.routes.version
            after, joining = self._planned(layer, changes, before)
            leaving = self._leave(after, topic) if topic is not None else None
            if not (differences := after.differences(before)) and leaving is None:
                break
            covered = {name for each in names for name in after.names_under(each)}
            under = covered | joining.keys()
            for each in sorted(under):
                if is_pattern(each) or each == topic:
                    after.check(each, as_stored=self._as_stored)
            derived = before.subscription_patterns() | after.subscription_patterns()
            under |= {name for name in derived if any(matches(each, name) for each in names)}
            # The own policy is written first: while a shared one exists, it does not count.
            if topic is not None and leaving is not None:
                self._replace_own(topic, leaving, version)
            try:
                is_written = self._write_shared(
                    PolicyChange(
                        version,
                        version + 1,
                        after,
                        sorted(under),
                        differences,
                        _placed_again(names),
                        topic is not None or may_change_lanes(changes),
                    ),
                    names,
                    before,
                )
            except BaseException:
                if topic is not None and leaving is not None:
                    self._replace_own(topic, {}, namespace.routes.version)
                raise
            if not is_written:
                continue
            namespace.routes.load(version + 1, after.stored_rows())
            self._write_own(
                [OwnChange(each, own.id, {}) for each, own in joining.items()], version + 1
            )
            break
        layers = leaving or after.layers(names[0])
        return sources(layers).get(layer, {})

    def _planned(
        self, layer: str, changes: Changes, before: PolicyTable
    ) -> tuple[PolicyTable, dict[str, OwnPolicy]]:
        """The policies then, and the own policies that become shared ones."""
        after, name = before.copy(), changes[0][0]
        joining: dict[str, OwnPolicy] = {}
        if not is_pattern(name):
            if not before.layers(name):
                # Its subscriptions' policies follow it to its shards.
                readers = [topic_of(name, each.name) for each in self._subscriptions(name)]
                own = self._namespace.own_policies([name, *readers])
                joining = {topic: policy for topic, policy in own.items() if policy.layers}
        elif may_change_lanes(changes):
            for each, fields in changes:
                after.put(layer, each, fields)
            joining = {
                topic: policy
                for topic, policy in self._own_under([each for each, _ in changes])
                if is_shared(after, topic, policy.layers)
            }
        for topic, policy in joining.items():
            after.add(topic, policy.layers)
        for each, fields in changes:
            after.put(layer, each, fields)
        return after, joining

    def _subscriptions(self, topic: str) -> Sequence[Subscription]:
        own = self._namespace.own_layers([topic])[topic]
        return self._policy_table().resolve_own(topic, own).subscriptions

    def _leave(self, after: PolicyTable, topic: str) -> Layers | None:
        """Remove a topic whose policy no longer has to be shared. Returns its layers."""
        layers = after.layers(topic)
        if not layers or is_shared(after, topic, layers):
            return None
        after.check(topic, as_stored=self._as_stored)
        after.add(topic, {})
        return layers

    def _replace_own(self, topic: str, layers: Layers, version: int) -> None:
        own = self._namespace.own_policies([topic])[topic]
        self._write_own([OwnChange(topic, own.id, layers)], version)

    def _own_under(self, patterns: Sequence[str]) -> Iterator[tuple[str, OwnPolicy]]:
        for shard in range(self._namespace.shards):
            names = [
                name
                for name in self._namespace.own_topics(shard)
                if any(matches(pattern, name) for pattern in patterns)
            ]
            for page in pages(names, AT_ONCE):
                yield from self._namespace.own_policies(page).items()

    def _write_shared(
        self, change: PolicyChange, names: Sequence[str], before: PolicyTable
    ) -> bool:
        """
        Write to the first shard, then to the others; False: another process was faster. Raises
        TopicInUse once no shard has the change: all are asked before the first one has it.
        """
        namespace, others = self._namespace, range(1, self._namespace.shards)
        if change.may_change_lanes and others:
            _refuse(self._try_shared(others, change), names)
        (first,) = namespace.write_policies_on([0], change, self._now_us)
        if isinstance(first, Behind):
            return False
        _refuse([first], names)
        try:
            answers = namespace.write_policies_on(others, change._replace(rows=()), self._now_us)
            _refuse(answers, names)
        except TopicInUse:  # a message has come since
            self._undo(change, names, before)
            raise
        for shard, answer in zip(others, answers, strict=True):
            if isinstance(answer, Behind):
                namespace.routes.load(change.new_version, change.policy_table.stored_rows())
                namespace.write_all_policies(shard, answer.version)
        return True

    def _try_shared(
        self, shards: Sequence[int], change: PolicyChange
    ) -> list[Behind | InUse | None]:
        """What shards would answer to a change, once those with an older version know this one."""
        namespace = self._namespace
        answers = namespace.try_policies_on(shards, change, self._now_us)
        behind = {
            shard: answer.version
            for shard, answer in zip(shards, answers, strict=True)
            if isinstance(answer, Behind) and answer.version < change.version
        }
        for shard, version in behind.items():
            namespace.write_all_policies(shard, version)
        if behind:
            answers += namespace.try_policies_on(list(behind), change, self._now_us)
        return answers

    def _undo(self, change: PolicyChange, names: Sequence[str], before: PolicyTable) -> None:
        """Write what was before a change that the first shard has and another one refused."""
        namespace = self._namespace
        while True:
            namespace.reload()
            current, version = namespace.routes.policies, namespace.routes.version
            after = current.copy()
            for name in {name for _, name, _ in change.rows}:
                # What another process has set meanwhile stays.
                if current.layers(name) == change.policy_table.layers(name):
                    after.add(name, before.layers(name))
            undone = PolicyChange(
                version, version + 1, after, change.names, after.differences(current)
            )
            if self._write_shared(undone, names, current):
                namespace.routes.load(version + 1, after.stored_rows())
                return


def _refuse(answers: Sequence[Behind | InUse | None], names: Sequence[str]) -> None:
    """Raise TopicInUse if one of the shards refuses the change of these patterns or topics."""
    found = next((answer for answer in answers if isinstance(answer, InUse)), None)
    if found is not None:
        named = next((name for name in names if matches(name, found.topic)), names[0])
        raise topic_in_use(named, *found)


def is_shared(policy_table: PolicyTable, topic: str, layers: Layers) -> bool:
    """Whether every client has to know a topic's own policy to find the shard of a message."""
    if any("partitions" in fields for fields in layers.values()):
        return True
    if not layers:
        return False
    policy = policy_table.resolve_patterns(topic)
    if is_copy(topic) and policy.partitions == 1:
        policy = policy_table.resolve(base_of(topic))
    return policy.partitions > 1 or policy.buckets is not None


def _placed_again(names: Sequence[str]) -> str:
    """The topic, or the pattern of topics, whose lanes a change of these names places again."""
    if len(names) > 1:
        return "*"
    return base_of(names[0]) if is_pattern(names[0]) else names[0]
