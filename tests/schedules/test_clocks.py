"""Schedules follow the store's clock, whatever the clock of a worker says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.metrics import measure
from laneway.testing.servers import Server
from tests.clocks import SHIFTED

WORKER = (
    SHIFTED
    + """
from laneway import Laneway

app = Laneway(sys.argv[1])

@app.task
def tick():
    print("tick", flush=True)

app.schedule("often", tick, every="1s")
app.run_worker()
"""
)


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/q.db"
        return
    with Server() as server:
        yield server.url


@pytest.mark.parametrize("shift", [90, -90])
def test_a_schedule_fires_when_a_workers_clock_is_wrong(url: str, shift: int) -> None:
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(shift), url], stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            lines = [worker.stdout.readline() for _ in range(3)]
            assert lines == ["tick\n"] * 3
            assert 1.5 < time.monotonic() - began < 75, "one a second, and none made up for"
        finally:
            worker.terminate()


@pytest.mark.parametrize("shift", [90, -90])
def test_what_a_server_tells_has_its_own_time(shift: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        engine = open_engine(server.url, Settings())
        app = Laneway(server.url)
        app.publish("a", "x")
        right = engine.time_us()
        real = time.time_ns
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time_ns", lambda: real() + shift * 10**9)
            wrong.setattr(time, "time", lambda: (real() / 1e9) + shift)
            assert abs(engine.overview().now_us - right) < 60_000_000
            assert abs(engine.time_us("a") - right) < 60_000_000
            assert (app.topic("a").stats().oldest_age or 0.0) < 60
            (delivery,) = app.lease(1)
            explanation = engine.explain(delivery.id)
            assert explanation.now_us is not None
            assert abs(explanation.now_us - right) < 60_000_000
        app.close()
        engine.close()


def test_waiting_times_are_by_the_stores_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    import prometheus_client

    registry = prometheus_client.CollectorRegistry()
    with Server() as server, Laneway(server.url) as app:
        measure(app, port=None, registry=registry)

        @app.handler("a")
        def handle(message: object) -> None: ...

        app.publish("a", "x")
        real, real_ns = time.time, time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 90 * 10**9)
        monkeypatch.setattr(time, "time", lambda: real() + 90)
        app.run_worker(burst=True)
    assert 0 <= (registry.get_sample_value("laneway_waited_seconds_sum", {"kind": "a"}) or -1) < 60
