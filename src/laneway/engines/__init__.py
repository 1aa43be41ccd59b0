"""
Engines keep messages in a store. `open_engine(url, settings)` opens the one that a URL names.

Every engine, ours too, registers an `OpenEngine` for each of its schemes under the entry point
group `laneway.engines`. Ours are also in a table, and no other package can replace them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from laneway.engines.base import Check, FullEngine, OpenEngine, Settings
from laneway.engines.own import OWN
from laneway.errors import UsageError
from laneway.printable import meant, redacted

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


GROUP = "laneway.engines"


def open_engine(url: str, settings: Settings) -> FullEngine:
    """
    Open the engine that a URL names: `sqlite:///path`, `sqlite://` (in memory), `valkey://host` and
    others (see docs/engines.md), or one that another package registered under the entry point group
    `laneway.engines`.

    Raises UsageError for a URL that names no engine, and the errors of the engine.
    """
    engine = _opener(url)(url, settings)
    with contextlib.suppress(TypeError):  # of another package, without weak references
        _opened[engine] = url, settings
    return engine


_opened: WeakKeyDictionary[FullEngine, tuple[str, Settings]] = WeakKeyDictionary()


def opened_with(engine: FullEngine) -> tuple[str, Settings] | None:
    """With what `open_engine` opened an engine, for another process; None: it did not."""
    return _opened.get(engine)


def check_server(url: str) -> list[Check]:
    """
    Check whether the server that a URL names can hold a namespace. Creates nothing there.

    Empty for engines without a server, and for those whose opener has no `check_server`.
    """
    check = getattr(_opener(url), "check_server", None)
    return list(check(url)) if check is not None else []


def shard_servers(url: str, namespace: str) -> list[str]:
    """By shard of a namespace: the server that has it. Raises UsageError if it cannot move."""
    servers: list[str] = _with_servers(url, "shard_servers")(url, namespace)
    return servers


def move_shard(url: str, namespace: str, shard: int, server: str) -> int:
    """
    Move a shard of a namespace to another server while it is in use; if that was interrupted,
    complete it. Returns how many rows were copied.

    Raises UsageError if it cannot move, and the errors of the engine.
    """
    copied: int = _with_servers(url, "move_shard")(url, namespace, shard, server)
    return copied


def _with_servers(url: str, name: str) -> Callable[..., Any]:
    call: Callable[..., Any] | None = getattr(_opener(url), name, None)
    if call is None:
        raise UsageError(
            f"engine URL {redacted(url)!r}: only shards of a PostgreSQL namespace can be moved;"
            " a Valkey cluster moves its own, and other stores move with `laneway migrate`"
        )
    return call


def _opener(url: str) -> OpenEngine:
    scheme, separator, _ = url.partition("://")
    if not separator:
        path = redacted(url).removeprefix("sqlite:") or "laneway.db"
        raise UsageError(
            f'engine URL {redacted(url)!r}: "://" is missing; write "sqlite:///{path}" for a'
            ' file, or "valkey://host" for a server'
        )
    if scheme in OWN:
        module, _, name = OWN[scheme].partition(":")
        own: OpenEngine = getattr(importlib.import_module(module), name)
        return own
    registered = _registered(tuple(sys.path))
    if scheme not in registered:
        raise UsageError(f"engine URL {redacted(url)!r}: {_unknown(scheme, registered)}")
    try:
        opener: OpenEngine = registered[scheme].load()
    except ImportError as error:
        raise UsageError(
            f"engine {scheme}: {registered[scheme].value} cannot be imported ({error}); install the"
            " engine's package again"
        ) from error
    return opener


@functools.lru_cache(maxsize=8)
def _registered(path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """
    The entry points of other packages' engines by scheme.

    Cached for each `sys.path`, because reading the metadata of all packages takes milliseconds.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  # few programs have such an engine

    del path
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in OWN}


def _unknown(scheme: str, registered: dict[str, EntryPoint]) -> str:
    schemes = sorted((*OWN, *registered))
    return f'there is no engine "{scheme}"' + (
        meant(scheme, schemes) or f", only {', '.join(schemes)}"
    )
