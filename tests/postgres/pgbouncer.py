"""A pgbouncer in transaction mode, in front of a PostgreSQL server on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psycopg
import pytest

from laneway.testing.postgres_server import NOBODY, PostgresServer
from laneway.testing.servers import die_with_parent, free_port, until

CONFIG = """
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 1000
server_login_retry = 1
logfile = {folder}/log
"""


def program() -> str | None:
    """The program, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def require() -> None:
    """Skip the test if it is not."""
    if program() is None:
        pytest.skip("pgbouncer is not installed (apt-get install pgbouncer)")


class Pgbouncer:
    """Starts as a context manager, and ends with it."""

    def __init__(self, server: PostgresServer, size: int = 20) -> None:
        """`size`: connections to each database of the server."""
        self.server, self.port = server, free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="laneway-pgbouncer-"))
        config = CONFIG.format(
            server_port=server.port, port=self.port, size=size, folder=self.folder
        )
        (self.folder / "config").write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = program()
        assert command is not None
        is_root = os.getuid() == 0
        if is_root:
            os.chown(self.folder, NOBODY, NOBODY)
        with (self.folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [command, str(self.folder / "config")],
                stdout=output,
                stderr=output,
                preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509  # as in `Server`
                user=NOBODY if is_root else None,
                group=NOBODY if is_root else None,
            )
        until(self._answers, f"pgbouncer on port {self.port}")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def close(self) -> None:
        """End it and remove its folder."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
