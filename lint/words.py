"""
`python lint/words.py`: count unidiomatic English against lint/words.toml; `--lower` lowers that.

Each count is of one phrase in one part of the project. No count may grow. `--list PART` prints
the phrases of a part with their files.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "lint/words.toml"
THEMSELVES = ("lint/words.py", "tests/docs/test_words.py")

# What to write instead, and the pattern that it replaces, of lower-case letters.
PHRASES = {
    "even, too": r"also (?:if|when|where|while|after|of|for|at|by|to|with|without|those)\b"
    r"|also(?=[.;)])",
    "alone, separately, automatically, on its own": r"by (?:itself|themselves)\b",
    "that many, that long": r"so (?:many|long|much|often)\b(?! as)",
    "compared with, along with, during": r"beside\b",
    "immediately, concurrently": r"at once\b",
    "the maximum, the minimum": r"the (?:most|fewest|least) (?!recent|common|important|specific)",
    "can handle, accepts": r"(?:bears?|bearable|borne)\b",
    "shows, lists, names, reports, explains": r"says\b",
    "For …, …": r"(?:(?<=\. )|(?<=\"\"\")|(?<=\"\"\" ))"
    r"of (?:a|an|the|each|all|its|these|those|any)\b",
    "exists, is available": r"(?:is|are|was|were|be) there\b|there (?:is|are) none\b",
    "… or None if …": r"(?<=[;.,] )none: ",
    "continues, is blocked, is delivered again, uses": r"(?:goes|going|went) (?:on|through)\b"
    r"|go (?:on|through)\b|(?:stands?|stood) still\b|(?:comes|came|come) back\b",
    "dead letters": r"(?<!dead[ -])(?<!\")\bletters\b(?!,? (?:and |or )?digits)",
    "third-party, other users'": r"others'|of others\b",
    "(no word)": r"(?<=\. )(?:so|thus|therefore|hence),? (?!that|far)",
    "last answer": r"it said\b|sa(?:ys|id) (?:it )?of (?:it|them)\b",
    "(two sentences)": r"which is why\b|(?:from|of) which\b",
    "its state": r"how (?:it|they|a \w+|the \w+) (?:is|are|stands?)\b",
    "American spelling": r"(?:towards|afterwards|backwards|upwards|downwards|for ever"
    r"|labell\w+|modell\w+|travell\w+|signall\w+|fulfils?|programmes?|licences?|defences?"
    r"|analys(?:e|es|ed)|metres?|artefacts?)\b",
}
ANY = re.compile(rf"(?<![\w{{])(?:{'|'.join(f'({phrase})' for phrase in PHRASES.values())})")

# Strings and comments of Python. Docstrings are in triple quotes and begin a line.
PYTHON = re.compile(
    r'(?P<comment>\#[^\n]*|(?<=\n)\ *r?"""(?:[^\\]|\\.)*?"""|\Ar?"""(?:[^\\]|\\.)*?""")'
    r"|\"\"\"(?:[^\\]|\\.)*?\"\"\"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'",
    re.DOTALL,
)
COMMENT = re.compile(r"--[^\n]*")
CODE = re.compile(r"^ *(`{3,}).*?^ *\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
TEMPLATE = re.compile(r"\{[{%#].*?[}%#]\}|\b(?:class|id|name|href|hx-\w+|aria-\w+by)=\"[^\"]*\"")


def part_of(name: str) -> str | None:
    """The part of the project that a file belongs to, or None for one that is not read."""
    first = name.split("/", maxsplit=1)[0]
    if name.startswith(("docs/reference/", "lint/")) or "/vendor/" in name:
        return None
    if name.endswith((".py", ".lua", ".sql")):
        return first if first != "docs" else None
    if name.endswith(".html"):
        return "dashboard"
    if name.endswith(".md"):
        return "CHANGELOG" if name == "CHANGELOG.md" else "deploy" if first == "deploy" else "pages"
    return first if first in ("deploy", "examples") else None


def prose(name: str, part: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """What a person reads of a file's text, by part."""
    comments_of = "src docstrings and comments" if part == "src" else part
    if name.endswith(".py"):
        comments: list[str] = []
        messages = comments if part != "src" else []
        for found in PYTHON.finditer(text):
            (comments if found["comment"] else messages).append(found[0])
        yield comments_of, comments
        if part == "src":
            yield "src messages", messages
    elif name.endswith((".lua", ".sql")):
        yield comments_of, COMMENT.findall(text)
    else:
        yield part, [(CODE if name.endswith(".md") else TEMPLATE).sub("", text)]


def names() -> list[str]:
    """The tracked files that are read."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        name
        for name in listing.stdout.splitlines()
        if name not in THEMSELVES and part_of(name) and (ROOT / name).is_file()
    ]


def found_in(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """What to write instead, and the phrase with the words around it."""
    flat = re.sub(r"\n[\s#]*|\n\s*-- ", " ", "\n".join(pieces))
    for found in ANY.finditer(flat.lower()):
        around = flat[max(found.start() - 30, 0) : found.end() + 30]
        yield list(PHRASES)[(found.lastindex or 1) - 1], around


def phrases() -> Iterator[tuple[str, str, str, str]]:
    """Part, what to write instead, file, and the phrase with the words around it."""
    for name in names():
        text = (ROOT / name).read_text(encoding="utf-8")
        for part, pieces in prose(name, part_of(name) or "", text):
            for instead, around in found_in(pieces):
                yield part, instead, name, around


def measured() -> dict[str, dict[str, int]]:
    counts = Counter((part, instead) for part, instead, _, _ in phrases())
    return {
        part: {each: counts[part, each] for each in PHRASES if counts[part, each]}
        for part in sorted({part for part, _ in counts})
    }


def above(numbers: dict[str, dict[str, int]]) -> list[str]:
    """The counts that are larger than lint/words.toml allows."""
    budget = tomllib.loads(BUDGET.read_text())
    return [
        f"{part}: {count} times what should be {instead!r}; lint/words.toml allows {most}"
        for part, counts in numbers.items()
        for instead, count in counts.items()
        if count > (most := budget.get(part, {}).get(instead, 0))
    ]


def written(numbers: dict[str, dict[str, int]]) -> str:
    text = "# English that lint/words.py counts, by part of the project. No count may grow;\n"
    text += "# `python lint/words.py --lower` lowers them. A key is what to write instead.\n"
    for part, counts in numbers.items():
        lines = [f'"{instead}" = {count}\n' for instead, count in counts.items()]
        text += f'\n["{part}"]\n' + "".join(lines)
    return text


def main() -> int:
    if "--list" in sys.argv:
        wanted = sys.argv[sys.argv.index("--list") + 1 :]
        for part, instead, name, around in phrases():
            if not wanted or part in wanted:
                print(f"{name}: …{around}…; write {instead}")
        return 0
    numbers = measured()
    found = above(numbers)
    if found:
        print(*found, "`python lint/words.py --list PART` prints the places.", sep="\n")
    elif "--lower" in sys.argv:
        BUDGET.write_text(written(numbers))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
