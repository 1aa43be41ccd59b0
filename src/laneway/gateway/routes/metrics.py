"""`/metrics`: the namespace and the gateway in Prometheus' text format, never by topic."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from laneway import store_metrics
from laneway.gateway.call import Call
from laneway.gateway.extension import HASH_DIGITS
from laneway.gateway.http import Response
from laneway.gateway.services import LATENCY_BOUNDS, Services
from laneway.gateway.waiting.long_poll import KINDS
from laneway.store_metrics import Family

TEXT = b"text/plain; version=0.0.4; charset=utf-8"

STATIC_FILE = re.compile(rf"/[0-9a-f]{{{HASH_DIGITS}}}/.*")
"""The end of the path of a static file, which changes with each version."""


def show(call: Call) -> Response:
    """
    The totals, workers, tiers and gates of the namespace, and the gateway's requests, for
    Prometheus.

    The number of series does not depend on that of topics. `top=20` adds the topics with the
    largest backlogs.
    """
    reading = store_metrics.read(call.engine)
    found = [*store_metrics.families(reading, call.services.runtime.namespace), *_own(call)]
    return Response(200, store_metrics.text(found).encode(), TEXT)


def _own(call: Call) -> Iterator[Family]:
    """The series of the gateway itself, and those of the topics that were asked for."""
    services = call.services
    by_path: Counter[tuple[str, str, str]] = Counter()
    for (method, path, status), count in services.answers.items():
        by_path[method, STATIC_FILE.sub("/{file}", path), str(status)] += count
    yield Family(
        "laneway_gateway_requests_total",
        "counter",
        "Requests of this gateway",
        ("method", "path", "status"),
        sorted(by_path.items()),
    )
    yield from _request_seconds(services)
    waiting = {kind: services.waits.by_kind[kind] for kind in KINDS}
    yield Family(
        "laneway_gateway_waiting",
        "gauge",
        "Requests of this gateway that wait for something",
        ("kind",),
        [(("lease",), services.long_polls.count), *(((k,), n) for k, n in waiting.items())],
    )
    yield Family(
        "laneway_gateway_operations",
        "gauge",
        "Operations that run in this gateway",
        (),
        [((), services.operations.count)],
    )
    if call.query.top:
        largest = call.engine.topic_list(order="backlog", limit=call.query.top)
        yield Family(
            "laneway_topic_waiting",
            "gauge",
            "Messages that wait, of the topics with the largest backlogs",
            ("topic",),
            [((stats.topic,), stats.waiting) for stats in largest],
        )


def _request_seconds(services: Services) -> Iterator[Family]:
    """A histogram of the time until the head of an answer, waiting for messages included."""
    counts: Counter[tuple[str, str, float]] = Counter()
    for (method, path, bound), count in services.latencies.copy().items():
        counts[method, STATIC_FILE.sub("/{file}", path), bound] += count
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for (method, path), seconds in services.answer_seconds.copy().items():
        sums[method, STATIC_FILE.sub("/{file}", path)] += seconds
    name, labels = "laneway_gateway_request_seconds", ("method", "path")
    yield Family(name, "histogram", "Time until the head of an answer", labels, [])
    totals: Counter[tuple[str, str]] = Counter()
    buckets = []
    for request in sorted(sums):
        for bound in LATENCY_BOUNDS:
            totals[request] += counts[*request, bound]
            le = "+Inf" if math.isinf(bound) else f"{bound:g}"
            buckets.append(((*request, le), totals[request]))
    yield Family(f"{name}_bucket", "", "", (*labels, "le"), buckets)
    yield Family(f"{name}_sum", "", "", labels, sorted(sums.items()))
    yield Family(f"{name}_count", "", "", labels, sorted(totals.items()))
