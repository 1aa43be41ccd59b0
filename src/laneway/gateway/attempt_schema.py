"""What requests about the delivery log and replays consist of; see `schema`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from laneway.push.delivery_log import AttemptInfo, Result


class EndpointAttemptsQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    `since`, `until`: RFC 3339, Unix seconds, or how long ago, as `10m`. `result`: what became of
    the message. `status`: of HTTP, a class such as `5xx`, or an error such as `timeout`. `id`,
    `key`: of the message. `after`: `next` of the page before.
    """

    since: str | None = None
    until: str | None = None
    result: Result | None = None
    status: str | None = None
    id: str | None = None
    key: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50
    after: str | None = None


class AttemptsQuery(EndpointAttemptsQuery, forbid_unknown_fields=True, kw_only=True):
    """As for one endpoint; `pattern`: only these topics."""

    pattern: str = "*"


class AttemptAnswer(AttemptInfo, kw_only=True):
    """
    One request and its answer. `status`: 0: there is none, and `error` says why. `text`: what it
    means. `request_headers`: values of secret ones are `…`. `headers`, `body`: of the answer; the
    body's first 4 KiB, for callers with the scope `bodies`. `can_replay`: whether the log has the
    message; `replay_of`: the message whose `webhook_id` it has.
    """

    at: datetime  # type: ignore[assignment]  # Python has Unix seconds
    body: str | None  # type: ignore[assignment]


class AttemptsAnswer(msgspec.Struct):
    """
    Attempts, the newest first. `next`: for the parameter `after` of the next page. `truncated`: so
    many were searched that older ones were not; the next page goes on.
    """

    attempts: list[AttemptAnswer]
    next: str | None
    truncated: bool


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    `id`: one message, without the other fields. Else the messages whose last attempts were between
    `since` and `until` (RFC 3339, Unix seconds, or how long ago), the newest `limit`. `result`:
    only what was `acked`, or is `dead`. `rate`: messages a second, or text such as `10/s`.
    `dry_run`: only count. `after`: `next` of the answer before. `background`: all of them, without
    a limit, as an operation.
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
    """
    `replayed`: new messages. `redriven`: dead letters that were put back. `waiting`: what is not
    replayed because it still waits. `not_kept`: what is not replayed because its body is no longer
    kept. `refused`: by the backlog limit. `ids`: of the first ten that are sent again; of one
    message: of the new one. `next`: for `after`, which continues with older ones. `operation`: what
    replays in the background.
    """

    replayed: int
    redriven: int
    waiting: int
    not_kept: int
    refused: int
    ids: list[str]
    next: str | None
    operation: str | None = None
