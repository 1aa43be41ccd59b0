"""How an engine is opened: its settings, its capabilities, and all roles as one protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, runtime_checkable

import msgspec

from laneway.engines.base.admin import Admin
from laneway.engines.base.delivery_log import DeliveryLog
from laneway.engines.base.elections import Elections
from laneway.engines.base.history import History
from laneway.engines.base.presence import Coordination
from laneway.engines.base.queue import Queue
from laneway.engines.base.records import Records
from laneway.engines.base.results import Results
from laneway.engines.base.transfer import Transfer
from laneway.engines.base.wakeup import Wakeup
from laneway.policy import OnFull
from laneway.tiers import Tier

Durability = Literal["memory", "fsync", "replicated"]
"""
The guarantee once `Queue.put` returns.

`"memory"`: the store has the messages, possibly only in memory; a crash may lose the last ones.
`"fsync"`: they are on disk. `"replicated"`: another machine has them too.
"""


class Capabilities(msgspec.Struct, frozen=True):
    """
    What an engine supports. Callers and tests use these flags, never the engine's name.

    - `name`: for logs and reports, such as `"sqlite"`.
    - `durability`: the levels that this store can offer.
    - `persistent`: messages survive the end of the process.
    - `processes`: several processes may open the same store.
    - `transactions`: messages published with a settlement are written in its transaction.
    - `shards`: how many shards the namespace has.
    - `only`: `Queue.lease` supports `only`.
    - `reserves`: `Queue.lease` supports `without` and `tiers`; workers keep slots for short work.
    - `embedded`: the engine works inside the caller's process, where it competes with the caller's
      threads for the interpreter; workers then leave it time.
    """

    name: str
    durability: frozenset[str]
    persistent: bool
    processes: bool
    transactions: bool
    shards: int = 1
    only: bool = False
    reserves: bool = False
    embedded: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    The application's settings for opening an engine.

    - `namespace`: the separate set of topics to open.
    - `durability`: None for the engine's default.
    - `tiers`: the tiers that the program declares, or None for those in the store or the default
      ones.
    - `default_tier`: the tier of topics whose policy names none.
    - `max_backlog` (messages), `max_backlog_bytes`, `on_full`: limit the whole namespace.
    - `create`: if False, a store that does not exist is an error.
    - `random`: a test hook that replaces the random number (0 … 1) in the jitter of backoffs and in
      the order of shards.
    """

    namespace: str = "default"
    durability: Durability | None = None
    tiers: dict[str, Tier] | None = None
    default_tier: str | None = None
    max_backlog: int | None = None
    max_backlog_bytes: int | None = None
    on_full: OnFull = "refuse"
    create: bool = True
    random: Callable[[], float] | None = None


@runtime_checkable
class FullEngine(
    Queue,
    Wakeup,
    Results,
    Admin,
    Elections,
    Records,
    Transfer,
    Coordination,
    History,
    DeliveryLog,
    Protocol,
):
    """All roles: what `laneway.engines.open_engine` returns."""

    capabilities: Capabilities
    durability: str
    """The level in use."""

    def close(self) -> None:
        """
        Close the store. Closing twice is allowed.

        Leases stay valid until they are settled elsewhere or expire.
        """


class OpenEngine(Protocol):
    """
    The function that a package registers under the entry point group `laneway.engines`.

    The entry point's name is the scheme of the engine's URLs.

    The opener of an engine with a server may have a method `check_server(url) -> list[Check]`,
    which checks whether the server can hold a namespace, and creates nothing there. `laneway
    doctor` calls it before it opens the engine.
    """

    def __call__(self, url: str, settings: Settings) -> FullEngine:
        """
        Open the store that the URL names, or create it if `settings.create` allows.

        Raises EngineUnavailable if the store cannot be reached or does not exist, SchemaMismatch if
        another version of Laneway wrote it, UsageError for an invalid URL or setting.
        """
