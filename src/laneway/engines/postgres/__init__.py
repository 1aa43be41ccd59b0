"""The PostgreSQL engine: the rules of `engines.sql` on the schemas of a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import UsageError

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, Settings


def open_postgres(url: str, settings: Settings) -> FullEngine:
    """Open or create the schema of the namespace in the database that the URL names."""
    try:
        from laneway.engines.postgres.engine import PostgresEngine  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise UsageError(
            "the PostgreSQL engine needs psycopg; pip install 'laneway[postgres]'"
        ) from error
    return PostgresEngine(url, settings)
