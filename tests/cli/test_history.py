"""`laneway history`, `laneway top --history` and `laneway topics --order repeats`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from laneway.cli.history import outlook
from laneway.history.figures import History, WaitingTimes

if TYPE_CHECKING:
    from tests.cli.conftest import Command


@pytest.fixture
def filled(laneway: Command) -> Command:
    laneway("policy", "set", "push.*", "--max-backlog", "100")
    laneway("publish", "push.acme", "--lines", stdin="1\n" * 50)
    laneway("publish", "mail", "1")
    return laneway


def test_tables_and_json_have_the_same_figures(filled: Command) -> None:
    text = filled("history").stdout
    assert "published" in text
    assert "waiting 51" in text
    grown = "the backlog has grown by 51.0/s in the last minute; it does not drain"
    assert re.sub(r"by [\d.,]+/s", "by 51.0/s", text).count(grown) == 1
    assert "does not drain · push.acme (100 messages) is full in" in text
    by_pattern = filled("history", "--by", "pattern").stdout
    assert "push.*" in by_pattern
    assert "nothing was delivered" in filled("history", "--by", "waits").stdout
    found = filled.json("history", "push.*", "--last", "10m")
    assert found["waiting"] == 50
    assert sum(row["published"] for row in found["rows"]) == 50
    assert found["alarms"] == []


def test_a_backlog_that_stays_the_same_does_not_grow() -> None:
    """Nothing "grows by 0.0/s"."""
    none = WaitingTimes([], [0])
    same = History(now=0, step=10, rows=[], parts=[], waiting=5, noisy=none, others=none)
    assert outlook(same)[1] == "the backlog has not fallen in the last minute; it does not drain"


def test_the_exit_code_says_that_an_alarm_is_active(filled: Command) -> None:
    """For scripts and monitoring: 1 while a limit is passed, with a sentence for each."""
    assert (
        "51 messages wait (alarm over 50)"
        in filled("history", "--waiting-over", "50", code=1).stdout
    )
    filled("history", "--waiting-over", "51")
    assert "does not drain" in filled("history", "push.*", "--drain-over", "1h", code=1).stdout
    filled("history", "--oldest-over", "1h")
    found = filled.json("history", "--full-within", "60d", code=1)
    assert len(found["alarms"]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--last", "abc"], "last"),
        (["--tier", "gold"], "gold"),
        (["nope.*"], "nope.*"),
        (["--drain-over", "soon"], "--drain-over"),
    ],
)
def test_wrong_options_are_one_line(filled: Command, arguments: list[str], expected: str) -> None:
    result = filled("history", *arguments, code=2)
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1


def test_top_shows_it_on_request(filled: Command) -> None:
    assert "last hour" not in filled("top", "--every", "0.1").stdout
    text = filled("top", "--every", "0.1", "--history").stdout
    assert "last hour" in text
    assert "push.*" in text
    found = filled.json("top", "--every", "0.1", "--history")
    assert found["history"]["waiting"] == 51


def test_topics_by_repeats(filled: Command) -> None:
    text = filled("topics", "--order", "repeats").stdout
    assert "merge would save" in text
    assert "98%" in text
    assert "mail" not in text
