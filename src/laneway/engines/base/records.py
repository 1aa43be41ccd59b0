"""Small records of the namespace outside the queue: tokens, endpoints, the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

RecordKind = Literal[
    "audit",
    "command",
    "copying",
    "endpoint",
    "endpoint_state",
    "gateway",
    "session",
    "token",
]
"""
The kinds of records.

`"gateway"`: the shared state of a namespace's gateways. `"token"`: a token of the gateway's API.
`"session"`: a browser session that has ended early. `"audit"`: a change that was made through the
API. `"command"`: a command to a worker, or its answer. `"endpoint"`: the endpoint to which a
topic's messages are pushed; its name is the topic's. `"copying"`: a subscription that does not yet
have copies of all messages that waited in its topics. `"endpoint_state"`: an endpoint that is not
healthy; its name consists of the state and the topic.

A namespace may have millions of endpoints and states; their number must not raise the cost of
reading or changing one, or of listing a page. The other kinds have at most thousands of records.
"""

RecordChange = tuple[str, "bytes | None", "bytes | None"]
"""A record's name, its expected value (`before`), and its new value (`after`)."""


@runtime_checkable
class Records(Protocol):
    """
    Records by kind and name, changed by compare and swap. `laneway.gateway` and `laneway.push`
    write them.
    """

    def record_read(self, kind: RecordKind, names: Sequence[str]) -> list[bytes | None]:
        """
        Read records (JSON) by name, in the order of the names, or None for each that does not
        exist.
        """

    def record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> bool:
        """
        Replace a record if it is still `before` (compare and swap). The change is as durable as a
        message.

        Arguments: `before`, `after`: JSON; None for no record.

        Returns False, and changes nothing, if the record has changed.
        """

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        """
        Like `record_swap`, for many different records in one call, each independently. Returns for
        each whether it was replaced.
        """

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        """List the (name, record) pairs of a kind by name, from the one after `after`."""
