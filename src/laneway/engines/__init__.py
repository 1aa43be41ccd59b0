"""
Engines keep messages in a store. `open_engine(url, settings)` opens the one that a URL names.

Every engine, ours too, registers an `OpenEngine` for each of its schemes under the entry point
group `laneway.engines`.
"""

from __future__ import annotations

import difflib
import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from laneway.engines.planned import PLANNED
from laneway.errors import UsageError
from laneway.safetext import redacted

if TYPE_CHECKING:
    from laneway.engines.base import Check, FullEngine, OpenEngine, Settings

GROUP = "laneway.engines"


def open_engine(url: str, settings: Settings) -> FullEngine:
    """
    Open the engine that a URL names: `sqlite:///path`, `sqlite://` (in memory), `valkey://host` and
    others (see docs/engines.md), or one that another package registered under the entry point group
    `laneway.engines`.

    Raises UsageError for a URL that names no engine, and the errors of the engine.
    """
    return _opener(url)(url, settings)


def check_server(url: str) -> list[Check]:
    """
    Check whether the server that a URL names can hold a namespace. Creates nothing there.

    Empty for engines without a server, and for those whose opener has no `check_server`.
    """
    check = getattr(_opener(url), "check_server", None)
    return list(check(url)) if check is not None else []


def _opener(url: str) -> OpenEngine:
    scheme, separator, _ = url.partition("://")
    if not separator:
        path = redacted(url) or "laneway.db"
        raise UsageError(
            f'engine URL {redacted(url)!r}: a scheme is missing; write "sqlite:///{path}" for a'
            " file"
        )
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
    The entry points by scheme. If several packages name a scheme, ours is used.

    Cached for each `sys.path`, because reading the metadata of all packages takes milliseconds.
    """
    del path
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=_is_ours)}


def _is_ours(entry: EntryPoint) -> bool:
    return entry.value.startswith(f"{__name__}.")


def _unknown(scheme: str, registered: dict[str, EntryPoint]) -> str:
    if not any(map(_is_ours, registered.values())):
        return (
            "the engines are not registered: the metadata of the package laneway is missing or"
            " older than its code; install it (in a source tree: pip install -e .)"
        )
    if scheme in PLANNED:
        return (
            f"there is no engine for {PLANNED[scheme]} yet; use SQLite or Valkey, see"
            " docs/engines.md"
        )
    near = difflib.get_close_matches(scheme, registered, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return f'there is no engine "{scheme}", only {", ".join(sorted(registered))}{hint}'
