"""`laneway doctor` names what is wrong with a server before anything is created on it."""

from __future__ import annotations

import psycopg
import pytest

from laneway.engines import check_server, open_engine
from laneway.engines.base import Settings
from laneway.engines.postgres import server_check
from laneway.errors import NoNamespace
from laneway.testing.postgres_server import PostgresServer


def test_a_fit_server(server: PostgresServer) -> None:
    """All is well, and nothing is created."""
    checks = {check.name: check for check in check_server(server.url)}
    assert [check for check in checks.values() if not check.ok] == []
    assert {check.name for check in checks.values() if check.advice} == {'durability "replicated"'}
    assert checks["server"].detail.startswith("PostgreSQL ")
    assert not checks['durability "replicated"'].available
    with pytest.raises(NoNamespace):
        open_engine(server.url, Settings(create=False))
    assert not server.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'laneway%'")


def test_an_old_transaction_and_a_user_without_rights(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that keeps it open is named."""
    server.execute("CREATE ROLE reader LOGIN")
    monkeypatch.setattr(server_check, "OLD_MINUTES", 0)
    with psycopg.connect(server.url.replace("postgres@", "reader@")) as connection:
        connection.execute("SELECT 1")
        pid = connection.info.backend_pid
        checks = check_server(server.url.replace("postgres@", "reader@"))
    found = {check.name: check for check in checks}
    assert f"process {pid} " in found["open transactions"].detail
    assert not found["rights"].available


def test_a_server_that_is_away() -> None:
    """The one check says so."""
    (check,) = check_server("postgresql://postgres@127.0.0.1:9/postgres")
    assert not check.ok
    assert "no connection" in check.detail
