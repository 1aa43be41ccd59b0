"""
A database that was damaged while nobody looked: each call says which file, none does as if nothing
were wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from laneway import EngineCorrupt, Laneway, Message

PAGE = 4096


def overwrite_the_middle(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.seek(3 * PAGE)
        opened.write(b"\xff" * (file.stat().st_size // 2))


def cut_it_off(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [overwrite_the_middle, cut_it_off])
@pytest.mark.parametrize(
    "call",
    [lambda app: app.publish("a"), lambda app: app.lease(), lambda app: app.run_worker(burst=True)],
    ids=["publish", "lease", "run_worker"],
)
def test_damaged_file_is_reported(
    tmp_path: Path, damage: Callable[[Path], None], call: Callable[[Laneway], object]
) -> None:
    """At the next call; a worker ends instead of trying for ever."""
    file = tmp_path / "kept.db"
    with Laneway(f"sqlite:///{file}") as app:
        app.publish_many(Message("a", "x" * 500) for _ in range(1_000))
    damage(file)
    with Laneway(f"sqlite:///{file}") as app:
        app.handler("a")(print)
        with pytest.raises(EngineCorrupt, match=r"kept\.db.*damaged"):
            call(app)
