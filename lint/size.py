"""
`python lint/size.py`: check the size of the code against lint/size.toml; `--lower` lowers that.

Counted are statements of Python by package (by `ast`, docstrings included), lines of Lua and SQL,
functions and files that are too long, and complex functions by rule of ruff. No number may grow.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/laneway"
BUDGET = ROOT / "lint/size.toml"

MOST_STATEMENTS = 50
"""Statements of a function of Python."""

MOST_LUA_LINES = 40
"""Lines of a function of Lua."""

MOST_FILE_LINES = 800

RULES = "C901,PLR0911,PLR0912,PLR0913,PLR0915"
LUA_FUNCTION = re.compile(r"^(\s*)(?:local )?(?:function\b|.*= function\()")


def measured() -> dict[str, dict[str, int]]:
    """All numbers, by table and name."""
    statements: Counter[str] = Counter()
    long: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        statements[_package(path)] += _statements(tree)
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        long["python_functions"] += sum(
            isinstance(node, functions) and _statements(node) - 1 > MOST_STATEMENTS
            for node in ast.walk(tree)
        )
    texts = {
        kind: [path.read_text() for path in SOURCE.rglob(f"*.{kind}")]
        for kind in ("py", "lua", "sql")
    }
    long["lua_functions"] = sum(
        lines > MOST_LUA_LINES for text in texts["lua"] for lines in _lua_functions(text)
    )
    long["files"] = sum(
        text.count("\n") > MOST_FILE_LINES for files in texts.values() for text in files
    )
    lines = {kind: sum(text.count("\n") for text in texts[kind]) for kind in ("lua", "sql")}
    return {
        "statements": dict(sorted(statements.items())),
        "lines": lines,
        "long": dict(long),
        "complex": _complex(),
    }


def _package(path: Path) -> str:
    """The package that a file counts for; `contrib` and `engines` are counted by part."""
    parts = path.relative_to(SOURCE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] in (("contrib",), ("engines",)) else 1]) or "laneway"


def _statements(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree))


def _lua_functions(text: str) -> Iterator[int]:
    """The lines of each function: up to the `end` with the indentation of its first line."""
    lines = text.split("\n")
    for first, line in enumerate(lines):
        found = LUA_FUNCTION.match(line)
        if found is None:
            continue
        for last in range(first, len(lines)):
            if re.match(rf"{found[1]}end\b", lines[last]):
                yield last - first + 1
                break


def _complex() -> dict[str, int]:
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--select",
        RULES,
        "--output-format",
        "json",
    ]
    ran = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
    counts = Counter(found["code"] for found in json.loads(ran.stdout))
    return {rule: counts[rule] for rule in RULES.split(",")}


def lowered(text: str, numbers: dict[str, dict[str, int]]) -> str:
    """The budget with these numbers where they are lower; its comments stay."""
    table, lines = "", []
    for line in text.split("\n"):
        if line.startswith("["):
            table = line.strip("[]")
        entry = re.match(r'"([\w/]+)" = (\d+)(.*)', line)
        if entry is None:
            lines.append(line)
            continue
        number = min(int(entry[2]), numbers[table].get(entry[1], 0))
        lines.append(f'"{entry[1]}" = {number}{entry[3]}')
    return "\n".join(lines)


def main() -> int:
    text = BUDGET.read_text()
    budget, numbers = tomllib.loads(text), measured()
    above = [
        f"{table} of {name}: {number}, and lint/size.toml allows {most}"
        for table, values in numbers.items()
        for name, number in values.items()
        if number > (most := budget.get(table, {}).get(name, 0))
    ]
    if above:
        print(*above, sep="\n")
        print(
            "Take something away, or raise the number with a comment that names the new behavior."
        )
    elif "--lower" in sys.argv:
        BUDGET.write_text(lowered(text, numbers))
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
