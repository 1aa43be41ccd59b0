"""
The series of a store for Prometheus, and their text: one table for `laneway exporter` and for the
gateway's `/metrics`.

To add a series, add a row to `TABLE`. The number of series does not depend on that of topics.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from laneway import store_figures
from laneway.admin import workers
from laneway.engines.base import FullEngine, Overview, StorePart
from laneway.history import figures
from laneway.history.figures import History, WaitingTimes
from laneway.push import stored_counts, table

Samples = Iterable[tuple[tuple[str, ...], float | None]]
"""The labels' values, and the value, or None (no sample) if it is unknown."""

RECENT_SECONDS = 600.0
"""How long ago the deliveries were whose waiting times are shown."""

MOST_READ = 500
"""
The number of topics with the largest backlogs whose delayed messages are counted separately; what
waits in other topics counts as ready.
"""

MAX_GATES = 100
"""Most gates that have series."""

TOTALS = ("published", "delivered", "done", "retried", "died", "merged", "expired", "removed")
"""Counters of the namespace since it was created."""


class Family(NamedTuple):
    """
    The samples of one name. `kind`: "gauge", "counter" or "histogram"; "": a part of the one
    before.
    """

    name: str
    kind: str
    what: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]


class Reading(NamedTuple):
    """What the series are made of."""

    figures: store_figures.Figures
    overview: Overview
    recent: History
    delayed: int
    workers: Mapping[str, int]
    gates: list[dict[str, Any]]
    sent: stored_counts.Counts | None
    """The counts of the senders of webhooks, or None if none ever counted."""
    open_breakers: int


def read(engine: FullEngine, walk: store_figures.Walk | None = None) -> Reading:
    """Read a store. `walk`: see `store_figures.read`. Raises EngineUnavailable."""
    found = store_figures.read(engine, walk)
    largest = engine.topic_list(order="backlog", limit=MOST_READ)
    states = Counter({"running": 0, "stopping": 0, "dead": 0})
    states.update(worker.state for worker in workers.read_all(engine))
    sent = stored_counts.read(engine)
    has_sent = bool(sent.attempts or sent.skipped or sent.opened)
    return Reading(
        figures=found,
        overview=found.overview,
        recent=figures.read(engine, last=RECENT_SECONDS, largest=largest),
        delayed=min(found.overview.waiting, sum(stats.delayed for stats in largest)),
        workers=states,
        gates=engine.gate_list()[:MAX_GATES],
        sent=sent if has_sent else None,
        open_breakers=table.count(engine, "open") if has_sent else 0,
    )


def families(reading: Reading | None, namespace: str) -> Iterator[Family]:
    """All series of a store. `reading`: None: the store is unavailable."""
    up = 0.0 if reading is None else 1.0
    space = ("namespace",)
    yield Family("laneway_up", "gauge", "1: the store answers", space, [((namespace,), up)])
    if reading is None:
        return
    for name, kind, what, labels, samples_of in TABLE:
        found = [
            ((namespace, *values), value)
            for values, value in samples_of(reading)
            if value is not None
        ]
        if found or not name.startswith("laneway_endpoint"):
            shown = f"{name}_total" if kind == "counter" else name
            yield Family(shown, kind, what, ("namespace", *labels), found)


def text(found: Iterable[Family]) -> str:
    """The families as Prometheus reads them."""
    lines: list[str] = []
    for family in found:
        if family.kind:
            lines.append(f"# HELP {family.name} {family.what}\n")
            lines.append(f"# TYPE {family.name} {family.kind}\n")
        for values, value in family.samples:
            named = zip(family.labels, values, strict=True)
            labels = ",".join(f'{label}="{_escaped(each)}"' for label, each in named)
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            labels = labels and f"{{{labels}}}"
            lines.append(f"{family.name}{labels} {shown}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _one(value_of: Callable[[Reading], float]) -> Callable[[Reading], Samples]:
    """A series without labels of its own."""
    return lambda reading: [((), value_of(reading))]


def _total(field: str) -> Callable[[Reading], Samples]:
    return _one(lambda reading: getattr(reading.overview, field))


def _of_patterns(field: str) -> Callable[[Reading], Samples]:
    return lambda reading: [
        ((group.pattern, group.tier, group.pool), getattr(group, field))
        for group in reading.figures.groups
    ]


def _of_parts(value_of: Callable[[StorePart], float | None]) -> Callable[[Reading], Samples]:
    return lambda reading: [((part.name,), value_of(part)) for part in reading.figures.parts]


def _of_gates(field: str) -> Callable[[Reading], Samples]:
    return lambda reading: [((gate["name"],), gate[field]) for gate in reading.gates]


def _of_sent(value_of: Callable[[stored_counts.Counts], float]) -> Callable[[Reading], Samples]:
    return lambda reading: [] if reading.sent is None else [((), value_of(reading.sent))]


def _classes(times_of: Callable[[History], WaitingTimes]) -> Callable[[Reading], Samples]:
    """How many messages waited at most this long, by class."""

    def samples(reading: Reading) -> Samples:
        times = times_of(reading.recent)
        bounds = [f"{bound:g}" for bound in times.bounds] + ["+Inf"]
        counts = itertools.accumulate(times.counts)
        return [((bound,), count) for bound, count in zip(bounds, counts, strict=True)]

    return samples


def _attempts(reading: Reading) -> Samples:
    attempts = {} if reading.sent is None else reading.sent.attempts
    return [((answer,), count) for answer, count in sorted(attempts.items())]


_PATTERN = ("pattern", "tier", "pool")
_TIER = ("pool", "tier")

TABLE: tuple[tuple[str, str, str, tuple[str, ...], Callable[[Reading], Samples]], ...] = (
    (
        "laneway_exact",
        "gauge",
        "1: every topic was read; 0: the split between patterns is that of the last full read",
        (),
        _one(lambda reading: int(reading.figures.is_exact)),
    ),
    (
        "laneway_topics",
        "gauge",
        "Topics with something waiting or leased, or a limit that has not recovered",
        (),
        _total("topics"),
    ),
    ("laneway_waiting", "gauge", "Messages that wait", (), _total("waiting")),
    (
        "laneway_delayed",
        "gauge",
        "Messages that wait for their time, in the 500 topics with the largest backlogs",
        (),
        _one(lambda reading: reading.delayed),
    ),
    (
        "laneway_ready",
        "gauge",
        "Messages that wait and are not delayed",
        (),
        _one(lambda reading: reading.overview.waiting - reading.delayed),
    ),
    ("laneway_leased", "gauge", "Messages that are leased", (), _total("leased")),
    ("laneway_dead", "gauge", "Dead letters", (), _total("dead")),
    ("laneway_bytes", "gauge", "Size of all bodies that wait", (), _total("bytes")),
    (
        "laneway_oldest_seconds",
        "gauge",
        "Age of the oldest message that waits",
        (),
        _one(lambda reading: reading.recent.oldest or 0.0),
    ),
    (
        "laneway_workers",
        "gauge",
        "Workers by state: running, stopping, dead",
        ("state",),
        lambda reading: [((state,), count) for state, count in reading.workers.items()],
    ),
    *(
        (f"laneway_{name}", "counter", f"Messages {name}, of all topics", (), _total(name))
        for name in TOTALS
    ),
    ("laneway_pattern_waiting", "gauge", "Messages that wait", _PATTERN, _of_patterns("waiting")),
    (
        "laneway_pattern_leased",
        "gauge",
        "Messages that are leased",
        _PATTERN,
        _of_patterns("leased"),
    ),
    ("laneway_pattern_dead", "gauge", "Dead letters", _PATTERN, _of_patterns("dead")),
    (
        "laneway_pattern_oldest_seconds",
        "gauge",
        "Age of the oldest message that waits",
        _PATTERN,
        _of_patterns("oldest"),
    ),
    (
        "laneway_pattern_throttled_seconds",
        "gauge",
        "For how long rates have held ready messages back, summed over existing topics",
        _PATTERN,
        _of_patterns("throttled"),
    ),
    (
        "laneway_tier_delivered",
        "counter",
        "Deliveries of a tier",
        _TIER,
        lambda reading: [((t.pool, t.tier), t.delivered) for t in reading.overview.tiers],
    ),
    (
        "laneway_tier_ready_topics",
        "gauge",
        "Topics that could deliver now (at most 1,000)",
        _TIER,
        lambda reading: [((t.pool, t.tier), t.runnable) for t in reading.overview.tiers],
    ),
    ("laneway_gate_leased", "gauge", "Leases at a gate", ("gate",), _of_gates("leased")),
    ("laneway_gate_waiting", "gauge", "Lanes that wait at a gate", ("gate",), _of_gates("waiting")),
    (
        "laneway_part_used_bytes",
        "gauge",
        "Bytes of the file, or of the server's memory",
        ("part",),
        _of_parts(lambda part: part.used),
    ),
    (
        "laneway_part_free_bytes",
        "gauge",
        "Bytes left on the disk, or below the server's maxmemory",
        ("part",),
        _of_parts(lambda part: part.free),
    ),
    (
        "laneway_part_log_bytes",
        "gauge",
        "Bytes of the write-ahead log or append-only file",
        ("part",),
        _of_parts(lambda part: part.log),
    ),
    (
        "laneway_part_answer_seconds",
        "gauge",
        "How long a small read took",
        ("part",),
        _of_parts(lambda part: part.seconds),
    ),
    (
        "laneway_recent_waiting_seconds_noisy",
        "gauge",
        "Deliveries of the last 10 minutes by the time that they had waited, of noisy topics",
        ("le",),
        _classes(lambda recent: recent.noisy),
    ),
    (
        "laneway_recent_waiting_seconds_others",
        "gauge",
        "Deliveries of the last 10 minutes by the time that they had waited, of all other topics",
        ("le",),
        _classes(lambda recent: recent.others),
    ),
    (
        "laneway_endpoint_attempts",
        "counter",
        "Requests of all senders to endpoints, by the class of the answer",
        ("answer",),
        _attempts,
    ),
    (
        "laneway_endpoint_skipped",
        "counter",
        "Messages of types that their endpoint does not take",
        (),
        _of_sent(lambda sent: sent.skipped),
    ),
    (
        "laneway_endpoint_breakers_opened",
        "counter",
        "How often an endpoint's breaker opened",
        (),
        _of_sent(lambda sent: sent.opened),
    ),
    (
        "laneway_endpoint_log_dropped",
        "counter",
        "Entries that the delivery log lost",
        (),
        _of_sent(lambda sent: sent.dropped),
    ),
    (
        "laneway_endpoint_breakers_open",
        "gauge",
        "Endpoints whose breakers are open, up to 10,000",
        (),
        lambda reading: [] if reading.sent is None else [((), reading.open_breakers)],
    ),
)
"""Name (a counter's without `_total`), type, meaning, labels besides the namespace, samples."""
