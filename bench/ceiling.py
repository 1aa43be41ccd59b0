"""
The raw ceiling: the same storage operations directly on SQLite, without policies, fairness and
limits.

A message table, an order for each topic, counts for each topic, and a row with a deadline for each
lease; batches of 500 in one transaction, by `executemany`. It leases from the topics with the
lowest names first and serves none fairly. It is as durable as Laneway: with "fsync", puts and acks
are synced to disk; leases, which end with their process anyway, are synced with the next put or
ack.

`Plain` is the first design that most people write: one table in publish order with a deadline in
the row and no index of topics. It shows what topics cost.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from bench.common import BATCH, BODY

SCHEMA = """
CREATE TABLE topic (topic INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    ready INTEGER NOT NULL, leased INTEGER NOT NULL);
CREATE INDEX topic_ready ON topic (topic) WHERE ready > 0;
CREATE TABLE message (mid INTEGER PRIMARY KEY, topic INTEGER NOT NULL, priority INTEGER NOT NULL,
    at INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE ready (topic INTEGER, priority INTEGER, at INTEGER, mid INTEGER,
    PRIMARY KEY (topic, priority, at, mid)) WITHOUT ROWID;
CREATE TABLE lease (mid INTEGER PRIMARY KEY, topic INTEGER NOT NULL, deadline INTEGER NOT NULL);
"""


PRAGMAS = """
PRAGMA journal_mode = WAL;
PRAGMA cache_size = -131072;
PRAGMA wal_autocheckpoint = 10000;
"""

PLAIN_SCHEMA = """
CREATE TABLE message (mid INTEGER PRIMARY KEY, topic INTEGER NOT NULL, deadline INTEGER NOT NULL,
    body BLOB NOT NULL);
CREATE INDEX waiting ON message (mid) WHERE deadline = 0;
"""


class Store:
    """A file of its own, with transactions as durable as Laneway's."""

    def __init__(self, path: Path, durability: str, schema: str) -> None:
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.executescript(PRAGMAS + schema)
        self._is_durable = durability == "fsync"
        self.run = self.connection.execute
        self.many = self.connection.executemany

    def close(self) -> None:
        self.connection.close()

    def begin(self, *, durable: bool) -> None:
        self.run(
            "PRAGMA synchronous ="
            f" {('FULL' if durable else 'NORMAL') if self._is_durable else 'OFF'}"
        )
        self.run("BEGIN IMMEDIATE")


class Raw(Store):
    """The raw ceiling."""

    def __init__(self, path: Path, durability: str, topics: int) -> None:
        super().__init__(path, durability, SCHEMA)
        self.next = 1
        self.run("BEGIN")
        self.many("INSERT INTO topic VALUES (?, ?, 0, 0)", [(n, f"t.{n}") for n in range(topics)])
        self.run("COMMIT")

    def put(self, topics: list[int]) -> None:
        """Store one batch, a message for each of these topics."""
        now = time.time_ns() // 1000
        first, self.next = self.next, self.next + len(topics)
        grown: dict[int, int] = {}
        for topic in topics:
            grown[topic] = grown.get(topic, 0) + 1
        self.begin(durable=True)
        self.many(
            "INSERT INTO message VALUES (?, ?, 0, ?, ?)",
            [(first + n, topic, now, BODY) for n, topic in enumerate(topics)],
        )
        self.many(
            "INSERT INTO ready VALUES (?, 0, ?, ?)",
            [(topic, now, first + n) for n, topic in enumerate(topics)],
        )
        self.many(
            "UPDATE topic SET ready = ready + ? WHERE topic = ?",
            [(count, topic) for topic, count in grown.items()],
        )
        self.run("COMMIT")

    def lease(self) -> list[tuple[int, int, int, bytes]]:
        """Lease up to a batch: (message, topic, place, body)."""
        taken: list[tuple[int, int, int, bytes]] = []
        self.begin(durable=False)
        claimed: list[tuple[int, int]] = []
        for topic, ready in self.run(
            "SELECT topic, ready FROM topic WHERE ready > 0 ORDER BY topic LIMIT ?", (BATCH,)
        ).fetchall():
            room = BATCH - len(taken)
            if room <= 0:
                break
            rows = self.run(
                "SELECT r.mid, r.topic, r.at, m.body FROM ready r JOIN message m ON m.mid = r.mid"
                " WHERE r.topic = ? ORDER BY r.priority, r.at, r.mid LIMIT ?",
                (topic, min(room, ready)),
            ).fetchall()
            taken += rows
            claimed.append((len(rows), topic))
        deadline = time.time_ns() // 1000 + 60_000_000
        self.many(
            "DELETE FROM ready WHERE topic = ? AND priority = 0 AND at = ? AND mid = ?",
            [(topic, at, mid) for mid, topic, at, _ in taken],
        )
        self.many(
            "INSERT INTO lease VALUES (?, ?, ?)",
            [(mid, topic, deadline) for mid, topic, *_ in taken],
        )
        self.many(
            "UPDATE topic SET ready = ready - ?, leased = leased + ? WHERE topic = ?",
            [(n, n, topic) for n, topic in claimed],
        )
        self.run("COMMIT")
        return taken

    def ack(self, taken: list[tuple[int, int, int, bytes]]) -> None:
        """Ack these messages."""
        done: dict[int, int] = {}
        for _, topic, *_ in taken:
            done[topic] = done.get(topic, 0) + 1
        self.begin(durable=True)
        self.many("DELETE FROM lease WHERE mid = ?", [(mid,) for mid, *_ in taken])
        self.many("DELETE FROM message WHERE mid = ?", [(mid,) for mid, *_ in taken])
        self.many(
            "UPDATE topic SET leased = leased - ? WHERE topic = ?",
            [(count, topic) for topic, count in done.items()],
        )
        self.run("COMMIT")


class Plain(Store):
    """One queue in publish order."""

    def __init__(self, path: Path, durability: str) -> None:
        super().__init__(path, durability, PLAIN_SCHEMA)

    def put(self, topics: list[int]) -> None:
        """Store one batch, a message for each of these topics."""
        self.begin(durable=True)
        self.many(
            "INSERT INTO message (topic, deadline, body) VALUES (?, 0, ?)",
            [(topic, BODY) for topic in topics],
        )
        self.run("COMMIT")

    def lease(self) -> list[tuple[int, int, bytes]]:
        """Lease up to a batch: (message, topic, body)."""
        deadline = time.time_ns() // 1000 + 60_000_000
        self.begin(durable=False)
        taken = self.run(
            "UPDATE message SET deadline = ? WHERE mid IN (SELECT mid FROM message WHERE deadline ="
            " 0 ORDER BY mid LIMIT ?) RETURNING mid, topic, body",
            (deadline, BATCH),
        ).fetchall()
        self.run("COMMIT")
        return taken

    def ack(self, taken: list[tuple[int, int, bytes]]) -> None:
        """Ack these messages."""
        self.begin(durable=True)
        self.many("DELETE FROM message WHERE mid = ?", [(mid,) for mid, *_ in taken])
        self.run("COMMIT")
