"""`laneway migrate`, what it refuses. tests/valkey/test_migrate.py moves everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from laneway.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("{}/a.db", "{}/a.db"),
        ("{}/a.db", "{}/x/../a.db"),
        ("{}/a.db", "{}/link/a.db"),
        ("{}/q?shards=2", "{}/q"),
    ],
)
def test_a_store_is_not_moved_to_itself(tmp_path: Path, source: str, target: str) -> None:
    """Its messages would be moved again and again, without an end."""
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    old, new = (f"sqlite:///{url.format(tmp_path)}" for url in (source, target))
    run("--url", old, "publish", "t", "1", "--id", "one")
    refusal = run("migrate", old, new, code=2)
    assert refusal.startswith(f"laneway: migrate: {new} is the same namespace")
    assert "one" in run("--url", old, "peek", "t")


def test_another_namespace_of_the_same_file_is_no_such_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    run("--url", url, "publish", "t", "1")
    assert "1 message, " in run("migrate", url, url, "--to-namespace", "other")
