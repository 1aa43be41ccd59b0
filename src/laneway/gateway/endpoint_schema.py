"""Requests about endpoints and their delivery log, and the answers; see `schema`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from laneway.gateway.schema import Time
from laneway.push.delivery_log import AttemptInfo, Result
from laneway.push.endpoint import EndpointInfo
from laneway.push.replay import ReplayResult
from laneway.push.table import CHECKS, Record, State
from laneway.push.trial import TrialResult


class EndpointsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which endpoints."""

    pattern: str = "*"
    state: State | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    after: str | None = None


EndpointBody = msgspec.defstruct(
    "EndpointBody",
    [
        ("url", str | None, None),
        ("secret", str | None, None),
        *(
            (field.name, field.type | None, None)
            for field in msgspec.structs.fields(Record)
            if field.name in CHECKS
        ),
    ],
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "Settings of an endpoint; null resets one."},
)
"""For the API's description only: `push.table.CHECKS` has the checks."""


EndpointLineBody = msgspec.defstruct(
    "EndpointLineBody",
    [("topic", str)],
    bases=(EndpointBody,),
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "Settings of the endpoint of a topic."},
)


class DisableBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Why the endpoint is disabled."""

    reason: Annotated[str, msgspec.Meta(max_length=200)] = "by hand"


class EndpointAnswer(EndpointInfo, kw_only=True):
    """
    An endpoint without its secrets: `secrets` has their ends. Values of headers that look like
    secrets are `…`.
    """

    secret: str | None = None
    failing_since: Time | None  # type: ignore[assignment]  # Python has Unix seconds
    busy_since: Time | None  # type: ignore[assignment]
    created: Time  # type: ignore[assignment]
    changed: Time  # type: ignore[assignment]


class EndpointsAnswer(msgspec.Struct):
    """Endpoints by topic."""

    endpoints: list[EndpointAnswer]
    next: str | None


class RotateQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which kind of secret to create."""

    ed25519: bool = False


class RotateAnswer(msgspec.Struct):
    """The new secret, which is not shown again; of ed25519 the public key."""

    secret: str


class TestAnswer(TrialResult, kw_only=True):
    """The answer to a test request."""

    body: str | None  # type: ignore[assignment]


class EndpointLineAnswer(msgspec.Struct, omit_defaults=True):
    """
    What became of a line, counted from 1: `topic`, and the `secret` of a new endpoint; or
    `problem`, the text of the error.
    """

    line: int
    topic: str | None = None
    secret: str | None = None
    problem: str | None = None


# The delivery log and replays


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


class ReplayAnswer(ReplayResult, kw_only=True):
    """What became of a replay."""

    operation: str | None = None
