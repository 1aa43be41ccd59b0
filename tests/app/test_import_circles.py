"""No module imports itself through others, whether for types or inside a function."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import laneway

ROOT = Path(laneway.__file__).parent

ALLOWED = {
    "laneway.compat.celery.application",
    "laneway.compat.celery.control",
    "laneway.compat.celery.current",
    "laneway.compat.celery.results",
    "laneway.compat.celery.task",
}
"""Celery's own objects know each other; these do, too."""


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = ["laneway", *path.relative_to(ROOT).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules that a file imports anywhere in its text."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                member = f"{node.module}.{alias.name}"
                names.add(member if member in known else node.module)
    return names & known.keys()


def test_there_is_no_circle_but_celerys() -> None:
    known = modules()
    graph = {name: imports(path, known) for name, path in known.items()}
    for name in ALLOWED:
        assert graph[name] & ALLOWED, "it is in no circle: remove it here"
        graph[name] -= ALLOWED
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_a_circle_is_found(tmp_path: Path) -> None:
    """An import for types inside a function counts."""
    path = tmp_path / "a.py"
    path.write_text("def f():\n    if TYPE_CHECKING:\n        from laneway import app\n")
    assert imports(path, modules()) == {"laneway.app"}
