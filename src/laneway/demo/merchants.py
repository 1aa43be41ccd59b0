"""
The demo's application: a worker in its own process notifies merchants of their orders.

Each handler logs its runs; the report is computed from that log.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from pathlib import Path

from laneway import Laneway, Message

TIERS = {"high": 6, "mid": 3, "low": 1}
RATE, CONCURRENCY = 50, 4
"""The limits of each ordinary merchant."""

FLOOD, BROKEN, BEST_SELLER, SLOW = (
    "sale.mid.flood",
    "push.high.broken",
    "push.high.best-seller",
    "push.low.slow",
)
LATENCY, SHARE_LATENCY, SLOW_LATENCY = 0.004, 0.012, 0.2
"""Seconds until a merchant's endpoint answers."""

WORKERS = 100
"""How many handlers the worker runs at once."""

FLUSH_EVERY = 0.25

FOLDER_VARIABLE, URL_VARIABLE, DURABILITY_VARIABLE = (
    "LANEWAY_DEMO_FOLDER",
    "LANEWAY_DEMO_URL",
    "LANEWAY_DEMO_DURABILITY",
)


def make_app(folder: Path) -> Laneway:
    """The application with its policies, on a file in this folder or on the server of the URL."""
    app = Laneway(
        os.environ.get(URL_VARIABLE, f"sqlite:///{folder}/demo.db"),
        tiers=TIERS,
        durability=os.environ.get(DURABILITY_VARIABLE, "fsync"),  # type: ignore[arg-type]
    )  # one of the choices
    for tier in TIERS:
        app.policy(
            f"push.{tier}.*", tier=tier, rate=RATE, concurrency=CONCURRENCY, retries=2, backoff=0.5
        )
        app.policy(f"share.{tier}.*", tier=tier)
    app.policy(FLOOD, tier="mid")  # without limits: only fairness limits it
    return app


class Log:
    """
    The runs of the handlers: topic, published, started, ended (seconds since 1970); written to
    disk four times a second.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        threading.Thread(target=self._flush_for_ever, daemon=True).start()

    def add(self, topic: str, published: float, started: float) -> None:
        self._lines.append(f"{topic} {published:.6f} {started:.6f} {time.time():.6f}\n")

    def _flush_for_ever(self) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            while True:
                time.sleep(FLUSH_EVERY)
                lines, self._lines = self._lines, []
                file.write("".join(lines))
                file.flush()


def register(app: Laneway, folder: Path) -> None:
    """Register the handlers, which log to a file of this process."""
    log = Log(folder / f"handled.{os.getpid()}.log")
    draw = random.Random(os.getpid())

    @app.handler("sale.*")
    @app.handler("push.*")
    async def push(message: Message) -> None:
        started = time.time()
        try:
            await asyncio.sleep(
                SLOW_LATENCY if message.topic == SLOW else LATENCY * draw.uniform(0.5, 1.5)
            )
            if message.topic == BROKEN:
                raise ConnectionError("the merchant's endpoint answered 500")
        finally:
            log.add(message.topic, message.published_at, started)

    @app.handler("share.*")
    async def share(_: Message) -> None:
        await asyncio.sleep(SHARE_LATENCY * draw.uniform(0.5, 1.5))


if FOLDER_VARIABLE in os.environ:  # in the worker's process
    app = make_app(Path(os.environ[FOLDER_VARIABLE]))
    register(app, Path(os.environ[FOLDER_VARIABLE]))
