"""`/metrics`: the namespace and the gateway in Prometheus' text format, never by topic."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from laneway.admin import workers
from laneway.gateway.extension import HASH_DIGITS
from laneway.gateway.http import Response
from laneway.gateway.services import LATENCY_BOUNDS
from laneway.gateway.waits import KINDS
from laneway.history import figures
from laneway.push import stored_counts, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from laneway.engines.base import FullEngine
    from laneway.gateway.call import Call
    from laneway.gateway.schema import MetricsQuery
    from laneway.gateway.services import Services

TEXT = b"text/plain; version=0.0.4; charset=utf-8"
RECENT_SECONDS = 600.0
"""How long ago the deliveries were whose waiting times are shown."""

MOST_READ = 500
"""
Topics with the largest backlogs of which delayed messages are told apart; what waits in others
counts as ready.
"""

STATIC_FILE = re.compile(rf"/[0-9a-f]{{{HASH_DIGITS}}}/.*")
"""The end of the path of a static file, which changes with each version."""

MAX_GATES = 100
"""Most gates that have series."""

GAUGES = ("topics", "waiting", "leased", "dead", "bytes")
COUNTERS = (
    "published",
    "delivered",
    "done",
    "retried",
    "died",
    "merged",
    "expired",
    "removed",
)

Sample = tuple[dict[str, str], float]


def show(call: Call) -> Response:
    """
    The totals, workers, tiers and gates of the namespace, and the gateway's requests, for
    Prometheus.

    The number of series does not depend on that of topics. `top=20` adds the topics with the
    largest backlogs.
    """
    call.caller.check_everything()
    return Response(200, "".join(_lines(call)).encode(), TEXT)


def _lines(call: Call) -> Iterator[str]:
    found = call.engine.overview()
    query: MetricsQuery = call.query
    largest = call.engine.topic_list(order="backlog", limit=max(MOST_READ, query.top or 0))
    recent = figures.read(call.engine, last=RECENT_SECONDS, largest=largest)
    for name in GAUGES:
        yield from _series(f"laneway_{name}", "gauge", [({}, getattr(found, name))])
    delayed = min(found.waiting, sum(stats.delayed for stats in largest))
    yield from _series("laneway_delayed", "gauge", [({}, delayed)])
    yield from _series("laneway_ready", "gauge", [({}, found.waiting - delayed)])
    yield from _series("laneway_oldest_seconds", "gauge", [({}, recent.oldest or 0.0)])
    states = Counter({"running": 0, "stopping": 0, "dead": 0})
    states.update(worker.state for worker in workers.read_all(call.engine))
    yield from _series(
        "laneway_workers", "gauge", [({"state": state}, count) for state, count in states.items()]
    )
    for name in COUNTERS:
        yield from _series(f"laneway_{name}_total", "counter", [({}, getattr(found, name))])
    tiers = [({"pool": each.pool, "tier": each.tier}, each) for each in found.tiers]
    yield from _series(
        "laneway_tier_delivered_total",
        "counter",
        [(labels, each.delivered) for labels, each in tiers],
    )
    gates = call.engine.gate_list()[:MAX_GATES]
    for name in ("leased", "waiting"):
        yield from _series(
            f"laneway_gate_{name}",
            "gauge",
            [({"gate": gate["name"]}, gate[name]) for gate in gates],
        )
    by_path: Counter[tuple[str, str, int]] = Counter()
    for (method, path, status), count in call.services.answers.items():
        by_path[method, STATIC_FILE.sub("/{file}", path), status] += count
    yield from _series(
        "laneway_gateway_requests_total",
        "counter",
        [
            ({"method": method, "path": path, "status": str(status)}, count)
            for (method, path, status), count in sorted(by_path.items())
        ],
    )
    services = call.services
    yield from _request_seconds(services)
    waiting: dict[str, int] = {"lease": services.long_polls.count}
    waiting |= {kind: services.waits.by_kind[kind] for kind in KINDS}
    yield from _series(
        "laneway_gateway_waiting",
        "gauge",
        [({"kind": kind}, count) for kind, count in waiting.items()],
    )
    yield from _series("laneway_gateway_operations", "gauge", [({}, services.operations.count)])
    for topics, times in (("noisy", recent.noisy), ("others", recent.others)):
        bounds = [f"{bound:g}" for bound in times.bounds] + ["+Inf"]
        yield from _series(
            f"laneway_recent_waiting_seconds_{topics}",
            "gauge",
            [
                ({"le": le}, count)
                for le, count in zip(bounds, itertools.accumulate(times.counts), strict=True)
            ],
        )
    yield from _push_series(call.engine)
    if query.top:
        yield from _series(
            "laneway_topic_waiting",
            "gauge",
            [({"topic": stats.topic}, stats.waiting) for stats in largest[: query.top]],
        )


def _request_seconds(services: Services) -> Iterator[str]:
    """A histogram of the time until the head of an answer, waiting for messages included."""
    counts: Counter[tuple[str, str, float]] = Counter()
    for (method, path, bound), count in services.latencies.copy().items():
        counts[method, STATIC_FILE.sub("/{file}", path), bound] += count
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (method, path), seconds in services.answer_seconds.copy().items():
        sums[method, STATIC_FILE.sub("/{file}", path)] += seconds
    yield "# TYPE laneway_gateway_request_seconds histogram\n"
    for (method, path), seconds in sorted(sums.items()):
        labels = {"method": method, "path": path}
        total = 0
        for bound in LATENCY_BOUNDS:
            total += counts[method, path, bound]
            le = "+Inf" if math.isinf(bound) else f"{bound:g}"
            yield _line("laneway_gateway_request_seconds_bucket", {**labels, "le": le}, total)
        yield _line("laneway_gateway_request_seconds_sum", labels, seconds)
        yield _line("laneway_gateway_request_seconds_count", labels, total)


def _push_series(engine: FullEngine) -> Iterator[str]:
    """What the senders have counted; nothing where none ever did."""
    counts = stored_counts.read(engine)
    if not (counts.attempts or counts.skipped or counts.opened):
        return
    yield from _series(
        "laneway_endpoint_attempts_total",
        "counter",
        [({"answer": answer}, count) for answer, count in sorted(counts.attempts.items())],
    )
    for name, count in (
        ("skipped", counts.skipped),
        ("breakers_opened", counts.opened),
        ("log_dropped", counts.dropped),
    ):
        yield from _series(f"laneway_endpoint_{name}_total", "counter", [({}, count)])
    is_open = table.count(engine, "open")
    yield from _series("laneway_endpoint_breakers_open", "gauge", [({}, is_open)])


def _series(name: str, kind: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield _line(name, labels, value)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{name}{_labels(labels)} {shown}\n"


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
