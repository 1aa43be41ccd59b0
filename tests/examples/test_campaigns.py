"""The campaign sender: 10,000 campaigns, shares 6 : 3 : 1, changed while mails are sent."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.campaigns.campaigns import class_of, fill, open_app
from laneway import Laneway
from laneway.cli import main as cli
from laneway.testing.servers import until

ROOT = Path(__file__).parents[2]

CAMPAIGNS, FIRST = 10_000, 4_000
"""All, and those that are there before the change: each class has enough for the first shares."""

WINDOW = 1_500
"""Mails of which the shares are measured."""

BEGUN = 500
"""Mails that the senders may have leased before a change."""


def shares(sent: list[str]) -> dict[str, float]:
    counts = Counter(line.split(".")[1] for line in sent)
    return {tier: counts[tier] / len(sent) for tier in ("high", "mid", "low")}


def command_line(app: Laneway, *arguments: str) -> None:
    found = CliRunner().invoke(cli, ["--url", app.url, *arguments])
    assert found.exit_code == 0, found.output


def test_shares_of_ten_thousand_campaigns_change_while_they_run(tmp_path: Path) -> None:
    """Each class has its share from the first mails on, and its new one after the change."""
    assert fill(tmp_path, FIRST, 1) == FIRST
    assert fill(tmp_path, 10, 1) == 0  # published again, sent once
    log = tmp_path / "sent.log"

    def sent() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    command = [sys.executable, "-m", "examples.campaigns.campaigns", "send", str(tmp_path)]
    sender = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        with open_app(tmp_path) as app:
            until(lambda: len(sent()) >= WINDOW, "the first mails", 60)
            command_line(app, "pause", "mail.*")  # a sender is faster than a test that has to wait
            for tier, share in (("high", "1"), ("low", "6")):
                command_line(app, "tier", "set", tier, share)
            assert fill(tmp_path, CAMPAIGNS, 1) == CAMPAIGNS - FIRST
            changed = len(sent())
            command_line(app, "resume", "mail.*")
            until(lambda: len(sent()) >= changed + BEGUN + WINDOW, "mails after the change", 60)
            app.topic("mail.low.8").pause()
            history = app.history.read("mail.*")
            assert {part.tier for part in history.parts} == {"high", "mid", "low"}
            assert sum(part.published for part in history.parts) == CAMPAIGNS
            app.topic("mail.low.8").resume()
            until(lambda: len(sent()) >= CAMPAIGNS, "all mails", 120)
    finally:
        sender.kill()
        sender.wait()
    lines = sent()
    assert len(set(lines)) == len(lines) == CAMPAIGNS
    before = shares(lines[:WINDOW])
    assert before == pytest.approx({"high": 0.6, "mid": 0.3, "low": 0.1}, abs=0.03)
    first = changed + BEGUN
    after = shares(lines[first : first + WINDOW])
    assert after == pytest.approx({"high": 0.1, "mid": 0.3, "low": 0.6}, abs=0.03)


def test_classes_of_campaigns() -> None:
    assert Counter(map(class_of, range(10))) == {"high": 3, "mid": 3, "low": 4}
