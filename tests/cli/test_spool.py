"""`laneway spool`: what a producer's file holds, and forwarding it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from laneway import Laneway, Spool
from laneway.cli import main, spool as spool_command

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

AWAY = "valkey://127.0.0.1:1"


@pytest.fixture
def spool(tmp_path: Path) -> str:
    """A spool with three messages, left by a program whose store was away."""
    path = tmp_path / "spool.db"
    with Laneway(AWAY, spool=Spool(path, exit_timeout=0)) as app:
        app.publish("a", 1)
        app.publish("a", "x" * 2_000_000)
        app.publish("b", 2)
    return os.fspath(path)


def test_status(laneway: Command, spool: str) -> None:
    """It says what waits, and opens no store."""
    held = laneway.json("spool", "status", spool)
    assert (held["waiting"], held["bytes"], held["rejected"]) == (3, 2_000_004, 0)
    assert (held["namespace"], held["store"], held["forwarder"]) == ("default", AWAY, None)
    printed = laneway("spool", "status", spool).stdout
    assert f"3 messages with 2,000,004 bytes waiting for {AWAY}" in printed
    assert "none runs" in printed


def test_drain(laneway: Command, spool: str) -> None:
    """It forwards everything; a refused message is named, and the exit code is 1."""
    laneway("policy", "set", "a", "--rate", "5/s")  # the store exists
    assert "raise max_body" in laneway("spool", "drain", spool, code=1).output
    with Laneway(laneway.url) as app:
        assert sorted(each.body for each in app.lease(9)) == [1, 2]
    assert "is empty" in laneway("spool", "drain", spool).stdout
    assert "raise max_body" in laneway("spool", "status", spool).stdout


def test_drain_to_a_full_store(
    laneway: Command, spool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are left at the timeout are counted, and the exit code is 1."""
    read = spool_command.read

    def clock() -> float:
        """The timeout is over as soon as everything that can be forwarded is."""
        return 1000.0 if read(spool).waiting == 1 else 0.0

    monkeypatch.setattr(spool_command, "time", SimpleNamespace(monotonic=clock))
    laneway("policy", "set", "b", "--max-backlog", "1")
    laneway("publish", "b", "0")
    assert "1 message left" in laneway("spool", "drain", spool, "--timeout", "900s", code=1).output


def test_drain_without_a_store(spool: str, tmp_path: Path) -> None:
    """The producer's store is away, the spool's password is missing, or there is no spool."""
    result = CliRunner().invoke(main, ["spool", "drain", spool])
    assert (result.exit_code, AWAY.removeprefix("valkey://") in result.output) == (3, True)
    secret = tmp_path / "secret.db"
    with Laneway("valkey://:word@127.0.0.1:1", spool=Spool(secret, exit_timeout=0)) as app:
        app.publish("a", 1)
    result = CliRunner().invoke(main, ["spool", "drain", os.fspath(secret)])
    assert result.exit_code == 2
    assert "--url" in result.output
    assert "word@" not in result.output
    result = CliRunner().invoke(main, ["spool", "status", os.fspath(tmp_path / "none")])
    assert (result.exit_code, "there is no such file" in result.output) == (2, True)
