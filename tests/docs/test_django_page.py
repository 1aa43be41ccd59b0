"""The project of docs/django.md works, typed as the page shows it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("django")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "django.md").read_text()
FILES = re.findall(r"```py\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    command
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE)
]
KEPT = ("website/settings.py",)
"""Files to which the page adds lines."""

ORDER = """
from django.test import Client
from shop.models import Order
Client(SERVER_NAME="localhost").get("/order/acme/")
print("confirmed:", [each.is_confirmed for each in Order.objects.all()])
"""
UNTIL_CONFIRMED = """
import time
from shop.models import Order
while not Order.objects.get().is_confirmed:
    time.sleep(0.05)
from shop.reports import report, request_report
asked = request_report("acme")
while True:
    try:
        if (found := report.get_result(asked)).is_finished:
            break
    except Exception as error:
        assert type(error).__name__ == "TaskResultDoesNotExist", error
    time.sleep(0.05)
print("reported:", found.return_value)
"""


def run(folder: Path, *words: str) -> str:
    """A command in the project's folder."""
    ran = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def words_of(command: str) -> list[str]:
    """The command with this interpreter."""
    words = shlex.split(command)
    if words[0] == "django-admin":
        return [sys.executable, "-m", "django", *words[1:]]
    assert words[0] == "python", command
    return [sys.executable, "-W", "error", *words[1:]]


def test_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands succeed; an order's mail is published with the order, and confirms it."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE", raising=False)
    worker = None
    for command in COMMANDS:
        if command.startswith("pip "):
            continue
        if command.endswith("laneway_worker"):
            worker = words_of(command)
            continue
        output = run(tmp_path, *words_of(command))
        if "startapp" in command:
            for name, text in FILES:
                path = tmp_path / name
                path.write_text(path.read_text() + text if name in KEPT else text)
        if command.endswith(" test"):
            assert re.search(r"Ran [2-9] tests", output), output
    assert "confirmed: [False]" in run(tmp_path, sys.executable, "manage.py", "shell", "-c", ORDER)
    assert worker is not None
    with subprocess.Popen(
        [*worker, "--log-json"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "is ready" in json.loads(line)["event"]:
                    break
            output = run(tmp_path, sys.executable, "manage.py", "shell", "-c", UNTIL_CONFIRMED)
            assert "reported: 1" in output
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
    assert process.returncode == 0
