"""
A shop reports what happens to its orders; a pipeline brings each order through its states in order.

    python -m examples.orders.orders shop FOLDER URL [ORDERS]      reports, even without the store
    python -m examples.orders.orders pipeline FOLDER URL           as often as you like

The shop publishes into a spool, so it never waits for the store and loses nothing in a crash. The
key of an event is its order, and the policy is serial: the events of an order are handled one at a
time and in order, those of different orders at once.
"""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

from laneway import Laneway, Message, Reject, Spool

STATES = ("placed", "paid", "packed", "shipped", "delivered")

FAILING = 0.05
"""The part of the events whose first handling fails."""


class Orders:
    """The states of orders: which event was the last one, and all that happened."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._file = sqlite3.connect(
            folder / "orders.db", isolation_level=None, timeout=60, check_same_thread=False
        )
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.executescript("""
            CREATE TABLE IF NOT EXISTS event (
                at INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER, step INTEGER, state TEXT
            );
            CREATE INDEX IF NOT EXISTS event_number ON event (number, step);
        """)

    def apply(self, number: int, step: int) -> bool:
        """
        Bring an order into its next state. Returns False if it was there already: a message may be
        delivered twice. Raises Reject if a state is missing, which serial keys rule out.
        """
        with self._lock:  # handlers run in several threads
            return self._apply(number, step)

    def _apply(self, number: int, step: int) -> bool:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            (known,) = self._file.execute(
                "SELECT count(*) FROM event WHERE number = ?", (number,)
            ).fetchone()
            if step > known:
                raise Reject(f"order {number}: {STATES[step]} comes after {known} states")
            if step == known:
                self._file.execute(
                    "INSERT INTO event (number, step, state) VALUES (?, ?, ?)",
                    (number, step, STATES[step]),
                )
            return bool(step == known)
        finally:
            self._file.execute("COMMIT")

    def count(self) -> int:
        return int(self._file.execute("SELECT count(*) FROM event").fetchone()[0])

    def histories(self) -> dict[int, list[str]]:
        """By order: its states, as they were reached."""
        found: dict[int, list[str]] = {}
        for number, state in self._file.execute("SELECT number, state FROM event ORDER BY at"):
            found.setdefault(number, []).append(state)
        return found

    def close(self) -> None:
        self._file.close()


def open_app(url: str, spool: Spool | None = None) -> Laneway:
    """Shop and pipeline declare the same policy: it holds for what is published afterwards."""
    app = Laneway(url, durability="fsync", spool=spool)
    app.policy("orders", serial="hold", backoff="100ms", lease="5s")
    return app


def shop(folder: Path, url: str, orders: int) -> None:
    """
    Report all events of all orders, those of several orders mixed. Run again after a crash, it
    begins at the first one: an event's id says which it is, so none is handled twice.
    """
    with open_app(url, Spool(folder / "shop.spool", exit_timeout="2m")) as app:
        for first in range(0, orders, 10):
            for step in range(len(STATES)):
                for number in range(first, min(first + 10, orders)):
                    event = {"number": number, "step": step}
                    app.publish("orders", event, key=f"order-{number}", id=f"{number}:{step}")
            print(first, flush=True)


def pipeline(folder: Path, url: str) -> None:
    """Handle events until this process is stopped."""
    app = open_app(url)
    orders = Orders(folder)

    @app.handler("orders")
    def handle(message: Message) -> None:
        if message.attempt == 1 and random.random() < FAILING:
            raise ConnectionError("the warehouse does not answer")
        orders.apply(message.body["number"], message.body["step"])

    with closing(orders):
        app.run_worker(concurrency=20, heartbeat_timeout=3)


def main(what: str, folder: Path, url: str, orders: str = "1000") -> None:
    if what == "shop":
        shop(folder, url, int(orders))
    elif what == "pipeline":
        pipeline(folder, url)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
