"""
Changing policies on the shards.

Those of patterns are known to every client; a version tells who is behind. So are those of exact
topics that decide on which shard a message is (they have partitions, or stand under a pattern that
folds). Any other exact topic has an entry on its own shard, which only that shard's functions read:
nobody is told, see `scripts/parts/rules.lua`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.shared.policy_changes import (
    copy_of,
    differences,
    layers_by_name,
    may_change_lanes,
    topic_in_use,
)
from laneway.engines.valkey import records
from laneway.policy import (
    PROGRAM,
    PolicyBook,
    change_layers,
    is_pattern,
    matches,
    sources,
    with_code,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway.engines.valkey.namespace import Namespace
    from laneway.policy import Layers

_dumps = msgspec.json.Encoder().encode

AT_ONCE = 250
"""Topics that one call of a function changes."""


class Policies:
    """Reads and changes the policies of one namespace."""

    def __init__(self, space: Namespace, now_us: int | None = None) -> None:
        self._space = space
        self._now_us = now_us
        self._checked: set[tuple[int, tuple[str, ...], bytes]] = set()
        """What was found possible: the version, the patterns, what a topic sets."""
        self._read: dict[str, tuple[bytes, Layers]] = {}

    # Reading

    def layers_of(self, name: str) -> Layers:
        """What is set for exactly this pattern or topic."""
        found = self._book().layers(name)
        return found if found or is_pattern(name) else self._space.own_of([name])[name]

    def page(self, after: str, limit: int) -> tuple[list[tuple[str, Layers]], str | None]:
        """Topics and what they set; the first page begins with those that every client knows."""
        found: list[tuple[str, Layers]] = []
        shard, cursor = 0, 0
        if after:
            shard, cursor = (int(part) for part in after.split(":"))
        else:
            self._space.reload()
            rows = layers_by_name(self._book())
            found = [(name, rows[name]) for name in sorted(rows) if not is_pattern(name)]
        following, entries = self._space.read(shard, "HSCAN", "own", cursor, "COUNT", limit)
        found += self._meanings(shard, dict(zip(entries[::2], entries[1::2], strict=True)))
        if int(following):
            return found, f"{shard}:{int(following)}"
        return found, f"{shard + 1}:0" if shard + 1 < self._space.shards else None

    def every(self) -> Iterator[tuple[str, Layers]]:
        """All topics, each once unless somebody changes them meanwhile."""
        after: str | None = ""
        while after is not None:
            page, after = self.page(after, 1000)
            yield from page

    def _meanings(self, shard: int, ids: dict[bytes, bytes]) -> list[tuple[str, Layers]]:
        wanted = list(dict.fromkeys(ids.values()))
        stored = (
            dict(zip(wanted, self._space.read(shard, "HMGET", "own_sets", *wanted), strict=True))
            if wanted
            else {}
        )
        layers = {
            own: records.own_layers(record) for own, record in stored.items() if record is not None
        }
        return [(topic.decode(), layers[own]) for topic, own in ids.items() if own in layers]

    def _book(self) -> PolicyBook:
        return self._space.book.policies

    # Changing

    def change(
        self, layer: str, changes: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[dict[str, Any]]:
        """
        Set checked fields of patterns and topics; returns what each sets in the layer then. Raises
        BadPolicy before anything is changed.

        First the patterns, all together, then the topics.
        """
        self._check(layer, changes)
        patterns = [(name, fields) for name, fields in changes if is_pattern(name)]
        if patterns:
            self._change_known(layer, patterns)
        told: list[dict[str, Any]] = [{} for _ in changes]
        together: dict[str, tuple[int, dict[str, Any]]] = {}
        for position, (name, fields) in enumerate(changes):
            if name in together or len(together) == AT_ONCE * self._space.shards:
                self._change_topics(layer, together, told)
                together = {}
            if is_pattern(name):
                told[position] = sources(self._book().layers(name)).get(layer, {})
            else:
                together[name] = (position, fields)
        self._change_topics(layer, together, told)
        return told

    def _check(self, layer: str, changes: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """
        As far as it can be said before: what others change meanwhile is looked at again when it is
        written.
        """
        if len(changes) == 1:
            return
        self._space.reload()
        book = copy_of(self._book())
        self._read = self._space.own_ids(
            [name for name, _ in changes if not is_pattern(name) and not book.layers(name)]
        )
        own = {topic: layers for topic, (_, layers) in self._read.items()}
        version = self._space.book.version
        known = [
            (name, fields) for name, fields in changes if is_pattern(name) or book.layers(name)
        ]
        for name, fields in known:
            book.put(layer, name, fields)
        for under in {under for name, _ in known for under in book.names_under(name)}:
            if is_pattern(under) or under in dict(known):
                book.check(under)
        for name, fields in changes:
            if name not in own:
                continue
            own[name] = change_layers(name, own[name], layer, fields)
            kind = (version, book.covering(name), _dumps(own[name]))
            if kind not in self._checked:
                self._checked.add(kind)
                book.check(name, own[name])

    def _is_known(self, book: PolicyBook, topic: str, layers: Layers) -> bool:
        """Whether clients have to know this to find the topic's shard."""
        if any("partitions" in fields for fields in layers.values()):
            return True
        policy = book.resolve_patterns(topic)
        return bool(layers) and (policy.partitions > 1 or policy.buckets is not None)

    # Topics

    def _change_topics(
        self, layer: str, changes: dict[str, tuple[int, dict[str, Any]]], told: list[dict[str, Any]]
    ) -> None:
        left = dict(changes)
        while left:
            book, version = self._book(), self._space.book.version
            own = self._read_once([topic for topic in left if not book.layers(topic)])
            entries: dict[str, tuple[bytes, Layers]] = {}
            for topic, (position, fields) in list(left.items()):
                before, stood = own.get(topic, (b"", {}))
                layers = change_layers(topic, stood, layer, fields)
                if book.layers(topic) or self._is_known(book, topic, layers):
                    told[position] = self._change_known(layer, [(topic, fields)])
                    del left[topic]
                    if version != self._space.book.version:
                        break
                else:
                    kind = (version, book.covering(topic), _dumps(layers))
                    if (
                        layers != stood and kind not in self._checked
                    ):  # what stays is not refused for a pattern that has changed
                        book.check(topic, layers)
                        self._checked.add(kind)
                    entries[topic] = (before, layers)
                    told[position] = sources(layers).get(layer, {})
            if version == self._space.book.version:
                for topic in self.write_own(entries, version):
                    del left[topic]

    def _read_once(self, topics: list[str]) -> dict[str, tuple[bytes, Layers]]:
        """
        What has been read already is used once: where somebody has changed it since, it is read
        again.
        """
        known = {topic: self._read.pop(topic) for topic in topics if topic in self._read}
        return known | self._space.own_ids([topic for topic in topics if topic not in known])

    def write_own(self, entries: dict[str, tuple[bytes, Layers]], version: int) -> list[str]:
        """
        Write topics' own (what each has had: its id, and what it gets); returns those that nobody
        else has changed meanwhile.
        """
        space = self._space
        written: list[str] = []
        by_shard: dict[int, list[str]] = {}
        for topic in entries:
            by_shard.setdefault(space.home(topic), []).append(topic)
        sets: dict[bytes, tuple[bytes, bytes]] = {}
        for shard, topics in by_shard.items():
            for start in range(0, len(topics), AT_ONCE):
                page = topics[start : start + AT_ONCE]
                pairs = [_own_record(entries[topic][1], sets) for topic in page]
                ids = [
                    (topic, entries[topic][0].decode(), own.decode())
                    for topic, (own, _) in zip(page, pairs, strict=True)
                ]
                stored = {own: record for own, record in pairs if own}
                arguments = (
                    records.pack(ids),
                    records.pack([own.decode() for own in stored]),
                    *stored.values(),
                )
                answer = space.run("own", shard, self._now_us, version, *arguments, durable=True)
                if answer and answer[0] == b"stale":
                    space.agree(shard, answer[1])
                    return written
                others = {n - 1 for n in answer}
                done = [n for n in range(len(page)) if n not in others]
                for n in done:
                    space.book.learn(page[n], *pairs[n])
                written += [page[n] for n in done]
        return written

    # What every client knows

    def _change_known(
        self, layer: str, changes: Sequence[tuple[str, dict[str, Any]]]
    ) -> dict[str, Any]:
        """
        Of patterns, or of one topic, in one step. Again, where another process has changed
        something meanwhile.
        """
        space = self._space
        names = list(dict(changes))
        topic = None if is_pattern(names[0]) else names[0]
        while True:
            space.reload()
            before, version = self._book(), space.book.version
            after, own = self._changed(layer, changes, before)
            demoted = self._leave(after, topic) if topic is not None else None
            if after.stored_rows() == before.stored_rows() and demoted is None:
                break
            under = sorted(
                {name for each in names for name in after.names_under(each)} | own.keys()
            )
            for each in under:
                if is_pattern(each) or each == topic:
                    after.check(each)
            if topic is not None and demoted is not None:
                self._write_demoted(topic, demoted, version)
            try:
                if not self._write(
                    names,
                    version,
                    _fields(before, after),
                    after,
                    under,
                    moves=topic is not None or may_change_lanes(changes),
                ):
                    continue
            except BaseException:
                if topic is not None and demoted is not None:
                    self._take_back(topic, version)
                raise
            space.book.load(version + 1, after.stored_rows())
            self.write_own({each: (own_id, {}) for each, (own_id, _) in own.items()}, version + 1)
            break
        layers = demoted or after.layers(names[0])
        return sources(layers).get(layer, {})

    def _changed(
        self, layer: str, changes: Sequence[tuple[str, dict[str, Any]]], before: PolicyBook
    ) -> tuple[PolicyBook, dict[str, tuple[bytes, Layers]]]:
        """The book then, and what comes into it of topics that clients need not know so far."""
        after, name = copy_of(before), changes[0][0]
        own: dict[str, tuple[bytes, Layers]] = {}
        if not is_pattern(name):
            if not before.layers(name):
                own = {
                    topic: entry for topic, entry in self._space.own_ids([name]).items() if entry[1]
                }
        elif may_change_lanes(changes):
            for each, fields in changes:
                after.put(layer, each, fields)
            found = self._own_under([each for each, _ in changes])
            own = {topic: entry for topic, entry in found if self._is_known(after, topic, entry[1])}
        for topic, (_, layers) in own.items():
            after.add(topic, layers)
        for each, fields in changes:
            after.put(layer, each, fields)
        return after, own

    def _leave(self, after: PolicyBook, name: str) -> Layers | None:
        """A topic that clients need not know any longer leaves the book; what it sets then."""
        layers = after.layers(name)
        if not layers or self._is_known(after, name, layers):
            return None
        after.check(name)
        after.add(name, {})
        return layers

    def _write_demoted(self, topic: str, layers: Layers, version: int) -> None:
        """Before it leaves the book, which precedes."""
        stood, _ = self._space.own_ids([topic])[topic]
        self.write_own({topic: (stood, layers)}, version)

    def _take_back(self, topic: str, version: int) -> None:
        stood, _ = self._space.own_ids([topic])[topic]
        self.write_own({topic: (stood, {})}, version)

    def _own_under(self, patterns: Sequence[str]) -> Iterator[tuple[str, tuple[bytes, Layers]]]:
        for shard in range(self._space.shards):
            names = [name.decode() for name, _ in self._space.scan(shard, "HSCAN", "own")]
            names = [name for name in names if any(matches(pattern, name) for pattern in patterns)]
            for start in range(0, len(names), AT_ONCE):
                yield from self._space.own_ids(names[start : start + AT_ONCE]).items()

    def _write(
        self,
        changed: Sequence[str],
        version: int,
        fields: list[str],
        book: PolicyBook,
        names: list[str],
        *,
        moves: bool,
    ) -> bool:
        """Tell the first shard, then the others; False if somebody was faster."""
        space = self._space
        there = {name for _, name, _ in book.stored_rows()}
        exact = records.exact_names(there)
        rules = [
            records.rule_of(book, name, space.shards) if name in there else b"" for name in names
        ]
        swept = changed[0] if len(changed) == 1 else "*"
        for shard in range(space.shards):
            own = records.pack(fields if shard == 0 else [])
            arguments = (version, version + 1, swept, own, records.pack(names), exact, int(moves))
            told = space.run("policy", shard, self._now_us, *arguments, *rules, durable=True)
            if told[0] == b"in use":
                topic = told[1].decode()
                pattern = next((name for name in changed if matches(name, topic)), swept)
                raise topic_in_use(pattern, topic, told[2], told[3])
            if told[0] == b"stale":
                if shard == 0:
                    return False
                space.book.load(version + 1, book.stored_rows())
                space.tell(shard, told[1])
        return True

    def spread(self) -> None:
        """Topics that clients need not know leave the book; all rules are written again."""
        space = self._space
        while True:
            space.reload()
            before, version = self._book(), space.book.version
            after, entries = copy_of(before), {}
            for name, layers in layers_by_name(before).items():
                of_before = (
                    with_code({PROGRAM: layers["code"], **sources(layers)})
                    if PROGRAM not in layers and "code" in layers
                    else layers
                )
                is_own = not is_pattern(name) and not self._is_known(before, name, layers)
                after.add(name, {} if is_own else of_before)
                if is_own:
                    entries[name] = (b"", of_before)
            self.write_own(
                entries, version
            )  # one that has been written before, and perhaps changed since, stays
            if self._write(
                ["*"],
                version,
                _fields(before, after),
                after,
                sorted(layers_by_name(before)),
                moves=False,
            ):
                space.book.load(version + 1, after.stored_rows())
                return


def _own_record(layers: Layers, sets: dict[bytes, tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
    """Id and record; equal sets are made once."""
    if not layers:
        return b"", b""
    key = _dumps(layers)
    found = sets.get(key)
    if found is None:
        found = sets[key] = records.own_record(layers)
    return found


def _fields(before: PolicyBook, after: PolicyBook) -> list[str]:
    """
    What changes in the hash `policies`: its fields and what they hold then, "" for one that goes.
    """
    found: list[str] = []
    for layer, name, fields in differences(before, after):
        found += (f"{layer}:{name}", json.dumps(fields) if fields is not None else "")
    return found
