"""`app.elections`: the elections that the engine keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.cluster.term_store import EngineTerms
from laneway.runtime.noun import Noun

if TYPE_CHECKING:
    import builtins

    from laneway.cluster.term_store import ElectionState


class Elections(Noun):
    """The elections that the engine keeps: `app.elections`. `Laneway.election` runs one."""

    def list(self, *, limit: int = 1000, after: str | None = None) -> builtins.list[ElectionState]:
        """List their states by name: at most `limit`, after the name `after`."""
        engine = self._runtime.engine
        names = engine.elections(
            limit=arguments.whole("elections.list", "limit", limit),
            after="" if after is None else arguments.name("elections.list", "after", after),
        )
        return [EngineTerms(lambda: engine, name).state() for name in names]

    alist = async_variant(list)
