"""Laneway in a Django project: its own tests, run by Django's test runner in a fresh process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("django")

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "tests.contrib.django_shop"
WARNINGS = ("-W", "error", "-W", "ignore:Binding:DeprecationWarning")  # as in pyproject.toml
CASES = [f"{PROJECT}.{path.stem}" for path in Path(__file__).parent.glob("django_shop/cases*.py")]


def run(tmp_path: Path, *cases: str, **environ: str) -> str:
    """Run tests of the project; returns what the runner prints."""
    ran = subprocess.run(
        [sys.executable, *WARNINGS, "-m", "django", "test", "--noinput", *cases],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "DJANGO_SETTINGS_MODULE": PROJECT + ".settings",
            "SHOP_FOLDER": str(tmp_path),
            "SHOP_QUEUE": f"sqlite:///{tmp_path}/queue.db",
            **environ,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stderr


def test_the_project(tmp_path: Path) -> None:
    """Settings, tasks, transactions and workers; see django_shop/cases.py."""
    printed = run(tmp_path, *CASES)
    assert re.search(r"Ran \d\d tests", printed), printed


def test_a_project_without_migrations(tmp_path: Path) -> None:
    """As with `pytest --nomigrations`: the tables of the outbox exist, too."""
    case = f"{PROJECT}.cases.Tasks.test_commands_of_databases"
    assert "Ran 1 test" in run(tmp_path, case, SHOP_HAS_NO_MIGRATIONS="1")
