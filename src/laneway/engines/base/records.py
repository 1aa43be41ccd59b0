"""Small records of the namespace outside the queue: tokens, endpoints, the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

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
What a record is about.

`"gateway"`: what all gateways of a namespace share. `"token"`: a token of the gateway's API.
`"session"`: a browser's session that has ended early. `"audit"`: a change that was made through the
API. `"command"`: one to a worker, or its answer. `"endpoint"`: where a topic's messages are pushed
to; its name is the topic's. `"copying"`: a subscription that does not have all copies of what
waited in its topics yet. `"endpoint_state"`: an endpoint that is not healthy; its name is the state
and the topic.

There may be millions of endpoints and states, so reading and changing one, and listing a page of
them, must not cost more then. Of the others there are thousands at most.
"""

RecordChange = tuple[str, "bytes | None", "bytes | None"]
"""A record's name, what it was (`before`), and what it becomes (`after`)."""


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

        Returns False, and changes nothing, if the record is another one by now.
        """

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        """
        As `record_swap`, for many different records in one call, each on its own. Returns for
        each whether it was replaced.
        """

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        """List the (name, record) pairs of a kind by name, from the one after `after`."""
