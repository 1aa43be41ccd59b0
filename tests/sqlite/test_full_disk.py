"""A disk that is nearly full: publishes leave what is needed to empty it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite import disk_space
from laneway.engines.sqlite.disk_space import RESERVE
from laneway.errors import EngineUnavailable
from laneway.message import Draft, Settlement

SOURCE = str(Path(__file__).parents[2] / "src")
LARGE = 1 << 40


class Disk:
    """What the disk of every file is said to have."""

    def __init__(self) -> None:
        self.free, self.total = LARGE, LARGE

    def of(self, path: str) -> tuple[int, int]:
        assert path
        return self.free, self.total


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(disk_space, "disk_of", disk.of)
    monkeypatch.setattr(disk_space, "LOOK_SECONDS", 0.0)
    return disk


@pytest.fixture
def engine(tmp_path: Path, disk: Disk) -> Iterator[FullEngine]:
    assert disk.free == LARGE
    with closing(open_engine(f"sqlite:///{tmp_path}/q.db", Settings())) as opened:
        yield opened


def refuses(engine: FullEngine) -> bool:
    with pytest.raises(EngineUnavailable, match="are kept for handling what waits") as caught:
        engine.put([Draft("a", b"x")])
    assert caught.value.applied is False
    with pytest.raises(EngineUnavailable):
        engine.put([Draft("a", b"x"), Draft("b", b"x")])
    with pytest.raises(EngineUnavailable):
        engine.forward([Draft("a", b"x", id="1")], spool="s", batch="1")
    return True


def test_only_publishes_are_refused(engine: FullEngine, disk: Disk) -> None:
    """Leases, settlements, dead letters, purge and what a worker does when it starts go on."""
    engine.put([Draft("a", b"x") for _ in range(4)])
    disk.free = RESERVE // 2
    assert refuses(engine)
    engine.policy_set("code", "a", {"retries": 0})
    engine.put([Draft("laneway.schedule.hourly", b"x")])
    engine.put([Draft("a", b"x", id="m", signal=1)])
    first, second = engine.lease(2, topics=["a"]).leases
    failed = Settlement(second.handle, second.fence, "dead", reason="no")
    assert engine.settle([Settlement(first.handle, first.fence), failed]) == ["acked", "died"]
    assert engine.dead_redrive("a") == 1
    assert engine.topic_purge("a") == 3
    disk.free = RESERVE + 10_000
    engine.put([Draft("a", b"x")])


def test_size_of_the_messages(engine: FullEngine, disk: Disk) -> None:
    """A batch that would use the reserve is refused as a whole; a small one is not."""
    disk.free = RESERVE + 100_000
    with pytest.raises(EngineUnavailable):
        engine.put([Draft("a", b"x" * 30_000), Draft("b", b"x" * 30_000)])
    engine.put([Draft("a", b"x" * 30_000)])
    assert engine.overview().waiting == 1


def test_free_pages_of_the_file_are_room(engine: FullEngine, disk: Disk) -> None:
    """The file keeps its size when it was emptied, so the disk never gets room back."""
    engine.put([Draft("a", b"x" * 100_000) for _ in range(10)])
    disk.free = RESERVE - 500_000
    assert refuses(engine)
    engine.topic_purge("a")
    engine.put([Draft("a", b"x" * 100_000)])
    assert engine.overview().waiting == 1


def test_small_disk(engine: FullEngine, disk: Disk) -> None:
    """A quarter of it is kept."""
    disk.total = 40 << 20
    disk.free = (10 << 20) + 10_000
    engine.put([Draft("a", b"x")])
    disk.free = 5 << 20
    assert refuses(engine)


FILL = """
import json, sys
from laneway import Laneway, Message
from laneway.errors import EngineUnavailable

app = Laneway(f"sqlite:///{sys.argv[1]}/q.db", durability="memory")
count = 0
try:
    while True:
        app.publish_many(Message(f"t.{n % 3}", b"x" * 9_000) for n in range(90))
        count += 90
except EngineUnavailable as error:
    reason = str(error)
purged = app.topic("t.2").purge()
app.close()

app = Laneway(f"sqlite:///{sys.argv[1]}/q.db", durability="memory")
app.policy("t.*", retries=3)
app.schedule("hourly", Message("other"), every="1h")

@app.handler("t.*")
def handle(message):
    pass

acked = app.run_worker(burst=True).acked
app.publish("t.0", b"x")
print(json.dumps([count, reason, purged, acked]))
"""


def on_a_small_disk(folder: Path, size: str, program: str) -> str:
    """What a program prints, whose argument is a folder on a disk of this size."""
    mount = f"mount -t tmpfs -o size={size} none {folder}"
    sandbox = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*sandbox, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this system lets nobody mount a small disk: {error}")
    ended = subprocess.run(
        [*sandbox, f'{mount} && exec "$0" -c "$1" {folder}', sys.executable, program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SOURCE},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_real_disk(tmp_path: Path) -> None:
    """A backlog that has filled a small disk is purged and handled; then there is room again."""
    count, reason, purged, acked = json.loads(on_a_small_disk(tmp_path, "48m", FILL))
    assert "the last 12 MiB are kept for handling what waits" in reason
    assert (purged, acked) == (count // 3, count - count // 3)


BLOCK = """
import sys
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.errors import EngineUnavailable

def open_and_close(name):
    try:
        open_engine(f"sqlite:///{sys.argv[1]}/{name}.db", Settings()).close()
    except EngineUnavailable as error:
        print(error)

def fill(left):
    with open(f"{sys.argv[1]}/other", "ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
        file.truncate(file.tell() - left)

open_and_close("old")
fill(left=128 << 10)
open_and_close("new")
fill(left=0)
open_and_close("old")
"""


def test_no_room_to_open_a_file(tmp_path: Path) -> None:
    """Both a new file and an old one name the full disk, not what failed after it."""
    new, old = on_a_small_disk(tmp_path, "2m", BLOCK).splitlines()
    assert new.startswith(f"{tmp_path}/new.db: the disk is full; nothing was changed, make room")
    assert old.startswith(f"{tmp_path}/old.db: the disk is full (")
    assert old.endswith(": make room, then try again")
