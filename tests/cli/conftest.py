"""The command on a store of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from laneway.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result


class Command:
    """`laneway` with its `--url` filled in."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, code: int = 0, stdin: str | bytes | None = None) -> Result:
        """Run it and insist on the exit code."""
        result = CliRunner().invoke(main, ["--url", self.url, *arguments], input=stdin)
        assert result.exit_code == code, (
            f"{arguments}: exit code {result.exit_code}: {result.output}"
        )
        return result

    def json(self, *arguments: str, code: int = 0, stdin: str | None = None) -> Any:
        """What it prints with `--json`."""
        return json.loads(self(*arguments, "--json", code=code, stdin=stdin).stdout)


@pytest.fixture
def laneway(tmp_path: Path) -> Command:
    return Command(f"sqlite:///{tmp_path}/laneway.db")
