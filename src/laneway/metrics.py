"""
Metrics for Prometheus. Needs `pip install 'laneway[metrics]'`.

`measure(app, port=9100)` counts what this process publishes and handles. The gauges of the store
are the same for all processes, so one process serves them: `laneway exporter`, or one with
`measure(app, store=True)`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from laneway import store_figures
from laneway.errors import LanewayError, UsageError
from laneway.safetext import escaped, without_passwords
from laneway.signals import worker_ready
from laneway.working.handler import kind_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from prometheus_client import CollectorRegistry

    from laneway.app import Laneway
    from laneway.message import Lease, Message, Receipt

log = logging.getLogger("laneway.worker")

PORTS = 20
"""How many ports `serve` tries, so that each of several workers on a machine finds a free one."""

ADDRESS = "127.0.0.1"
"""Loopback: only this machine can read the metrics unless another address is named."""

BUCKETS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)

KINDS = 500
"""
Most kinds of messages; all others count as one kind. Producers choose the names of tasks and
topics, and each kind is several series.
"""

FRESH = 1.0
"""For how many seconds the gauges of a store are cached."""


def measure(
    app: Laneway,
    port: int | None = None,
    *,
    address: str = ADDRESS,
    registry: CollectorRegistry | None = None,
    store: bool = False,
    workers_only: bool = False,
) -> int | None:
    """
    Count and time what the application publishes and handles in this process, and serve it.

    - `laneway_published_total{kind, outcome}`: messages by the outcome of their publish.
    - `laneway_handled_total{kind, outcome}`: runs by their end: success, retry, dead, back_off (the
      destination was unavailable).
    - `laneway_failures_total{kind, error}`: runs that raised, by the type of the error.
    - `laneway_handler_seconds{kind}`: how long handlers run. `laneway_waited_seconds{kind}`: from
      publish to the start of the first run.
    - `laneway_running{kind}`: handlers that are running.
    - `laneway_push_attempts_total{answer}`, `laneway_push_skipped_total`,
      `laneway_push_breakers_opened_total`, `laneway_push_log_dropped_total`: of a process that
      pushes.

    `kind` is the task, or the pattern one level above the topic, so that a million topics are not a
    million series.

    Arguments: `port`: where to serve; if it is taken, the next free one of 20; None: not served
    here. `address`: default loopback; `"0.0.0.0"`: every network. `registry`: default
    prometheus_client's. `store`: serve the gauges of the store too, as `laneway exporter` does; use
    it in one process only. `workers_only`: open the port when a worker starts in this process, and
    not in other programs that import the application.

    Returns the port; None if nothing is served yet.

    Raises UsageError if prometheus_client is not installed or no port is free.
    """
    prometheus = needed("measure")
    into = prometheus.REGISTRY if registry is None else registry
    published = prometheus.Counter(
        "laneway_published",
        "Messages published, by outcome",
        ("kind", "outcome"),
        registry=into,
    )
    handled = prometheus.Counter(
        "laneway_handled", "Runs of handlers, by their end", ("kind", "outcome"), registry=into
    )
    failures = prometheus.Counter(
        "laneway_failures",
        "Runs of handlers that raised, by the type of the error",
        ("kind", "error"),
        registry=into,
    )
    seconds = prometheus.Histogram(
        "laneway_handler_seconds",
        "How long handlers run",
        ("kind",),
        buckets=BUCKETS,
        registry=into,
    )
    waited = prometheus.Histogram(
        "laneway_waited_seconds",
        "From publish to the first run",
        ("kind",),
        buckets=BUCKETS,
        registry=into,
    )
    running = prometheus.Gauge(
        "laneway_running", "Handlers that are running", ("kind",), registry=into
    )
    kinds = _Kinds()

    @app.around_publish
    def publishing(message: Message) -> Generator[Message, Receipt, None]:
        outcome = "failed"
        try:
            outcome = (yield message).outcome
        finally:
            published.labels(kinds.of(message), outcome).inc()

    @app.around_handling
    def handling(subject: Message | list[Message]) -> Generator[None, None, None]:
        messages = subject if isinstance(subject, list) else [subject]
        kind = kinds.of(messages[0])
        for message in messages:
            if message.deliveries == 1:
                waited.labels(kind).observe(max(0.0, app.handlers.now() - message.published_at))
        began = time.perf_counter()
        with running.labels(kind).track_inprogress():
            try:
                yield
            finally:
                seconds.labels(kind).observe(time.perf_counter() - began)

    app.on_success(lambda message: handled.labels(kinds.of(message), "success").inc())
    app.on_retry(lambda message, _: handled.labels(kinds.of(message), "retry").inc())
    app.on_dead(lambda message, _: handled.labels(kinds.of(message), "dead").inc())
    app.on_failure(
        lambda message, error: failures.labels(kinds.of(message), type(error).__name__).inc()
    )
    app.handlers.middlewares.add_hook(
        "back_off", lambda message, _: handled.labels(kinds.of(message), "back_off").inc()
    )
    into.register(PushCollector())
    if store:
        into.register(StoreCollector(app))
    if port is None:
        return None
    if workers_only:
        once = threading.Lock()

        def serve_once(**_: Any) -> None:
            if once.acquire(blocking=False):
                serve(port, address, into)

        worker_ready.connect(serve_once)
        return None
    return serve(port, address, into)


def serve(port: int, address: str, registry: CollectorRegistry, *, ports: int = PORTS) -> int:
    """Serve a registry on the first free port from `port` on; returns it. Raises UsageError."""
    prometheus = needed("measure")
    for tried in range(port, port + ports):
        try:
            prometheus.start_http_server(tried, addr=address, registry=registry)
        except OSError:
            continue
        log.info("metrics are served on http://%s:%d/metrics", address, tried)
        return tried
    taken = (
        f"the ports {port} to {port + ports - 1} are all taken"
        if ports > 1
        else f"port {port} is taken"
    )
    raise UsageError(
        f"measure: {taken} at {address}, or the address is not one of this machine; name"
        " another one"
    )


def needed(call: str) -> Any:
    """Import prometheus_client. Raises UsageError if it is not installed."""
    try:
        import prometheus_client  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError(
            f"{call}: prometheus-client is not installed; pip install 'laneway[metrics]'"
        ) from error
    return prometheus_client


class _Kinds:
    """Limits the kinds to the first `KINDS`; all others count as one."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def of(self, message: Message | Lease) -> str:
        kind = kind_of(message)
        if kind in self._known:
            return kind
        if len(self._known) >= KINDS:
            return store_figures.OTHER
        self._known.add(kind)
        return kind


GAUGES = (
    ("waiting", "Messages that wait"),
    ("leased", "Messages that are leased"),
    ("dead", "Dead letters"),
    ("oldest_seconds", "Age of the oldest message that waits"),
    (
        "throttled_seconds",
        "For how long rates have held ready messages back, summed over existing topics",
    ),
)
"""Gauges of the store by namespace, pattern, tier and pool."""

PART_GAUGES = (
    ("used", "used_bytes", "Bytes of the file, or of the server's memory"),
    ("free", "free_bytes", "Bytes left on the disk, or below the server's maxmemory"),
    ("log", "log_bytes", "Bytes of the write-ahead log or append-only file"),
    ("seconds", "answer_seconds", "How long a small read took"),
)
"""Gauges of a store's files or servers: the field of `StorePart`, the name, the meaning."""

TOTALS = ("published", "delivered", "done", "retried", "died", "merged", "expired", "removed")
"""Counters of the namespace since it was created."""


class PushCollector:
    """The series of a process that pushes; another has none."""

    def describe(self) -> list[Any]:
        """Return nothing: whether this process pushes is not known when it is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all series."""
        counts = getattr(sys.modules.get("laneway.push.counts"), "COUNTS", None)
        if counts is None:
            return
        from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415  # an extra

        attempts = CounterMetricFamily(
            "laneway_push_attempts",
            "Requests to endpoints, by the class of the answer, such as 2xx or timeout",
            labels=["answer"],
        )
        for answer, count in sorted(counts.attempts.items()):
            attempts.add_metric([answer], count)
        yield attempts
        for name, what, count in (
            ("skipped", "Messages that their endpoint does not want", counts.skipped),
            ("breakers_opened", "How often an endpoint's breaker opened", counts.opened),
            ("log_dropped", "Entries that the delivery log lost", counts.dropped),
        ):
            yield CounterMetricFamily(f"laneway_push_{name}", what, value=count)


class StoreCollector:
    """
    Reads the gauges of a store when Prometheus asks. If the store is unavailable, the only series
    is `laneway_store_up 0`.
    """

    def __init__(self, app: Laneway) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._walk = store_figures.Walk()
        self._figures: store_figures.Figures | None = None
        self._read_at = float("-inf")

    def describe(self) -> list[Any]:
        """Return nothing, so that registering does not read the store."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all series."""
        from prometheus_client.core import (  # noqa: PLC0415
            CounterMetricFamily,
            GaugeMetricFamily,
        )  # an extra

        figures, space = self._current(), self._app.namespace
        up = GaugeMetricFamily(
            "laneway_store_up", "Whether the store answers", labels=["namespace"]
        )
        up.add_metric([space], 0.0 if figures is None else 1.0)
        yield up
        if figures is None:
            return
        overview = figures.overview
        for name, what, value in (
            (
                "exact",
                (
                    "1: every topic was read; 0: the split between patterns is that of the last"
                    " full read"
                ),
                float(figures.is_exact),
            ),
            (
                "topics",
                "Topics with something waiting or leased, or a limit that has not recovered",
                overview.topics,
            ),
            ("bytes", "Size of all bodies that wait", overview.bytes),
        ):
            gauge = GaugeMetricFamily(f"laneway_store_{name}", what, labels=["namespace"])
            gauge.add_metric([space], value)
            yield gauge
        for field, name, what in PART_GAUGES:
            gauge = GaugeMetricFamily(
                f"laneway_store_part_{name}", what, labels=["namespace", "part"]
            )
            for part in figures.parts:
                value = getattr(part, field)
                if value is not None:
                    gauge.add_metric([space, part.name], value)
            yield gauge
        for name in TOTALS:
            counter = CounterMetricFamily(
                f"laneway_store_{name}", f"Messages {name}, of all topics", labels=["namespace"]
            )
            counter.add_metric([space], getattr(overview, name))
            yield counter
        for name, what in GAUGES:
            gauge = GaugeMetricFamily(
                f"laneway_store_{name}", what, labels=["namespace", "pattern", "tier", "pool"]
            )
            for group in figures.groups:
                value = getattr(group, name.removesuffix("_seconds"))
                if value is not None:
                    gauge.add_metric([space, group.pattern, group.tier, group.pool], value)
            yield gauge
        delivered = CounterMetricFamily(
            "laneway_store_tier_delivered",
            "Deliveries of a tier",
            labels=["namespace", "pool", "tier"],
        )
        ready = GaugeMetricFamily(
            "laneway_store_tier_ready_topics",
            "Topics that could deliver now (at most 1,000)",
            labels=["namespace", "pool", "tier"],
        )
        for tier in overview.tiers:
            delivered.add_metric([space, tier.pool, tier.tier], tier.delivered)
            ready.add_metric([space, tier.pool, tier.tier], tier.runnable)
        yield delivered
        yield ready

    def _current(self) -> store_figures.Figures | None:
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                try:
                    self._figures = store_figures.read(self._app, self._walk)
                except (LanewayError, OSError) as error:
                    log.warning(
                        "metrics: the store cannot be read: %s",
                        escaped(without_passwords(str(error))),
                    )
                    self._figures = None
                self._read_at = time.monotonic()
            return self._figures
