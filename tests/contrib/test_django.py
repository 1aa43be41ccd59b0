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


def test_the_project(tmp_path: Path) -> None:
    """Settings, tasks, transactions and workers; see django_shop/cases.py."""
    ran = subprocess.run(
        [sys.executable, *WARNINGS, "-m", "django", "test", "--noinput", *CASES],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "DJANGO_SETTINGS_MODULE": PROJECT + ".settings",
            "SHOP_FOLDER": str(tmp_path),
            "SHOP_QUEUE": f"sqlite:///{tmp_path}/queue.db",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"Ran \d\d tests", ran.stderr), ran.stderr
