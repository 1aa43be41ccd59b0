"""
Metrics for Prometheus. Needs `pip install 'laneway[metrics]'`.

`measure(app, port=9100)` counts what this process publishes and handles. The gauges of the store
are the same for all processes, so one process serves them: `laneway exporter`, or one with
`measure(app, store=True)`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from laneway import store_figures, store_metrics
from laneway.app import Laneway
from laneway.errors import LanewayError, UsageError
from laneway.message import Lease, Message, Receipt
from laneway.printable import escaped, without_passwords
from laneway.working import worker_registry
from laneway.working.handler import kind_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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

    - `laneway_process_published_total{kind, outcome}`: messages by the outcome of their publish.
    - `laneway_handled_total{kind, outcome}`: runs by outcome: success, retry, dead, back_off (the
      destination was unavailable).
    - `laneway_failures_total{kind, error}`: runs that raised, by the type of the error.
    - `laneway_handler_seconds{kind}`: how long handlers run. `laneway_waited_seconds{kind}`: from
      publish to the start of the first run.
    - `laneway_running{kind}`: handlers that are running.

    `kind` is the task, or the pattern one level above the topic, so that a million topics are not a
    million series.

    Arguments: `port`: where to serve; if it is taken, the next free one of 20; None does not
    serve them. `address`: default loopback; `"0.0.0.0"`: every network. `registry`: default
    prometheus_client's. `store`: serve the gauges of the store too, as `laneway exporter` does; use
    it in one process only. `workers_only`: open the port when a worker starts in this process, and
    not in other programs that import the application.

    Returns the port; None if nothing is served yet.

    Raises UsageError if prometheus_client is not installed or no port is free.
    """
    prometheus = needed("measure")
    into = prometheus.REGISTRY if registry is None else registry
    published = prometheus.Counter(
        "laneway_process_published",
        "Messages published, by outcome",
        ("kind", "outcome"),
        registry=into,
    )
    handled = prometheus.Counter(
        "laneway_handled", "Runs of handlers, by outcome", ("kind", "outcome"), registry=into
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
                waited.labels(kind).observe(
                    max(0.0, app.runtime.handlers.now() - message.published_at)
                )
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
    app.runtime.handlers.middlewares.add_hook(
        "back_off", lambda message, _: handled.labels(kinds.of(message), "back_off").inc()
    )
    if store:
        into.register(StoreCollector(app))
    if port is None:
        return None
    if workers_only:
        once = threading.Lock()

        def serve_once(_: object) -> None:
            if once.acquire(blocking=False):
                serve(port, address, into)

        worker_registry.STARTED.append(serve_once)
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


class StoreCollector:
    """
    Reads the series of a store when Prometheus asks. If the store is unavailable, the only one is
    `laneway_up 0`.
    """

    def __init__(self, app: Laneway) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._walk = store_figures.Walk()
        self._reading: store_metrics.Reading | None = None
        self._read_at = float("-inf")

    def describe(self) -> list[Any]:
        """Return nothing, so that registering does not read the store."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield all series."""
        from prometheus_client.core import Metric  # noqa: PLC0415  # an extra

        for family in store_metrics.families(self._current(), self._app.namespace):
            metric = Metric(family.name.removesuffix("_total"), family.what, family.kind)
            for values, value in family.samples:
                labels = dict(zip(family.labels, values, strict=True))
                metric.add_sample(family.name, labels, value)
            yield metric

    def _current(self) -> store_metrics.Reading | None:
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                try:
                    self._reading = store_metrics.read(self._app.engine, self._walk)
                except (LanewayError, OSError) as error:
                    log.warning(
                        "metrics: the store cannot be read: %s",
                        escaped(without_passwords(str(error))),
                    )
                    self._reading = None
                self._read_at = time.monotonic()
            return self._reading
