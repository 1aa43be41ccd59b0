"""
Where messages are kept. `open_engine(url, settings)` is the only place that knows the engines'
names.
"""

from __future__ import annotations

import difflib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from laneway.engines import schemes
from laneway.errors import UsageError
from laneway.safetext import redacted

if TYPE_CHECKING:
    from laneway.engines.base import Check, FullEngine, OpenEngine, Settings

GROUP = "laneway.engines"
VALKEY = {scheme.partition("+")[0] for scheme in schemes.VALKEY}


def open_engine(url: str, settings: Settings) -> FullEngine:
    """
    Open the engine that a URL names: `sqlite:///path`, `sqlite://` (in memory), `valkey://host` and
    its like (see docs/engines.md), or one registered under the entry point group `laneway.engines`.

    Raises UsageError for a URL that names no engine, and what the engine raises.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        path = redacted(url) or "laneway.db"
        raise UsageError(
            f'engine URL {redacted(url)!r}: a scheme is missing; write "sqlite:///{path}" for a'
            " file"
        )
    return _opener(scheme, url)(url, settings)


def examine(url: str) -> list[Check]:
    """
    Whether the server that a URL names is fit to be one; nothing is made there. Empty for engines
    that are no servers.
    """
    if url.partition("://")[0].partition("+")[0] not in VALKEY:
        return []
    _opener(url.partition("://")[0], url)  # says so where the client library is missing
    from laneway.engines.valkey import doctor  # noqa: PLC0415

    return doctor.examine(url)


def _opener(scheme: str, url: str) -> OpenEngine:
    if scheme == "sqlite":
        from laneway.engines.sqlite import (  # noqa: PLC0415
            open_sqlite,
        )  # engines are imported when asked for

        return open_sqlite
    if scheme.partition("+")[0] in VALKEY:
        try:
            from laneway.engines.valkey import open_valkey  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                f"engine {scheme}: {_missing(error)}; pip install 'laneway[valkey]'"
            ) from error
        return open_valkey
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if scheme in found:
        opener: OpenEngine = found[scheme].load()
        return opener
    if scheme in schemes.PLANNED:
        raise UsageError(
            f"engine URL {redacted(url)!r}: there is no engine for PostgreSQL yet; use SQLite or"
            " Valkey, see docs/engines.md"
        )
    known = sorted({"sqlite", *schemes.VALKEY, *found})
    near = difflib.get_close_matches(scheme, known, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise UsageError(
        f'engine URL {redacted(url)!r}: there is no engine "{scheme}", only'
        f" {', '.join(known)}{hint}"
    )


def _missing(error: ImportError) -> str:
    """Which package of the client library, or what is wrong with it."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name in ("redis", "hiredis")
    return (
        f'the package "{error.name}" of the client library is missing'
        if is_missing
        else f"the client library cannot be used ({error})"
    )
