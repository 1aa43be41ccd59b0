"""What requests about endpoints and their answers consist of; see `schema`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from laneway.push.endpoint import EndpointInfo
from laneway.push.trial import TrialResult


class EndpointsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`pattern`: only these topics. `state`: only such ones, "healthy" among 10,000."""

    pattern: str = "*"
    state: Literal["healthy", "failing", "busy", "open", "probing", "disabled"] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    after: str | None = None


class DisableBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`reason`: what lists show."""

    reason: Annotated[str, msgspec.Meta(max_length=200)] = "by hand"


class EndpointAnswer(EndpointInfo, kw_only=True):
    """
    An endpoint without its secrets: `secrets` has their ends. Values of headers that look like
    secrets are `…`. `secret`: a new one, which is shown once. `disabled`: why it is;
    `attention`: why somebody should look at it; `failing_since`, `failures`, `last_failure`: since
    the last success; `busy_since`, `busy`: its answers 429 or 503 in a row.
    """

    secret: str | None = None
    failing_since: datetime | None  # type: ignore[assignment]  # Python has Unix seconds
    busy_since: datetime | None  # type: ignore[assignment]
    created: datetime  # type: ignore[assignment]
    changed: datetime  # type: ignore[assignment]


class EndpointsAnswer(msgspec.Struct):
    """Endpoints by topic. `next`: for the parameter `after` of the next page."""

    endpoints: list[EndpointAnswer]
    next: str | None


class RotateQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`ed25519`: create a key pair; the answer has the public key."""

    ed25519: bool = False


class RotateAnswer(msgspec.Struct):
    """The new secret, which is not shown again; of ed25519 the public key."""

    secret: str


class TestAnswer(TrialResult, kw_only=True):
    """
    The answer to a test request. `ok`: whether a message would be acked. `body`: its first 4 KiB,
    for callers with the scope `bodies`. `milliseconds`: until each step had ended.
    """

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
