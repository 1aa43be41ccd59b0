"""The fixtures of the entry point for pytest."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import sys

IMPORTED = "laneway" in sys.modules


def test_nothing_is_imported_before():
    assert not IMPORTED


def test_fixtures(laneway_app, laneway_world, laneway_eager):
    seen = []

    @laneway_app.task(topic="mail.{customer}")
    def mail(customer: str) -> None:
        seen.append(customer)

    world = laneway_world(laneway_app)
    mail.using(delay="7d").enqueue("acme")
    world.run_all(within="8d")
    laneway_eager(laneway_app)
    mail.delay("bolt")
    assert seen == ["acme", "bolt"]
"""


def test_fixtures_without_a_conftest(tmp_path: Path) -> None:
    """They are there by name, and cost nothing until a test asks for one."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (module,) = points["pytest11"].values()
    (tmp_path / "test_shop.py").write_text(TESTS)
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", module]
    ran = subprocess.run(
        [sys.executable, *command, "test_shop.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # or an installed one would be there twice
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout
