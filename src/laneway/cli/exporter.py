"""`laneway exporter`: a store's metrics for Prometheus."""

from __future__ import annotations

import signal
import sys
import time

import click

from laneway.cli.session import Session, pass_session, say

EXAMPLES = """\b
Examples:
  laneway exporter --port 9200 -u valkey://localhost
  laneway exporter --once
"""


@click.command(short_help="Serve the store's metrics to Prometheus.", epilog=EXAMPLES)
@click.option("--port", type=click.IntRange(1, 65_535), default=9200, show_default=True)
@click.option(
    "--address",
    default="127.0.0.1",
    show_default=True,
    help="0.0.0.0: other machines can connect too.",
)
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@pass_session
def exporter(session: Session, *, port: int, address: str, once: bool) -> None:
    """
    Serve the store's metrics to Prometheus: waiting, oldest, leased, dead and throttled by policy
    pattern and tier.

    One exporter for each store is enough. Workers serve their own metrics, see docs/operations.md.
    """
    from laneway import metrics

    metrics.needed("exporter")
    from prometheus_client import CollectorRegistry, generate_latest

    app = session.app()
    registry = CollectorRegistry()
    registry.register(metrics.StoreCollector(app))
    if once:
        _ = app.engine  # a missing store is an error
        say(generate_latest(registry).decode().rstrip(), lines=True)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    metrics.serve(port, address, registry, ports=1)
    say(f"metrics of namespace {session.namespace}: http://{address}:{port}/metrics; Ctrl-C stops")
    while True:
        time.sleep(1.0)  # no longer: a signal that comes just before a pause does not end it
