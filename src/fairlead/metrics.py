"""
Metrics for Prometheus of what a program publishes and handles: `measure(app, port=9100)`. Needs `pip install 'fairlead[metrics]'`.

They are of this process. What the store holds (backlogs, rates, tiers) is the same for all of them: ask it (`fairlead topics`, `Fairlead.topics`).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fairlead.errors import UsageError
from fairlead.working.handler import kind_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from prometheus_client import CollectorRegistry

    from fairlead.app import Fairlead
    from fairlead.message import Message, Receipt

log = logging.getLogger("fairlead.worker")

PORTS = 20
"""So many ports are tried, from the one that was named: several workers on one machine take one each."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


def measure(app: Fairlead, port: int | None = None, *, registry: CollectorRegistry | None = None) -> int | None:
    """
    Count and time everything that the application publishes and handles; with `port`, serve it there. Returns the port.

    - `fairlead_published_total{kind, outcome}`: messages, by what became of them.
    - `fairlead_handled_total{kind, outcome}`: runs that ended: success, retry, dead.
    - `fairlead_failures_total{kind, error}`: runs that raised, by the type of the error.
    - `fairlead_handler_seconds{kind}`: how long handlers take. `fairlead_waited_seconds{kind}`: from publish to the start of the first run.
    - `fairlead_running{kind}`: handlers that run now.

    `kind` is the task, or the pattern one above the topic: a million topics are not a million series. If the port is taken, the next free one of
    the 20 behind it is used; the log says which. `registry`: default is prometheus_client's. Raises UsageError where that is not installed, or no
    port is free.
    """
    try:
        import prometheus_client as prometheus  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError("measure: prometheus-client is not installed; pip install 'fairlead[metrics]'") from error
    into = prometheus.REGISTRY if registry is None else registry
    published = prometheus.Counter("fairlead_published", "Messages published, by what became of them", ("kind", "outcome"), registry=into)
    handled = prometheus.Counter("fairlead_handled", "Runs of handlers, by how they ended", ("kind", "outcome"), registry=into)
    failures = prometheus.Counter("fairlead_failures", "Runs of handlers that raised, by the type of the error", ("kind", "error"), registry=into)
    seconds = prometheus.Histogram("fairlead_handler_seconds", "How long handlers take", ("kind",), buckets=BUCKETS, registry=into)
    waited = prometheus.Histogram("fairlead_waited_seconds", "From publish to the first run", ("kind",), buckets=BUCKETS, registry=into)
    running = prometheus.Gauge("fairlead_running", "Handlers that run now", ("kind",), registry=into)

    @app.around_publish
    def publishing(message: Message) -> Generator[Message, Receipt, None]:
        outcome = "failed"
        try:
            outcome = (yield message).outcome
        finally:
            published.labels(kind_of(message), outcome).inc()

    @app.around_handling
    def handling(subject: Message | list[Message]) -> Generator[None, None, None]:
        messages = subject if isinstance(subject, list) else [subject]
        kind = kind_of(messages[0])
        for message in messages:
            if message.deliveries == 1:
                waited.labels(kind).observe(max(0.0, app.handlers.now() - message.published_at))
        began = time.perf_counter()
        with running.labels(kind).track_inprogress():
            try:
                yield
            finally:
                seconds.labels(kind).observe(time.perf_counter() - began)

    app.on_success(lambda message: handled.labels(kind_of(message), "success").inc())
    app.on_retry(lambda message, _: handled.labels(kind_of(message), "retry").inc())
    app.on_dead(lambda message, _: handled.labels(kind_of(message), "dead").inc())
    app.on_failure(lambda message, error: failures.labels(kind_of(message), type(error).__name__).inc())
    if port is None:
        return None
    for tried in range(port, port + PORTS):
        try:
            prometheus.start_http_server(tried, registry=into)
        except OSError:
            continue
        log.info("metrics are served on port %d", tried)
        return tried
    raise UsageError(f"measure: the ports {port} to {port + PORTS - 1} are all taken; name another one")
