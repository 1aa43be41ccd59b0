"""What SQLite keeps about a message goes with the message."""

import sqlite3
from contextlib import closing
from pathlib import Path

from laneway.engines import open_engine
from laneway.engines.base import SIGNALS_HEADER, Settings
from laneway.message import Draft, Settlement


def test_the_history_of_a_redriven_message(tmp_path: Path) -> None:
    """An operator's death is written down before any delivery, and forgotten with the message."""
    path = tmp_path / "a.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.put([Draft("a", b"1", id="x"), Draft("a", b"2", id="y")])
        for message_id in ("x", "y"):
            engine.message_move(message_id, "a", to="dead")
        assert engine.dead_redrive("a") == 2
        (_, second) = leases = engine.lease(2).leases
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases[:1]])
        engine.settle([Settlement(second.handle, second.fence, "dead")])
        assert engine.dead_drop("a") == 1
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM note").fetchall() == []


def test_signals_of_a_redriven_message(tmp_path: Path) -> None:
    """A message that an operator ended while it waited for signals waits for none afterward."""
    path = tmp_path / "a.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.put([Draft("a", b"1", id="x", headers={SIGNALS_HEADER: "2"})])
        engine.put([Draft("a", b"s", id="x", signal=1)])
        engine.message_move("x", "a", to="dead")
        assert engine.dead_redrive("a") == 1
        (lease,) = engine.lease(1).leases
        assert engine.settle([Settlement(lease.handle, lease.fence)]) == ["acked"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM came").fetchall() == []
