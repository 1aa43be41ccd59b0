"""`laneway outbox`: the tables in a database of the user, and forwarding what is in them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from laneway import Laneway

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command


def test_outbox(laneway: Command, tmp_path: Path) -> None:
    """It creates the tables, shows what waits, and forwards it."""
    path = tmp_path / "user.db"
    url = f"sqlite:///{path}"
    assert "cannot be used" in laneway("outbox", "status", url, code=3).output  # no such file
    with closing(sqlite3.connect(path)) as connection:
        assert "outbox create" in laneway("outbox", "status", url, code=2).output
        laneway("outbox", "create", url)
        with Laneway(laneway.url) as app:
            app.publish("a", 1, connection=connection)
        connection.commit()
        assert laneway.json("outbox", "status", url)["waiting"] == 1
        assert "1 message waiting" in laneway("outbox", "status", url).stdout
        assert "nothing waits" in laneway("outbox", "forward", url, "--drain").stdout
        assert laneway.json("outbox", "status", url)["waiting"] == 0
    with Laneway(laneway.url) as app:
        assert [each.body for each in app.lease(9)] == [1]
