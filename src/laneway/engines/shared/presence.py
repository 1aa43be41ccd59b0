"""Records of workers: what engines store of a heartbeat, and what they list."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from laneway.engines.base.presence import (
    MAX_BUSY_PATTERNS,
    MAX_BUSY_TOPICS,
    MAX_WORKER_NAMES,
    MAX_WORKER_TEXT,
    WorkerFacts,
    WorkerView,
)

_dumps = msgspec.json.Encoder().encode
_loads = msgspec.json.Decoder(WorkerFacts).decode


def encode(facts: WorkerFacts) -> bytes:
    """The facts as JSON of bounded size, whatever names the program has chosen."""
    oldest = facts.oldest
    lists = (facts.pools, facts.topics or (), facts.patterns or ())
    return _dumps(
        msgspec.structs.replace(
            facts,
            host=_cut(facts.host),
            program=_cut(facts.program),
            version=None if facts.version is None else _cut(facts.version),
            laneway=_cut(facts.laneway),
            pools=_first(facts.pools),
            topics=None if facts.topics is None else _first(facts.topics),
            patterns=None if facts.patterns is None else _first(facts.patterns),
            busy_topics=_busiest(facts.busy_topics),
            slots={
                _cut(pattern): facts.slots[pattern]
                for pattern in sorted(facts.slots, key=facts.slots.__getitem__, reverse=True)[
                    :MAX_BUSY_PATTERNS
                ]
            },
            full={_cut(pattern): facts.full[pattern] for pattern in _first(facts.full)},
            held=facts.held[:MAX_WORKER_NAMES],
            durations={_cut(name): facts.durations[name] for name in _first(facts.durations)},
            is_cut=facts.is_cut or any(len(names) > MAX_WORKER_NAMES for names in lists),
            oldest=oldest
            and msgspec.structs.replace(oldest, topic=_cut(oldest.topic), id=_cut(oldest.id)),
        )
    )


def view(
    stored: str | bytes, started_us: int, beat_us: int, dead_us: int, now_us: int
) -> WorkerView:
    """A worker as `Coordination.workers` lists it."""
    facts = _loads(stored)
    return WorkerView(
        facts=facts,
        state="dead" if dead_us <= now_us else "stopping" if facts.stopping else "running",
        started_us=started_us,
        beat_us=beat_us,
        dead_us=dead_us,
    )


def _cut(text: str) -> str:
    return text[:MAX_WORKER_TEXT].encode(errors="replace").decode()


def _busiest(busy: dict[str, float]) -> dict[str, float]:
    if len(busy) <= MAX_BUSY_TOPICS:
        return busy
    first = sorted(busy, key=lambda topic: (-busy[topic], topic))[:MAX_BUSY_TOPICS]
    return {topic: busy[topic] for topic in first}


def _first(names: Iterable[str]) -> list[str]:
    """Names are not cut: a part of a name would be another one."""
    return list(names)[:MAX_WORKER_NAMES]
