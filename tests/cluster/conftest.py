"""Stores of elections, and programs that wait in them for their turn."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.testing.servers import until
from tests.cluster.fenced_store import FencedStore
from tests.cluster.processes import files_of
from tests.cluster.zookeeper_server import NoZooKeeper, ZooKeeper, classpath
from tests.conformance.valkey_setups import server
from tests.stopping import stop_between_writes

HOLDER = str(Path(__file__).parent / "holder.py")
STORES = ["sqlite", "valkey", "zookeeper"]
TERM = 1.5
"""Seconds of a term: short, and longer than most pauses of a busy machine."""


@cache
def _running_zookeeper() -> ZooKeeper:
    import atexit

    running = ZooKeeper()
    running.start()
    atexit.register(running.__exit__)
    return running


@pytest.fixture
def zookeeper() -> ZooKeeper:
    """A ZooKeeper that every test of the process uses."""
    try:
        classpath()
    except NoZooKeeper as missing:
        pytest.skip(str(missing))
    return _running_zookeeper()


@dataclass
class Store:
    """Where elections are kept."""

    name: str
    url: str
    zookeeper: str | None = None
    namespace: str = field(default_factory=lambda: uuid.uuid4().hex)

    def app(self) -> Laneway:
        return Laneway(self.url, namespace=self.namespace)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    name = request.param
    if name == "valkey":
        return Store(name, server().url)
    if name == "zookeeper":
        running: ZooKeeper = request.getfixturevalue("zookeeper")
        return Store(name, f"sqlite:///{tmp_path}/q.db", f"{running.address}/tests")
    return Store(name, f"sqlite:///{tmp_path}/q{'?shards=4' if name.endswith('files') else '.db'}")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        yield app


class Candidates:
    """Processes of `holder.py`, and the fenced store that they write into."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "holders.log"
        self.fenced = FencedStore(folder / "fenced.db")
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self, store: Store, *, term: float = TERM, bound: float = 20.0
    ) -> subprocess.Popen[str]:
        """A candidate that is ready."""
        options = [store.url, store.namespace, str(self._folder / "fenced.db"), term, bound]
        with self._log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, HOLDER, *map(str, options), store.zookeeper or ""],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "candidate\n"
        return process

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = 30) -> None:
        try:
            until(condition, what, seconds)
        except TimeoutError as error:
            log = self._log.read_text()[-3000:]
            raise AssertionError(f"{error}\n{log}") from None

    def stop(self, pid: int, store: Store) -> None:
        """Stop a candidate, but not while it writes: nobody else could write meanwhile."""
        files = files_of(store.url, store.namespace)
        stop_between_writes(pid, self._folder / "fenced.db", *files)

    def holder(self) -> int | None:
        """The process that wrote last."""
        rows = self.fenced.rows()
        return rows[-1][1] if rows else None

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.fenced.close()


@pytest.fixture
def candidates(tmp_path: Path) -> Iterator[Candidates]:
    folder = tmp_path / "holders"
    folder.mkdir()
    started = Candidates(folder)
    yield started
    started.close()
