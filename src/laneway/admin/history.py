"""`app.history`: what happened in a namespace."""

from __future__ import annotations

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.history import figures
from laneway.history.figures import History
from laneway.runtime.runtime import Noun
from laneway.units import Duration


class Histories(Noun):
    """What happened in the namespace, in a tier, or in the topics of a pattern: `app.history`."""

    def read(
        self,
        pattern: str = "*",
        /,
        *,
        tier: str | None = None,
        last: Duration = 3600.0,
        step: Duration | None = None,
        max_backlog: int | None = None,
    ) -> History:
        """
        Read what happened in the namespace, in the topics that a policy pattern covers, or in a
        topic whose policy has `history=True`.

        Arguments: `tier`: only this tier; `last`: how far back, at most 60 days; `step`: the
        interval of the rows: 10 s (kept for 2 hours), 1 minute (3 days) or 15 minutes (60 days), or
        None for the shortest that is kept for that long; `max_backlog`: the namespace's limit;
        default: this application's.

        Workers write the history; this call writes it too, if it is due. Raises UsageError.
        """
        seconds = arguments.seconds("history", "last", last)
        if max_backlog is None:
            max_backlog = self._runtime.max_backlog
        else:
            arguments.whole("history", "max_backlog", max_backlog)
        return figures.read(
            self._runtime.engine,
            last=seconds,
            step=arguments.seconds_or_none("history", "step", step),
            tier=None if tier is None else arguments.name("history", "tier", tier),
            pattern=arguments.name("history", "pattern", pattern),
            max_backlog=max_backlog,
        )

    aread = async_variant(read)
