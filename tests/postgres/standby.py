"""A standby of a PostgreSQL server on loopback."""

from __future__ import annotations

from laneway.testing.postgres_server import PostgresServer, programs
from laneway.testing.servers import until

NAME = "laneway_standby"


class Standby(PostgresServer):
    """Copies a primary and follows it. `start` after `kill` or `stop` continues."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(
            primary_conninfo=(
                f"'host=127.0.0.1 port={primary.port} user=postgres application_name={NAME}'"
            ),
            fsync=primary.config["fsync"],
        )
        self.primary = primary

    def start(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            self._run(
                *(programs() / "pg_basebackup", "-h", "127.0.0.1", "-p", self.primary.port),
                *("-U", "postgres", "-D", data, "--checkpoint=fast", "--no-sync"),
            )
            (data / "standby.signal").touch()
        super().start()

    def wait_until_it_follows(self) -> None:
        """Until the primary has a synchronous standby."""
        rows = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        until(lambda: bool(self.primary.execute(rows)), "the standby follows", 60)
