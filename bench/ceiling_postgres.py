"""
The raw ceiling of a PostgreSQL: the same storage operations in one statement for each batch,
without policies, fairness and limits.

`Plain` is the first design that most people write: a statement for each message.
"""

from __future__ import annotations

import psycopg

from bench.common import BATCH, BODY

CREATE = """
CREATE TABLE job (id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL,
    body bytea NOT NULL, leased_until timestamptz);
CREATE INDEX job_waits ON job (id) WHERE leased_until IS NULL;
"""
PUT = "INSERT INTO job (topic, body) SELECT t, %s FROM unnest(%s::text[]) t"
PUT_ONE = "INSERT INTO job (topic, body) VALUES (%s, %s)"
LEASE = """
UPDATE job SET leased_until = now() + interval '1 minute' WHERE id IN (
    SELECT id FROM job WHERE leased_until IS NULL ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
RETURNING id, topic, body"""
ACK = "DELETE FROM job WHERE id = ANY(%s)"
ACK_ONE = "DELETE FROM job WHERE id = %s"

Row = tuple[int, str, bytes]


class Raw:
    """Whole batches."""

    def __init__(self, url: str, durability: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(CREATE)
        if durability == "memory":
            self._connection.execute("SET synchronous_commit = off")

    def put(self, topics: list[int]) -> None:
        self._connection.execute(PUT, (BODY, [f"t.{topic}" for topic in topics]))

    def lease(self) -> list[Row]:
        return self._connection.execute(LEASE, (BATCH,)).fetchall()

    def ack(self, taken: list[Row]) -> None:
        self._connection.execute(ACK, ([number for number, *_ in taken],))

    def close(self) -> None:
        self._connection.close()


class Plain(Raw):
    """A statement for each message, a transaction for each batch."""

    def put(self, topics: list[int]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(PUT_ONE, [(f"t.{topic}", BODY) for topic in topics])

    def ack(self, taken: list[Row]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(ACK_ONE, [(number,) for number, *_ in taken])
