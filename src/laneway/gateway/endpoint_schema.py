"""What requests about endpoints and their answers consist of; see `schema`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from laneway.gateway.schema import Time
from laneway.push.endpoint import EndpointInfo
from laneway.push.table import CHECKS, Record
from laneway.push.trial import TrialResult


class EndpointsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which endpoints."""

    pattern: str = "*"
    state: Literal["healthy", "failing", "busy", "open", "probing", "disabled"] | None = None
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
