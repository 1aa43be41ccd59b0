"""Which changes in the folders of a program count as changes of its code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from laneway.working.source_files import as_at_start, source_states, states_of


@pytest.mark.parametrize("name", ["orders.db", "orders.db-wal", ".#shop.py", "shop.py~"])
def test_other_files_of_a_folder_are_no_change(tmp_path: Path, name: str) -> None:
    """A store that lies beside the program must not start it again."""
    before = states_of([str(tmp_path)])
    (tmp_path / name).write_text("")
    assert states_of([str(tmp_path)]) == before


def test_folders_of_caches_and_hidden_ones_are_no_change(tmp_path: Path) -> None:
    before = states_of([str(tmp_path)])
    for name in ("__pycache__", ".git", "orders.backup"):
        (tmp_path / name).mkdir()
    assert states_of([str(tmp_path)]) == before


def test_modules_and_packages_that_come_and_go_are_a_change(tmp_path: Path) -> None:
    folder = str(tmp_path)
    states = [states_of([folder])]
    (tmp_path / "shop.py").write_text("")
    states.append(states_of([folder]))
    (tmp_path / "orders").mkdir()
    states.append(states_of([folder]))
    (tmp_path / "shop.py").rename(tmp_path / "store.py")
    states.append(states_of([folder]))
    (tmp_path / "store.py").unlink()
    states.append(states_of([folder]))
    assert len({state[folder] for state in states}) == 5


def test_a_file_is_as_old_as_its_text(tmp_path: Path) -> None:
    """It is found with its folder; what is not there is left out."""
    path = tmp_path / "shop.py"
    path.write_text("")
    os.utime(path, (100, 100))
    states = source_states([str(path)])
    assert states[str(path)] == 100
    assert str(tmp_path) in states
    assert as_at_start(states, 50)[str(path)] == 50
    assert as_at_start(states, 150) == states | {
        name: 150 for name, state in states.items() if state > 150 and name.endswith(".py")
    }
    assert states_of([str(tmp_path / "missing.py")]) == {}
