"""Stored outcomes and progress of messages, by topic and id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from laneway.message import ProgressReport, StoredResult

CancelAnswer = Literal["cancelled", "aborted", "dead", "unknown"]
"""
The answers of `Results.cancel`.

`"cancelled"`: the message waited and was removed. `"aborted"`: it was leased; the lease has ended
and its worker is notified. `"dead"`, `"unknown"`: nothing was changed.
"""


@runtime_checkable
class Results(Protocol):
    """
    Outcomes and progress of messages.

    An outcome is written by `Queue.settle` (`Settlement.outcome`), or by the engine itself for a
    message with `RESULT_TTL_HEADER` that ends without a handler's report.
    """

    def report_progress(
        self, reports: Sequence[ProgressReport], *, now_us: int | None = None
    ) -> list[bool]:
        """
        Store the progress of messages; the last report replaces earlier ones. Values of the
        application (`laneway.admin.values`) are stored in the same way, under an empty id.

        Returns False for each whose lease has ended, or whose stored value is not `before`;
        nothing was stored then.
        """

    def results(
        self, ids: Sequence[tuple[str, str | None]], *, now_us: int | None = None
    ) -> list[StoredResult]:
        """
        Read the stored outcome and progress of messages.

        Arguments: `ids`: (message id, topic) pairs. With None as the topic, only a generated id
        whose outcome is stored is found.

        Returns a `StoredResult` for each, empty if nothing is stored.
        """

    def delete_result(self, message_id: str, topic: str | None = None) -> None:
        """
        Delete the stored outcome and progress of a message, if any. `topic`: as in `results`.
        """

    def on_end(self, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
        """
        Publish an `ENDED` message that carries `follower` when this message ends.

        Arguments: `follower`: JSON. The end notice is published to the topic of the message that
        ended.

        Returns the outcome if the message has already ended, else None.

        Raises UsageError if the message is unknown, or if its outcome will not be stored (it has no
        `RESULT_TTL_HEADER`).
        """

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> CancelAnswer:
        """
        Remove a waiting message; if it is leased, end the lease and notify its worker (`ABORT`).

        If the message has a stored result, its outcome becomes `"cancelled"`.
        """
