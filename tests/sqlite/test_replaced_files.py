"""A file that is removed or replaced while a process has it open: nothing is accepted into it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared import replaced_files
from laneway.errors import EngineCorrupt, EngineUnavailable, SchemaMismatch
from laneway.message import Draft, Settlement


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "q.db"


@pytest.fixture
def opened() -> Iterator[Callable[..., FullEngine]]:
    engines: list[FullEngine] = []

    def open_(path: Path, **settings: object) -> FullEngine:
        engines.append(open_engine(f"sqlite:///{path}", Settings(**settings)))  # type: ignore[arg-type]
        return engines[-1]

    yield open_
    for engine in engines:
        engine.close()


def put(engine: FullEngine, count: int = 1) -> list[str]:
    return [receipt.outcome for receipt in engine.put([Draft("a", b"1")] * count)]


def operations(engine: FullEngine) -> list[Callable[[], object]]:
    return [
        lambda: put(engine),
        lambda: engine.lease(1),
        lambda: engine.settle([Settlement(1, 1)]),
        lambda: engine.extend([(1, 1)], 1),
        lambda: engine.results([("x", None)]),
        engine.overview,
        lambda: engine.topic_stats("a"),
        lambda: engine.policy_set("code", "a", {"rate": 1}),
        lambda: engine.wait(60),
        engine.tick,
        lambda: engine.find("x"),
    ]


@pytest.mark.parametrize("settled", [True, False])
def test_a_file_that_was_removed(
    path: Path, opened: Callable[..., FullEngine], settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its folder has been quiet for long or not."""
    for age in ("SETTLED_NS", "SETTLED_COARSE_NS"):
        monkeypatch.setattr(replaced_files, age, -(10**9) if settled else 10**12)
    engine = opened(path)
    assert put(engine) == ["accepted"]
    for each in path.parent.glob("q.db*"):
        each.unlink()
    with pytest.raises(
        EngineUnavailable,
        match=r"q\.db: the file was removed or moved away under this process.*put it back",
    ) as raised:
        put(engine)
    assert not raised.value.applied  # False: it was found before the write, on a slow machine
    for operation in operations(engine):
        with pytest.raises(EngineUnavailable, match="removed or moved away"):
            operation()
    assert not path.exists(), "and none is made in its place"
    assert opened(path).overview().waiting == 0
    with pytest.raises(EngineUnavailable, match="another file was put in its place"):
        put(engine)


def test_a_file_that_is_put_back_can_be_used(path: Path, opened: Callable[..., FullEngine]) -> None:
    engine = opened(path)
    put(engine)
    path.rename(path.with_name("away"))
    with pytest.raises(EngineUnavailable, match="removed or moved away") as raised:
        put(engine)
    path.with_name("away").rename(path)
    assert put(engine) == ["accepted"]
    in_between = 1 if raised.value.applied is None else 0  # on a slow machine it was not written
    assert engine.overview().waiting == 2 + in_between


def test_a_folder_that_was_moved(path: Path, opened: Callable[..., FullEngine]) -> None:
    folder = path.parent / "inner"
    folder.mkdir()
    engine = opened(folder / "q.db")
    put(engine)
    folder.rename(path.parent / "other")
    with pytest.raises(EngineUnavailable, match="removed or moved away"):
        put(engine)


@pytest.mark.parametrize(("age", "stats"), [(1.5, 0), (1, 3), (4, 0)])
def test_a_commit_reads_the_folder_only(
    path: Path,
    opened: Callable[..., FullEngine],
    age: float,
    stats: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Where nothing has changed in it for a moment, or for long where its time is in whole seconds. On
    Linux, the next write would be slower after a `stat` of the `-wal`.
    """
    engine = opened(path)
    now = time.time_ns()
    clock = SimpleNamespace(time_ns=lambda: now, monotonic=time.monotonic)
    monkeypatch.setattr(replaced_files, "time", clock)
    changed = now - round(age * 1e9)
    changed -= changed % 1_000_000_000 if age == int(age) else 0
    os.utime(path.parent, ns=(changed, changed))
    put(engine)
    seen: list[str] = []

    def identity(name: str) -> tuple[int, int]:
        seen.append(name)
        return 0, 0

    monkeypatch.setattr(replaced_files, "_identity", identity)
    with suppress(EngineUnavailable):
        put(engine)
    assert len(seen) == stats


@pytest.mark.parametrize("which", ["wal", "shm"])
def test_a_part_that_was_removed(path: Path, opened: Callable[..., FullEngine], which: str) -> None:
    """Nothing is lost: the last process that ends writes it into the file."""
    first, second = opened(path), opened(path)
    assert put(first, 3) == put(second, 3) == ["accepted"] * 3
    path.with_name(f"q.db-{which}").unlink()
    for engine in (first, second):
        with pytest.raises(
            EngineUnavailable,
            match=rf"q\.db-{which}: the file was removed or replaced.*end all of them",
        ):
            put(engine)
        with pytest.raises(EngineUnavailable, match="removed or replaced"):
            engine.overview()
    first.close()
    second.close()
    engine = opened(path)
    assert engine.overview().waiting >= 6
    assert [check for check in engine.doctor() if not check.ok] == []


def test_a_file_that_was_replaced(path: Path, opened: Callable[..., FullEngine]) -> None:
    """The new file stays unchanged, even if the old one's `-wal` is beside it."""
    engine = opened(path)
    put(engine, 5)
    other = opened(path.with_name("other.db"))
    put(other)
    other.close()
    path.with_name("other.db").rename(path)
    with pytest.raises(
        EngineUnavailable, match=r"another file was put in its place.*restart this program"
    ):
        put(engine)
    with pytest.raises(
        EngineCorrupt, match=r"the .*q\.db-wal next to it belongs to another file.*move"
    ):
        opened(path)
    engine.close()
    for part in ("wal", "shm"):
        path.with_name(f"q.db-{part}").unlink(missing_ok=True)
    new = opened(path)
    assert new.overview().waiting == 1
    assert [check for check in new.doctor() if not check.ok] == []


def test_its_own_wal_is_accepted(path: Path, opened: Callable[..., FullEngine]) -> None:
    """The `-wal` of a killed process, and of a running one."""
    script = (
        "import os, sys\nfrom laneway import Laneway\napp = Laneway(sys.argv[1])\napp.publish_many("
        "[__import__('laneway').Message('a', n) for n in range(50)])\nos._exit(1)\n"
    )
    for count in (50, 100):
        subprocess.run([sys.executable, "-c", script, f"sqlite:///{path}"], check=False, timeout=60)
        assert path.with_name("q.db-wal").stat().st_size > 0
        assert opened(path).overview().waiting == count


def test_a_relative_path_does_not_follow_the_working_folder(
    path: Path, opened: Callable[..., FullEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    engine = opened(Path("q.db"))
    link = path.with_name("link.db")
    link.symlink_to(path)
    by_link = opened(link)
    os.chdir("/")
    assert put(engine) == put(by_link) == ["accepted"]
    link.unlink()
    with pytest.raises(EngineUnavailable, match=r"link\.db: the file was removed"):
        put(by_link)
    assert put(engine) == ["accepted"]


@pytest.mark.parametrize("layout", [0, -1])
def test_an_unknown_layout_is_refused(
    path: Path, opened: Callable[..., FullEngine], layout: int
) -> None:
    opened(path).close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {layout}")
    raw.close()
    with pytest.raises(
        SchemaMismatch, match=rf"the file has layout {layout}, which no Laneway has written"
    ):
        opened(path)


WORKER = """
import sys
from laneway import Laneway

app = Laneway(sys.argv[1])

@app.handler("a")
def handle(message):
    print("ran", flush=True)

app.run_worker()
"""


def test_a_worker_waits_until_its_file_is_back(
    path: Path, opened: Callable[..., FullEngine]
) -> None:
    engine = opened(path)
    put(engine)
    command = [sys.executable, "-c", WORKER, f"sqlite:///{path}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stderr is not None
            assert worker.stdout.readline() == "ran\n"
            path.rename(path.with_name("away"))
            while "store unavailable" not in (line := worker.stderr.readline()):
                assert line, "it ended"
            assert "removed or moved away" in line
            path.with_name("away").rename(path)
            put(engine)
            assert worker.stdout.readline() == "ran\n"
        finally:
            worker.terminate()
