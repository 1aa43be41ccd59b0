"""The PostgreSQL engine: the rules of `engines.sql` on the schemas of a database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laneway.engines.base import Check, FullEngine, Settings
from laneway.errors import UsageError


class _OpenPostgres:
    """The opener of this engine's schemes. It imports the client library when it is called."""

    def __call__(self, url: str, settings: Settings) -> FullEngine:
        """
        Open or create the schema of the namespace in the database that the URL names, or its
        schemas (`?shards=4`).
        """
        with _client_library():
            from laneway.engines.postgres.schemas import open_schemas  # noqa: PLC0415
        return open_schemas(url, settings)

    def check_server(self, url: str) -> list[Check]:
        """Check the server and the durabilities that it can keep."""
        with _client_library():
            from laneway.engines.postgres import server_check  # noqa: PLC0415
        return server_check.check_server(url)

    def shard_servers(self, url: str, namespace: str) -> list[str]:
        """By shard: its server and database."""
        with _client_library():
            from laneway.engines.postgres import moving_shards  # noqa: PLC0415
        return moving_shards.shard_servers(url, namespace)

    def move_shard(self, url: str, namespace: str, shard: int, server: str) -> int:
        """Move a shard to another server: `HOST:PORT/DATABASE`. Returns how many rows it has."""
        with _client_library():
            from laneway.engines.postgres import moving_shards  # noqa: PLC0415
        return moving_shards.move_shard(url, namespace, shard, server)


open_postgres = _OpenPostgres()


@contextlib.contextmanager
def _client_library() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "psycopg":
            raise
        raise UsageError(
            "the PostgreSQL engine needs psycopg; pip install 'laneway[postgres]'"
        ) from error
