"""
The dashboard: what pages and live updates cost with 1,000 and with many topics, and many viewers.

The gateway runs in this process, without a server, so the figures are its own: CPU of a request or
of a second, wall-clock time, and bytes, compressed for pages. Between two requests everything is
read from the store again. `--topics 1e6` measures the pages with that many topics only.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import os
import statistics
import time
from pathlib import Path

import msgspec

from bench.common import options, pick, publish_table, store
from laneway import Laneway, Message
from laneway.engines.base import LogEntry
from laneway.gateway.dashboard.collector import Collector
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.dashboard.menu import ALL
from laneway.gateway.dashboard.view import ASSETS
from laneway.gateway.gateway import Gateway
from laneway.message import Settlement
from laneway.push import delivery_log
from laneway.push.secret_store import KEY_VARIABLE, new_key

NEEDS = {
    "/topic": "?name=bench.0",
    "/message": "?topic=bench.0&id=bench-id",
    "/endpoint": "?topic=bench.0",
}
"""The parameters of pages that need some."""

LISTS = tuple(f"/topics?order={order}" for order in ("in-rate", "failures", "dead", "worker-time"))
"""Top lists in addition to the one by backlog."""

HEADERS = [(b"host", b"localhost"), (b"accept", b"text/html"), (b"accept-encoding", b"gzip")]


async def request(gateway: Gateway, target: str) -> tuple[int, bytes]:
    """A request without a server: its status and body."""
    path, _, query = target.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": HEADERS,
        "client": ("127.0.0.1", 1),
        "scheme": "http",
    }
    status, chunks = 0, []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event):
        nonlocal status
        status = event.get("status", status)
        chunks.append(event.get("body", b""))

    await gateway(scope, receive, send)
    return status, b"".join(chunks)


async def pages(app: Laneway, rounds: int) -> dict[str, tuple[float, float, float, int]]:
    """CPU, median and p95 in ms, and bytes, of each page."""
    dashboard = Dashboard(app)
    gateway = Gateway(app, is_open=True, extensions=[dashboard])
    found = {}
    for target in (*(each.path + NEEDS.get(each.path, "") for each in ALL), *LISTS):
        await request(gateway, target)
        walls, cpu, size = [], time.process_time(), 0
        for _ in range(rounds):
            dashboard.collector.forget()
            began = time.perf_counter()
            status, body = await request(gateway, target)
            walls.append((time.perf_counter() - began) * 1e3)
            assert status == 200, (target, status, body[:500])
            size = len(body)
        spent = (time.process_time() - cpu) / rounds * 1e3
        p95 = statistics.quantiles(walls, n=20)[-1] if rounds > 1 else walls[0]
        found[target] = spent, statistics.median(walls), p95, size
    await asyncio.to_thread(gateway.close)
    return found


async def live(app: Laneway, path: str, viewers: int, seconds: int) -> tuple[float, float]:
    """The CPU of a second in ms, and the bytes of a second for one viewer, while messages come."""
    gateway = Gateway(app, is_open=True, extensions=[dashboard := Dashboard(app)])
    collector: Collector = dashboard.collector
    totals = [0] * viewers

    async def watch(number: int) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/live",
            "raw_path": b"/live",
            "query_string": f"of={path.replace('?', '%3F').replace('=', '%3D')}".encode(),
            "headers": HEADERS,
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }

        async def receive():
            await asyncio.sleep(3600)

        async def send(event):
            totals[number] += len(event.get("body", b""))

        await gateway(scope, receive, send)

    tasks = [asyncio.create_task(watch(number)) for number in range(viewers)]
    while collector.samples < 2:
        await asyncio.to_thread(time.sleep, 0.1)
    first, began, cpu = totals[0], collector.samples, time.process_time()
    for n in range(seconds * 10):
        await asyncio.to_thread(app.publish, f"bench.{n % 7}", n)
        await asyncio.sleep(0.1)
    samples = collector.samples - began
    spent = (time.process_time() - cpu) / max(1, samples) * 1e3
    sent = (totals[0] - first) / max(1, samples)
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
    gateway.stop()
    await asyncio.to_thread(gateway.close)
    return spent, sent


def first_load(app: Laneway) -> int:
    """The bytes of the first page with all its files, compressed."""
    gateway = Gateway(app, is_open=True, extensions=[Dashboard(app)])
    _, body = asyncio.run(request(gateway, "/"))
    gateway.close()
    files = Path(__file__).parents[1] / "src/laneway/gateway/dashboard/static"
    assert ASSETS.routes
    kinds = {".js", ".css", ".svg"}
    return len(body) + sum(
        len(gzip.compress(each.read_bytes(), 9))
        for each in files.rglob("*")
        if each.suffix in kinds
    )


def fill(app: Laneway, topics: int, endpoints: int) -> None:
    """Publish to each topic, flood 60 of them, and store dead letters and logged attempts."""
    app.publish_many((Message(f"bench.{n}", n) for n in range(topics)), progress=False)
    app.publish("bench.0", {"a": 1}, id="bench-id")
    app.publish_many(Message(f"bench.{n}", n) for n in range(60) for _ in range(64))
    leases = app.engine.lease(100).leases
    app.engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])
    names = [f"bench.{n}" for n in range(endpoints)]
    app.endpoints.set_many((name, {"url": "https://a.example/"}) for name in names)
    entry = delivery_log.Entry(id="bench-id", status=200, ms=(1.0, 2.0, 3.0, 4.0, 5.0), body="ok")
    data, now_us = msgspec.json.encode(entry), app.engine.time_us()
    app.engine.delivery_log_append(
        [LogEntry(name, now_us + n, data) for n in range(30) for name in names],
        keep_us=delivery_log.KEEP_US,
        max_bytes=1 << 30,
    )


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--topics", type=float, help="measure the pages with that many topics")
        parser.add_argument("--endpoints", type=int, default=60, help="topics that have one")

    chosen = options(__doc__ or "", more)
    os.environ[KEY_VARIABLE] = new_key()
    counts = (1_000, pick(chosen, 1_000_000, 20_000, 2_000))
    if chosen.topics:
        counts = (int(chosen.topics),)
    rounds, seconds = pick(chosen, 40, 10, 2), pick(chosen, 10, 4, 1)
    rows: list[tuple[str | int | float, ...]] = []
    for count in counts:
        with store(chosen) as place, Laneway(place.url, durability="memory") as app:
            fill(app, count, chosen.endpoints)
            for path, (cpu, median, p95, size) in asyncio.run(pages(app, rounds)).items():
                rows.append((path, count, 1, cpu, median, p95, size))
            if chosen.topics:
                continue
            for path in ("/", "/topics"):
                for viewers in (1, pick(chosen, 200, 50, 5)):
                    cpu, sent = asyncio.run(live(app, path, viewers, seconds))
                    rows.append((f"a live second of {path}", count, viewers, cpu, "-", "-", sent))
            if count == counts[0]:
                rows.append(("first load, all files", count, 1, "-", "-", "-", first_load(app)))
    publish_table(
        "dashboard",
        chosen,
        ("page", "topics", "viewers", "ms of CPU", "median ms", "p95 ms", "bytes"),
        rows,
        f"{rounds} requests of each page; {seconds} s of each live page, with 10 messages a second",
    )


if __name__ == "__main__":
    main()
