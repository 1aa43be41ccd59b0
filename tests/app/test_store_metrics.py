"""Gauges of a store by pattern and tier, bounded; the exporter; what workers serve."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from laneway import DestinationUnavailable, Laneway, Message, metrics, store_figures
from laneway.metrics import StoreCollector, measure
from laneway.testing.servers import Server, free_port, until


@pytest.fixture(params=["sqlite", "valkey"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laneway]:
    if request.param == "sqlite":
        with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as opened:
            yield opened
    else:
        with Server() as server, Laneway(server.url) as opened:
            yield opened


def fill(app: Laneway, topics: int) -> None:
    """Per pattern as many topics; one message each, and a few that are leased and dead."""
    app.policy("push.*", tier="high")
    app.policy("push.vip.*", rate=100)
    app.policy("push.own", weight=2)
    for stem in ("push", "push.vip", "mail"):
        app.publish_many((Message(f"{stem}.{n}", n) for n in range(topics)), progress=False)
    app.publish("push.own", 1)
    app.lease(3, topics=["push.0", "mail.0"])
    app.lease(1, topics=["mail.1"])[0].dead("no")


def gauges(app: Laneway) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(StoreCollector(app))
    lines = [
        line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")
    ]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_gauges_are_by_pattern_and_tier(app: Laneway) -> None:
    """The most specific pattern, never an exact topic; all exact while there are few topics."""
    fill(app, 20)
    found = gauges(app)

    def of(name: str, pattern: str, tier: str) -> float:
        return found[
            f'laneway_pattern_{name}{{namespace="default",pattern="{pattern}",'
            f'pool="default",tier="{tier}"}}'
        ]

    assert (
        found['laneway_up{namespace="default"}'] == found['laneway_exact{namespace="default"}'] == 1
    )
    assert (
        of("waiting", "push.*", "high"),
        of("waiting", "push.vip.*", "high"),
        of("waiting", "*", "mid"),
    ) == (20, 20, 18)
    assert (of("leased", "push.*", "high"), of("leased", "*", "mid"), of("dead", "*", "mid")) == (
        1,
        1,
        1,
    )
    assert 0 <= of("oldest_seconds", "push.*", "high") < 60
    assert found['laneway_published_total{namespace="default"}'] == 61
    assert found['laneway_tier_delivered_total{namespace="default",pool="default",tier="mid"}'] == 2
    parts = {name.partition("{")[0] for name in found if "_part_" in name}
    assert {f"laneway_part_{name}" for name in ("used_bytes", "answer_seconds")} <= parts
    assert not any("push.own" in name or "push.1" in name for name in found)


def test_many_topics_are_not_many_series_nor_much_work(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a bound the sums stay those of the store, and the rest is under (other)."""
    monkeypatch.setattr(store_figures, "TOPICS", 10)
    fill(app, 40)
    app.publish_many((Message("push.vip.7", n) for n in range(500)), progress=False)
    figures = store_figures.read(app.engine)
    assert not figures.is_exact
    assert sum(group.waiting for group in figures.groups) == figures.overview.waiting
    assert sum(group.leased for group in figures.groups) == 2
    assert sum(group.dead for group in figures.groups) == 1
    assert next(group for group in figures.groups if group.pattern == "push.vip.*").waiting > 500, (
        "the largest is attributed"
    )
    monkeypatch.setattr(store_figures, "GROUPS", 1)
    assert [group.pattern for group in store_figures.read(app.engine).groups] == [
        "push.vip.*",
        "(other)",
    ]


def test_a_walk_attributes_the_rest(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It visits all topics, a few at a time; then the sums are split as it found them, and stay exact.
    """
    monkeypatch.setattr(store_figures, "TOPICS", 10)
    monkeypatch.setattr(store_figures, "PAGE", 7)
    monkeypatch.setattr(store_figures, "PAUSE", 0.001)
    fill(app, 40)
    walk = store_figures.Walk()
    store_figures.read(app.engine, walk)
    until(lambda: walk.walks, "the first walk")
    figures = store_figures.read(app.engine, walk)
    assert not figures.is_exact
    assert {(group.pattern, group.tier): group.waiting for group in figures.groups} == {
        ("push.*", "high"): 40,
        ("push.vip.*", "high"): 40,
        ("*", "mid"): 38,
    }
    app.publish_many((Message(f"mail.{n}", n) for n in range(40)), progress=False)
    assert sum(group.waiting for group in store_figures.read(app.engine, walk).groups) == 158
    walks = walk.walks
    until(lambda: walk.walks > walks + 1, "the walk after that")
    figures = store_figures.read(app.engine, walk)
    assert {group.pattern: group.waiting for group in figures.groups} == {
        "push.*": 40,
        "push.vip.*": 40,
        "*": 78,
    }


def test_a_store_that_is_away_is_down(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus gets an answer, and it says so."""

    def away(*_: object) -> store_figures.Figures:
        raise ConnectionError("valkey://:secret@host is away")

    monkeypatch.setattr(store_figures, "read", away)
    assert gauges(app) == {'laneway_up{namespace="default"}': 0}


def test_it_is_read_once_a_second(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask."""
    monkeypatch.setattr(metrics, "FRESH", 600.0)
    app.publish("a", 1)
    collector = StoreCollector(app)
    list(collector.collect())
    app.publish("a", 1)
    assert [
        sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == "laneway_pattern_waiting"
    ] == [1]
    monkeypatch.setattr(metrics, "FRESH", 0)
    assert [
        sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == "laneway_pattern_waiting"
    ] == [2]


def test_the_exporter(tmp_path: Path) -> None:
    """Serves on loopback, prints where, ends with SIGTERM; --once prints the figures."""
    url = f"sqlite:///{tmp_path}/laneway.db"
    with Laneway(url) as app:
        app.publish("a", 1)
    port = free_port()
    command = [sys.executable, "-m", "laneway", "exporter", "-u", url]
    process = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}/metrics" in process.stdout.readline()
        text = (
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        )
        assert (
            'laneway_pattern_waiting{namespace="default",pattern="*",pool="default",tier="mid"} 1.0'
            in text
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    once = subprocess.run(
        [*command, "--once"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "laneway_up" in once


def test_back_offs_are_counted(app: Laneway) -> None:
    """A run that ended because its destination is unavailable has an outcome of its own."""
    registry = CollectorRegistry()
    measure(app, registry=registry)

    @app.handler("push.*")
    def push(message: Message) -> None:
        if message.deliveries == 1:
            raise DestinationUnavailable("503", retry_after=0.01)

    app.publish("push.a", 1)
    app.run_worker(burst=True)
    assert (
        registry.get_sample_value(
            "laneway_handled_total", {"kind": "push.*", "outcome": "back_off"}
        )
        == 1
    )


def test_kinds_are_bounded(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers choose names; they cannot make series without end."""
    monkeypatch.setattr(metrics, "KINDS", 5)
    registry = CollectorRegistry()
    measure(app, registry=registry)
    for n in range(20):
        app.publish(f"stem{n}.a", 1)
    kinds = set(
        re.findall(
            r'laneway_process_published_total\{kind="([^"]+)"', generate_latest(registry).decode()
        )
    )
    assert len(kinds) == 6
    assert (
        registry.get_sample_value(
            "laneway_process_published_total", {"kind": "(other)", "outcome": "accepted"}
        )
        == 15
    )


def test_loopback_and_workers_only(app: Laneway) -> None:
    """The port is bound to 127.0.0.1, and with workers_only not before a worker starts."""
    registry, port = CollectorRegistry(), free_port()
    assert measure(app, port, registry=registry, store=True, workers_only=True) is None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)
    app.handler("push.*")(lambda message: None)
    app.publish("push.a", 1)
    app.run_worker(burst=True)
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    assert 'laneway_handled_total{kind="push.*",outcome="success"} 1.0' in text
    assert "laneway_up" in text
    listening = Path("/proc/net/tcp").read_text()
    assert re.search(rf"0100007F:{port:04X} 00000000:0000 0A", listening), "bound to loopback"
