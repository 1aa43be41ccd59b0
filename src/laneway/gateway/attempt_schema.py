"""What requests about the delivery log and replays consist of; see `schema`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from laneway.gateway.schema import Time
from laneway.push.delivery_log import AttemptInfo, Result


class EndpointAttemptsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which attempts."""

    since: str | None = None
    until: str | None = None
    result: Result | None = None
    status: str | None = None
    id: str | None = None
    key: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50
    after: str | None = None


class AttemptsQuery(EndpointAttemptsQuery, forbid_unknown_fields=True, kw_only=True):
    """Which attempts, and topics."""

    pattern: str = "*"


class AttemptAnswer(AttemptInfo, kw_only=True):
    """One request and its answer."""

    at: Time  # type: ignore[assignment]  # Python has Unix seconds
    body: str | None  # type: ignore[assignment]


class AttemptsAnswer(msgspec.Struct):
    """Attempts, the newest first."""

    attempts: list[AttemptAnswer]
    next: str | None
    truncated: bool


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    What to send again: one message by `id`, or the messages whose last attempts were between
    `since` and `until`.
    """

    id: str | None = None
    since: str | None = None
    until: str | None = None
    result: Literal["acked", "dead"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1_000
    rate: float | str | None = None
    dry_run: bool = False
    after: str | None = None
    background: bool = False


class ReplayAnswer(msgspec.Struct, kw_only=True):
    """What became of a replay."""

    replayed: int
    redriven: int
    waiting: int
    not_kept: int
    refused: int
    ids: list[str]
    next: str | None
    operation: str | None = None
