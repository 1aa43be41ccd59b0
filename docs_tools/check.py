"""
Check the pages: `python -m docs_tools.check`.

Every relative link leads to a file of the repository and, if it has an anchor, to a heading of it.
Every page stands in the navigation of `zensical.toml`, and nothing else does. A line of prose has
at most 100 characters.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
WIDTH = 100
OTHERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LINK = re.compile(r"!?\[(?:[^\]\[`]|`[^`]*`|\[[^\]]*\])*\]\(([^)\s]+)\)")
REPOSITORY = re.compile(r"https://github\.com/[\w.-]+/laneway/blob/main/(.+)")
"""A link of the README that has to work on a package index too."""


def pages() -> list[Path]:
    """All pages that are checked."""
    others = [ROOT / name for name in OTHERS if (ROOT / name).exists()]
    return [*others, *sorted(DOCS.rglob("*.md"))]


def without_code(text: str) -> str:
    """The text with blocks of code emptied, so that line numbers stay."""
    return re.sub(
        r"^([ ]*)(```+).*?^\1\2[ ]*$",
        lambda found: "\n" * found[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def anchors(text: str) -> set[str]:
    """
    The anchors of a page's headings, where a repository's page and the site agree on them.

    A repository's page makes a hyphen of each space, the site one of several.
    """
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", without_code(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        plain = re.sub(r"[^\w\s-]", "", plain.lower()).strip()
        if re.search(r"\s{2}|\s-|-\s", plain) is None:
            found.add(re.sub(r"\s", "-", plain))
    return found


def faults(path: Path) -> Iterator[str]:
    """What is wrong with a page's links and lines."""
    text = path.read_text()
    name = path.relative_to(ROOT)
    for number, line in enumerate(without_code(text).splitlines(), 1):
        for link in LINK.findall(re.sub(r"``.*?``", "", line)):
            fault = broken(path, link)
            if fault:
                yield f"{name}:{number}: {fault}"
        if DOCS in path.parents and re.match(r" {1,3}([-*]|\d+\.) ", line):
            yield f"{name}:{number}: indent what is inside a list by 4 spaces, for the site"
        if too_long(line) and name != Path("CHANGELOG.md"):
            yield f"{name}:{number}: {len(line)} characters, at most {WIDTH} are allowed"


def too_long(line: str) -> bool:
    """Tables cannot be wrapped, and an address is not counted."""
    return len(re.sub(r"\]\(https?:[^)]*\)", "]()", line)) > WIDTH and not line.startswith("|")


def broken(path: Path, link: str) -> str | None:
    """The reason why a link leads nowhere, or None if it leads somewhere."""
    inside = REPOSITORY.fullmatch(link)
    if inside:
        path, link = ROOT / "README.md", inside[1]
    elif re.match(r"[a-z]+:", link):
        return None
    file, _, anchor = link.partition("#")
    target = (path.parent / file).resolve() if file else path
    if not target.exists():
        return f"{link}: there is no such file"
    if anchor and (target.suffix != ".md" or anchor not in anchors(target.read_text())):
        return f"{link}: there is no such heading"
    return None


def named(entries: list[Any]) -> Iterator[str]:
    """The pages of a navigation."""
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(value, list):
                yield from named(value)
            elif not value.startswith("https:"):
                yield value


def navigation_faults() -> Iterator[str]:
    """Pages that the navigation lacks, or names although they are not there."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text())
    there = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    listed = set(named(config["project"]["nav"]))
    for name in sorted(there - listed):
        yield f"zensical.toml: nav: {name} is missing"
    for name in sorted(listed - there):
        yield f"zensical.toml: nav: {name} does not exist"


def run() -> int:
    found = [*navigation_faults(), *(fault for path in pages() for fault in faults(path))]
    for fault in found:
        print(fault)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(run())
