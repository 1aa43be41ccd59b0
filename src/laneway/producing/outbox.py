"""
The outbox: a table in the user's own database, into which `publish(connection=…)` inserts in the
caller's transaction. A message exists once that transaction commits, and a forwarder puts it into
the store (`outbox_source`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from laneway import codec
from laneway.engines.shared.refusals import delay_outlasts_ttl
from laneway.errors import BadMessage
from laneway.message import Draft, Message, Receipt
from laneway.producing.bulk import BATCH, batches_of
from laneway.producing.connections import Connected
from laneway.producing.middleware import Middlewares
from laneway.producing.spool_file import packed_options

Statement = tuple[str, list[Any]]

ROWS = 100
"""The maximum number of messages in one statement."""

TABLES = """
CREATE TABLE IF NOT EXISTS laneway_outbox (
    id         {identity},
    namespace  text NOT NULL,
    at_us      bigint NOT NULL,  -- when publish was called, in microseconds since 1970
    topic      text NOT NULL,
    message_id text NOT NULL,
    body       {bytes} NOT NULL,
    options    {bytes},
    reason     text              -- why the store refused it; NULL: it is forwarded
);
CREATE INDEX IF NOT EXISTS laneway_outbox_next
    ON laneway_outbox (namespace, id) WHERE reason IS NULL;
CREATE TABLE IF NOT EXISTS laneway_outbox_forwarder (
    namespace   text PRIMARY KEY,
    spool       text NOT NULL,
    batch       text NOT NULL DEFAULT '',
    ids         text NOT NULL DEFAULT '',
    forwarder   text NOT NULL DEFAULT '',
    leads_until double precision NOT NULL DEFAULT 0,
    error       text
);
CREATE TABLE IF NOT EXISTS laneway_once (
    topic       text NOT NULL,
    message_id  text NOT NULL,
    recorded_at double precision NOT NULL,  -- in seconds since 1970
    PRIMARY KEY (topic, message_id)
);
CREATE INDEX IF NOT EXISTS laneway_once_age ON laneway_once (recorded_at);
"""


def tables(database: str) -> str:
    """The SQL that creates the tables, for "postgresql" or "sqlite"."""
    if database == "sqlite":
        return TABLES.format(identity="integer PRIMARY KEY AUTOINCREMENT", bytes="blob")
    return TABLES.format(identity="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", bytes="bytea")


def create(connection: Any, call: str = "outbox.create") -> None:
    """Create the tables that do not exist, in the caller's transaction. Raises UsageError."""
    connected = Connected(call, connection)
    for statement in tables(connected.database).strip().split(";\n"):
        connected.run(statement.removesuffix(";"))


class JoinedProducer:
    """Publishes in the transaction of a connection, through the application's middlewares."""

    def __init__(self, namespace: str, middlewares: Middlewares, connection: Any) -> None:
        self._namespace = namespace
        self._middlewares = middlewares
        self._connection = connection

    def publish(self, message: Message, timeout: object = None) -> Receipt:
        """Insert one message. Raises BadMessage, UsageError and the database's errors."""
        del timeout  # nothing is full here
        return self._publish("publish", [message])[0]

    async def apublish(self, message: Message, timeout: object = None) -> Receipt:  # noqa: ASYNC109
        """The async variant of `publish`."""
        del timeout
        return (await self._apublish("apublish", [message]))[0]

    def publish_many(self, messages: Iterable[Message], **_: object) -> list[Receipt]:
        """Insert many messages."""
        stream, receipts = iter(messages), list[Receipt]()
        while batch := list(islice(stream, BATCH)):
            receipts += self._publish("publish_many", batch)
        return receipts

    async def apublish_many(
        self, messages: Iterable[Message] | AsyncIterable[Message], **_: object
    ) -> list[Receipt]:
        """The async variant of `publish_many`. Accepts an async iterable too."""
        receipts: list[Receipt] = []
        if isinstance(messages, AsyncIterable):
            async for batch in batches_of(messages):
                receipts += await self._apublish("publish_many", batch)
            return receipts
        stream = iter(messages)
        while batch := list(islice(stream, BATCH)):
            receipts += await self._apublish("publish_many", batch)
        return receipts

    def _publish(self, call: str, messages: list[Message]) -> list[Receipt]:
        connected = Connected(call, self._connection)
        with self._inserts(messages) as (receipts, statements):
            for sql, parameters in statements:
                connected.run(sql, parameters)
        return receipts

    async def _apublish(self, call: str, messages: list[Message]) -> list[Receipt]:
        connected = Connected(call, self._connection)
        with self._inserts(messages) as (receipts, statements):
            for sql, parameters in statements:
                await connected.arun(sql, parameters)
        return receipts

    @contextmanager
    def _inserts(self, messages: list[Message]) -> Iterator[tuple[list[Receipt], list[Statement]]]:
        """The receipts, and the statements to run within the block. Raises BadMessage."""
        for message in messages:
            if not isinstance(message, Message):
                raise BadMessage(f"publish_many: expected messages, got {message!r:.80}")
        with ExitStack() as stack:
            passages = [stack.enter_context(self._middlewares.around(each)) for each in messages]
            drafts = [codec.draft(passage.message) for passage in passages]
            rows = [self._row(draft) for draft in drafts]
            receipts = [Receipt(each.id or "", each.topic, "spooled") for each in drafts]
            parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
            yield receipts, [_insert(part) for part in parts]
            for passage, receipt in zip(passages, receipts, strict=True):
                passage.receipt = receipt

    def _row(self, draft: Draft) -> list[Any]:
        if draft.delay_us and draft.ttl_us is not None and draft.delay_us >= draft.ttl_us:
            raise BadMessage(delay_outlasts_ttl(draft, draft.delay_us, draft.ttl_us))
        if draft.id is None:
            draft.id = f"o{secrets.token_hex(12)}"
        now = time.time_ns() // 1000
        return [self._namespace, now, draft.topic, draft.id, draft.body, packed_options(draft)]


def _insert(rows: list[list[Any]]) -> Statement:
    marks = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows))
    sql = (
        "INSERT INTO laneway_outbox (namespace, at_us, topic, message_id, body, options)"  # noqa: S608  # marks only
        f" VALUES {marks}"
    )
    return sql, [value for row in rows for value in row]
