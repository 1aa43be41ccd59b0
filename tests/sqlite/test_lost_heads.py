"""A serial key whose head was lost from the file."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_700_000_000_000_000


def test_a_key_whose_head_was_lost_gets_another(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db"
    with closing(open_engine(url, Settings(durability="memory"))) as engine:
        engine.policy_set("code", "t.*", {"serial": "hold"}, now_us=NOW)
        engine.put([Draft("t.1", b"lost", "a"), Draft("t.1", b"x")], now_us=NOW)
        with closing(sqlite3.connect(tmp_path / "q.db")) as connection, connection:
            connection.execute("DELETE FROM message WHERE body = x'6c6f7374'")
            connection.execute("DELETE FROM ready WHERE mid NOT IN (SELECT mid FROM message)")
        engine.put([Draft("t.1", b"1", "a"), Draft("t.1", b"2", "a")], now_us=NOW)
        leases = engine.lease(10, now_us=NOW).leases
        assert [lease.body for lease in leases] == [b"x", b"1"]
