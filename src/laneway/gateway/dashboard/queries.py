"""The parameters of pages."""

from __future__ import annotations

import msgspec


class PageQuery(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`did`: the result of an action, which is shown once."""

    did: str = ""


class NowQuery(PageQuery):
    """`range`: of the charts. `table`: their values as a table."""

    range: str = "1h"
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
