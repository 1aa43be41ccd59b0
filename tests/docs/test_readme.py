"""The README: its program, its commands, its links, its chart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench import document
from laneway.cli.main import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def commands(program: str) -> Iterator[str]:
    """The first word after `program`, wherever a console block or inline code starts with it."""
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
    for line in [
        *re.findall(r"^\$ (.*)$", blocks, re.MULTILINE),
        *re.findall(r"`([^`\n]+)`", README),
    ]:
        found = re.match(rf"{program} ([a-z-]+)", line)
        if found:
            yield found[1]


@pytest.mark.parametrize("name", sorted(set(commands("laneway")) - {"--help"}))
def test_commands_exist(name: str) -> None:
    """Each `laneway …` of the README is a command."""
    assert name in COMMANDS


@pytest.mark.parametrize("name", sorted(set(commands("make"))))
def test_targets_exist(name: str) -> None:
    """Each `make …` of the README is a target."""
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_program_and_the_commands_after_it_run(tmp_path: Path) -> None:
    """The ten lines and the console block after them run as written, with that output."""
    found = re.search(r"```python\n(.*?)```\n\n```console\n(.*?)```", README, re.DOTALL)
    assert found is not None
    program, console = found.groups()
    (tmp_path / "shop.py").write_text(program)
    for line, expected in re.findall(r"\$ ([^\n]*)\n([^$]*)", console):
        result = run_line(line, tmp_path)
        assert result.returncode == 0, result.stderr
        assert without_numbers(result.stdout) == without_numbers(expected), line


def run_line(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A line of a console block, with the Python and the command of these tests."""
    program, *arguments = line.split()
    command = [sys.executable, *(["-m", "laneway"] if program == "laneway" else []), *arguments]
    environment = {name: text for name, text in os.environ.items() if name != "LANEWAY_URL"}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def without_numbers(text: str) -> list[list[str]]:
    """The words of each line; times and rates differ from run to run."""
    return [re.sub(r"[\d.]+", "N", line).split() for line in text.splitlines()]


def test_the_benchmarks_page_and_the_chart_show_the_kept_figures() -> None:
    """docs/benchmarks.md and docs/drain.svg are what bench.document makes of bench/figures.json."""
    kept = json.loads(document.FIGURES.read_text())
    assert document.PAGE.read_text() == document.page(kept), "run python -m bench.document"
    assert document.CHART.read_text() == document.chart(kept), "run python -m bench.document"


def test_new_results_of_some_peers_leave_the_others() -> None:
    """A row that was not measured again, or failed, keeps its figures, with the day of its run."""
    machine = {"date": "2026-11-22"}
    rows = [{"": "Celery 5.7.0", "settings": "Valkey"}, {"": "RQ 3.0.0", "settings": "Valkey"}]
    old = {"bench": "peers", "command": "python -m bench.peers", "machine": machine}
    tables: list[dict[str, Any]] = [{**old, "figures": rows}]
    again = {"": "RQ 3.1.0", "1 queues/s": 200.0, "settings": "Valkey"}
    failed = {"": "Celery", "1 queues/s": "-", "settings": "Valkey; failed: not installed"}
    document.keep(tables, {**old, "machine": {"date": "2026-11-30"}, "figures": [failed, again]})
    assert tables[0]["figures"] == [again, {"date": "2026-11-22", **rows[0]}]


def test_links_are_absolute_on_a_package_index() -> None:
    """The build replaces every relative link of the README by an absolute one."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]
    text = README
    for each in settings["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "SECURITY.md",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link of a page is a file."""
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text()):
        assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"
