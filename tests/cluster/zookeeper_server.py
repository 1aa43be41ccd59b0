"""
A ZooKeeper server on loopback, from Debian's packages `zookeeper` and `libzookeeper-java`.

Its jars are looked for in the folder that LANEWAY_ZOOKEEPER_JARS names, else where Debian installs
them. A folder into which the packages were unpacked (`dpkg-deb -x`) will do.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from laneway.testing.servers import free_port, until

DEBIAN = "/usr/share/java"
NEEDED = ("zookeeper", "zookeeper-jute", "slf4j-api")
WANTED = (
    *NEEDED,
    "slf4j-simple",
    "metrics-core",
    "snappy-java",
    "commons-io",
    "commons-cli",
    "netty-*",
    "jackson-*",
)
TICK_MS = 500
"""Sessions last from 2 to 20 ticks: 1 to 10 s."""


class NoZooKeeper(RuntimeError):
    """Java or ZooKeeper is missing."""


def classpath() -> str:
    """The jars of ZooKeeper. Raises NoZooKeeper."""
    if shutil.which("java") is None:
        raise NoZooKeeper("no java on the PATH; install a Java runtime to test elections with it")
    folder = Path(os.environ.get("LANEWAY_ZOOKEEPER_JARS", DEBIAN))
    missing = [name for name in NEEDED if not (folder / f"{name}.jar").exists()]
    if missing:
        raise NoZooKeeper(
            f"no ZooKeeper in {folder} (missing: {', '.join(missing)}); install Debian's"
            " libzookeeper-java, or set LANEWAY_ZOOKEEPER_JARS to a folder with its jars"
        )
    jars = [jar for name in WANTED for jar in sorted(folder.glob(f"{name}.jar"))]
    return ":".join(map(str, jars))


class ZooKeeper:
    """One server with short ticks. As a context manager it is removed with its data at the end."""

    def __init__(self) -> None:
        self._classpath = classpath()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="laneway-zookeeper-"))
        (self.folder / "zoo.cfg").write_text(
            f"tickTime={TICK_MS}\ndataDir={self.folder}/data\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            "4lw.commands.whitelist=ruok\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        log = (self.folder / "server.log").open("ab")
        self._process = subprocess.Popen(
            ["java", "-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp",
             self._classpath, "org.apache.zookeeper.server.ZooKeeperServerMain",
             str(self.folder / "zoo.cfg")],
            stdout=log, stderr=log, cwd=self.folder,
        )  # fmt: skip
        log.close()
        until(self._answers, f"ZooKeeper on port {self.port}", 60)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError((self.folder / "server.log").read_text()[-2000:])
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"ruok")
            return connection.recv(10) == b"imok"

    def pause(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> ZooKeeper:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
