"""Which shards a worker visits first."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from laneway import Laneway, Message
from laneway.engines.base import WorkerFacts
from laneway.units import SECOND
from laneway.working.heartbeat import MAX_WORKERS, Locality, own_shards
from tests.seeds import seed_for
from tests.working.support import Running, until

SHARDS = 64


def owners(workers: list[str]) -> dict[int, str]:
    """The owner of each shard."""
    parts = {worker: own_shards(worker, workers, SHARDS) for worker in workers}
    found = {shard: worker for worker, part in parts.items() for shard in part}
    assert sum(map(len, parts.values())) == len(found) == SHARDS, "each shard has one owner"
    return found


def test_only_the_part_of_a_worker_moves() -> None:
    """When one comes it takes shards from all; when one goes only its shards get new owners."""
    seed = seed_for("LANEWAY_HISTORIES")
    print(f"LANEWAY_SEED={seed}")
    chance = random.Random(seed)
    workers = [f"web{n}-{chance.randrange(1 << 20):x}" for n in range(8)]
    before = owners(workers)
    after = owners([*workers, "new"])
    assert {after[shard] for shard in range(SHARDS) if after[shard] != before[shard]} <= {"new"}
    gone = chance.choice(workers)
    left = owners([worker for worker in workers if worker != gone])
    assert [shard for shard in range(SHARDS) if left[shard] != before[shard]] == [
        shard for shard in range(SHARDS) if before[shard] == gone
    ]


def test_parts_are_about_equal() -> None:
    counts = Counter(owners([f"worker-{n}" for n in range(4)]).values())
    assert all(SHARDS / 4 / 2 < count < SHARDS / 4 * 2 for count in counts.values()), counts


@pytest.fixture
def app(tmp_path: Path) -> Laneway:
    (tmp_path / "files").mkdir()
    return Laneway(f"sqlite:///{tmp_path}/files?shards=8", durability="memory")


def beat(app: Laneway, worker_id: str, *, dead_after_us: int = 600 * SECOND) -> None:
    facts = WorkerFacts(id=worker_id, pools=["default"])
    app.engine.beat(facts, dead_after_us=dead_after_us, listed_us=700 * SECOND)


def test_workers_divide_the_shards(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead one has no part; where there are too many, nobody has."""
    preferred: list[list[int]] = []
    with app:
        monkeypatch.setattr(app.engine, "prefer", lambda _, shards: preferred.append([*shards]))
        locality = Locality(app.engine, "default", "me")
        beat(app, "me")
        locality.refresh()
        locality.refresh()
        assert preferred == [list(range(8))], "an unchanged list changes nothing"
        beat(app, "other")
        locality.refresh()
        assert preferred[-1] == own_shards("me", ["me", "other"], 8)
        beat(app, "other", dead_after_us=0)
        locality.refresh()
        assert preferred[-1] == list(range(8))
        for n in range(MAX_WORKERS):
            beat(app, f"w{n}")
        locality.refresh()
        assert preferred[-1] == []


def test_a_worker_takes_what_others_do_not(app: Laneway) -> None:
    """
    Another worker is on the list and takes nothing: all messages of its shards are handled anyhow.
    """
    handled: set[int] = set()

    @app.handler("*")
    async def note(message: Message) -> None:
        handled.add(message.body)

    with app:
        beat(app, "idle")
        with Running(app, concurrency=5, heartbeat_timeout=0.5):
            until(lambda: len(app.workers()) == 2)
            for n in range(200):
                app.publish(f"t.{n % 50}", n)
            until(lambda: len(handled) == 200)
