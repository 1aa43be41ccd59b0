"""`app.endpoints`: the endpoints in the store."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from laneway.awaitable import async_variant
from laneway.runtime.runtime import Noun

if TYPE_CHECKING:
    from laneway.push.delivery_log import AttemptPage
    from laneway.push.endpoint import Endpoint, EndpointInfo


class Endpoints(Noun):
    """The endpoints of topics: `app.endpoints`. `Laneway.endpoint` sets one."""

    def set_many(
        self, endpoints: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> builtins.list[Endpoint]:
        """
        Create or change many endpoints, given as pairs of topic and settings, in batches. Raises
        UsageError, which names the topic; the batches before it have been set.
        """
        from laneway.push.endpoint import set_each  # noqa: PLC0415  # most programs push nothing

        return [*set_each(self._runtime, endpoints)]

    def list(
        self, pattern: str = "*", *, limit: int = 100, after: str = "", state: str | None = None
    ) -> builtins.list[EndpointInfo]:
        """
        List endpoints by topic, from the one after `after`. `state`: only those that are
        `"healthy"` (among 10,000 at most), `"failing"`, `"busy"`, `"open"`, `"probing"` or
        `"disabled"`.
        """
        from laneway.push.endpoint import list_endpoints  # noqa: PLC0415  # most programs push nothing

        found, _ = list_endpoints(
            self._runtime.engine, [pattern], limit=limit, after=after, state=state
        )
        return found

    def attempts(
        self,
        pattern: str = "*",
        *,
        limit: int = 50,
        after: str | None = None,
        since: float | None = None,
        until: float | None = None,
        result: str | None = None,
        status: int | str | None = None,
        message_id: str | None = None,
        key: str | None = None,
    ) -> AttemptPage:
        """
        Search the delivery log of a topic's endpoint, or of those of a pattern: requests and their
        answers, the newest first. For a pattern, each page searches at most 10,000 attempts of all
        topics. Arguments as those of `Endpoint.attempts`. Raises UsageError.
        """
        from laneway.push.delivery_log import attempts  # noqa: PLC0415  # most programs push nothing

        return attempts(
            self._runtime.engine,
            [pattern],
            limit=limit,
            after=after,
            since=since,
            until=until,
            result=result,
            status=status,
            message_id=message_id,
            key=key,
        )

    aset_many = async_variant(set_many)
    alist = async_variant(list)
    aattempts = async_variant(attempts)
