"""The generated pages of the reference, and the check of links, do what they promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import laneway
from docs_tools import api, check, generate
from laneway import errors, policy
from laneway.cli.main import COMMANDS

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("field", policy.FIELDS)
def test_each_policy_field_has_a_row(field: str) -> None:
    """The table has each field with its values, its default and its meaning."""
    row = re.search(
        rf"^\| `{field}` \| (.+) \| (.+) \| (.+) \|$", generate.policy_page(), re.MULTILINE
    )
    assert row is not None


def test_fields_that_need_others_say_so() -> None:
    """A field that the table calls dependent is refused alone."""
    examples: dict[str, Any] = {
        "burst": 2,
        "debounce": True,
        "edge": "leading",
        "gate": "stripe",
        "max_wait": "1m",
        "merge_limit": 5,
        "window": "1s",
    }
    assert examples.keys() == generate.BETWEEN.keys()
    for field, value in examples.items():
        app = laneway.Laneway("sqlite://", program="docs")
        app.policy("push.*", **{field: value})
        with pytest.raises(errors.BadPolicy):
            _ = app.engine


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_a_section(command: str) -> None:
    """Each command has a heading of its own, with its usage."""
    assert f"\n## laneway {command}\n\n```text\nlaneway {command} " in generate.cli_page()


def test_each_public_name_is_in_the_reference() -> None:
    """Public names have a heading in a page of the API or in the page of errors."""
    pages = [make() for make in api.pages("").values()]
    headings = re.findall(r"^## (\w+)$", "\n".join([*pages, generate.errors_page()]), re.MULTILINE)
    assert set(laneway.__all__) <= set(headings)


def test_an_argument_has_a_row_with_its_meaning() -> None:
    """What a docstring explains as "`name`: text" is in the table, and only there."""
    page = api.pages("")["api-application.md"]()
    section = page[page.index("#### app.publish\n") : page.index("#### app.publish_many\n")]
    assert "| `connection` | `Any` | `None` | Publish in the transaction of" in section
    assert section.count("transaction of this connection") == 1
    assert "Async: `apublish`." in section


def test_no_page_leaves_its_text_to_a_tool() -> None:
    """A page is complete as it is read in the repository."""
    assert [page.name for page in DOCS.rglob("*.md") if "\n::: " in page.read_text()] == []


def test_each_argument_has_a_meaning() -> None:
    """In the pages of the Python API, no row of a table is without text."""
    for page in (DOCS / "reference").glob("api*.md"):
        for line in page.read_text().splitlines():
            assert not re.fullmatch(r"\| `.*\|\s*\|", line), (page.name, line)


def test_a_role_of_an_engine_has_tables() -> None:
    """A method of a protocol has a table, and `FullEngine` refers to its roles instead."""
    page = api.pages("")["api-engines.md"]()
    section = page[page.index("#### queue.extend\n") : page.index("#### queue.tick\n")]
    assert "| `by_us` | `int` |  | How long, in microseconds from now. |" in section
    assert "Arguments:" not in section
    assert "members of [`Queue`](#queue)," in page
    assert "full_engine.put" not in page


def test_errors_are_sentences_that_can_be_searched() -> None:
    """A message is in the page of errors with the names of its values."""
    assert "| `message to <topic>: delay and at contradict each other" in generate.errors_page()


def test_log_lines_name_their_values() -> None:
    """A log line's page shows the names of values instead of format characters."""
    page = generate.logs_page()
    assert "<topic>" in page
    assert re.search(r"%[sdr]", page) is None


def test_store_metrics_are_there() -> None:
    """Both sources of metrics are in the page."""
    page = generate.metrics_page()
    assert "`laneway_handled_total`" in page
    assert "`laneway_pattern_waiting`" in page


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A b\n\n[here](#a-b)\n", []),
        ("# A\n\n[there](#b)\n", ["#b: there is no such heading"]),
        ("[page](none.md)\n", ["none.md: there is no such file"]),
        ("```text\n[page](none.md)\n```\n", []),
        ("| [page](none.md) |\n", ["none.md: there is no such file"]),
        (f"{'word ' * 30}\n", ["150 characters, at most 100 are allowed"]),
        (f"| {'word ' * 30} |\n", []),
        ("1. A\n   - b\n", ["indent what is inside a list by 4 spaces, for the site"]),
        ("1. A\n    - b\n", []),
    ],
)
def test_faults_of_a_page_are_found(
    text: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken links, broken anchors and long lines are reported, except inside of code."""
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text(text)
    found = [fault.split(": ", 1)[1] for fault in check.faults(tmp_path / "page.md")]
    assert found == expected
