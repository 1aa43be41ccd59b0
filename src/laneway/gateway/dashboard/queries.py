"""The parameters of pages."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from laneway.gateway.schema import MAX_NUMBER
from laneway.push.delivery_log import Result
from laneway.push.table import State

UnixSeconds = Annotated[int, msgspec.Meta(ge=0, le=10**11)]


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`did`: the result of an action, which is shown once. `embed`: without menu, for a frame."""

    did: str = ""
    embed: bool = False


class NowQuery(PageQuery):
    """
    `range`: of the charts. `start`, `end` (`from` and `to`): a part of it, in Unix seconds.
    `table`: their values as a table.
    """

    range: str = "1h"
    start: UnixSeconds | None = msgspec.field(default=None, name="from")
    end: UnixSeconds | None = msgspec.field(default=None, name="to")
    table: bool = False


class TopicsQuery(PageQuery):
    """`filter`: see `Filter`. `after`: the last topic of the page before, by name."""

    order: str = "backlog"
    filter: str = ""
    after: str = ""


class TopicQuery(PageQuery):
    """`name`: the topic. `show`: which of its messages."""

    name: str
    show: str = "next"


class LiveQuery(PageQuery):
    """`of`: the path and query of the page that is to be kept live."""

    of: str


class ExportQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`of`: the path and query of the page. `format`: of the file."""

    of: str
    format: Literal["csv", "json"] = "csv"
    embed: bool = False


class MessageQuery(PageQuery):
    """`topic`, `id`: the message."""

    topic: str
    id: str


class SearchQuery(PageQuery):
    """`q`: a topic, an id, or a topic and an id or key."""

    q: str = ""


class RangeQuery(PageQuery):
    """`range`: of the history."""

    range: str = "1h"


class FutureQuery(PageQuery):
    """
    `after`: the last schedule of the page before. `by`: the length of the bars of what is due.
    `table`: as a table.
    """

    after: str = ""
    by: Literal["minute", "hour", "day"] = "hour"
    table: bool = False


class DeadQuery(PageQuery):
    """
    `topic`: only this topic's. `fingerprint`: only dead letters with this failure. `after`: the
    number of the last dead letter of the previous page.
    """

    topic: str = ""
    fingerprint: str = ""
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 0


class EndpointsQuery(PageQuery):
    """`filter`: a topic or pattern. `state`: only such ones. `after`: the page before's last."""

    filter: str = ""
    state: Literal[State, ""] = ""
    after: str = ""


class EndpointQuery(PageQuery):
    """
    `topic`: of the endpoint. `result`, `status`, `id`: of the attempts that are searched. `after`:
    where the page before ended.
    """

    topic: str
    result: Literal[Result, ""] = ""
    status: str = ""
    id: str = ""
    after: str = ""


class JobQuery(PageQuery):
    """
    `id`: of the job. `topic`: needed for ids of the user's own. `range`: of the tables. `task`:
    whose durations are shown at large.
    """

    id: str = ""
    topic: str = ""
    range: str = "1h"
    task: str = ""


class AuditQuery(PageQuery):
    """`before`: the number of the page before's last change."""

    before: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)] | None = None


class TokensQuery(PageQuery):
    """`after`: the id of the page before's last token."""

    after: str = ""
