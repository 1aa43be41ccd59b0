"""
Code, help texts and pages keep to the glossary, docs/glossary.md.

One word for one thing, in Python, Lua, SQL and Markdown: `WORDS` has the words that are not used,
with the word to use instead, and `IDENTIFIERS` those that are not used as names in code.
Words are compared in lower case and one by one: `made_id` and `MadeId` are "made id".
Help texts of the command line are strings in Python files, so they are read as well.
Phrases that no native editor would leave are counted by lint/words.py: no count may grow.
"""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ITSELF = "tests/docs/test_words.py"
SOURCE = importlib.util.spec_from_file_location("words", ROOT / "lint/words.py")
assert SOURCE
assert SOURCE.loader
words = importlib.util.module_from_spec(SOURCE)
SOURCE.loader.exec_module(words)
LONGEST = 100
OLD_NAME = "fair" + "lead"  # written so that a search for it finds no source

# The word to use instead, and the patterns that it replaces, each a whole word or phrase.
WORDS = {
    # names
    "wakeup, notify": "doorbells? | bells? | rung | ringing",
    "listener": "ears?",
    "EngineThread, engine thread": "couriers?",
    "lease renewal": "keepers?",
    "end notice": "obituary | obituaries",
    "async variant, or lockstep (tests)": "twins?",
    "Admin, WorkerCallbacks": "desks?",
    "TierQueue, tier queue": "bands?",
    "Middlewares, middleware": "surrounds? | surrounded | surroundings?",
    "HookThread, hook": "tellers? | telling",
    "ExportedMessage": "parcels?",
    "ResultWaiter": "hubs?",
    "server check, doctor": "fitness",
    "back off, DestinationUnavailable": "unwell | rests | resting",
    "FAIL, failed, unavailable": "ill",
    "deliver, delivery, lease": "hand outs? | handouts? | handed out | handing out | hands out",
    "with_latency": "sleepy",
    # standard terms
    "repair": "mends? | mended | mending",
    "again, rebuild, reopen": "anew",
    "anyone, any caller, any process": "whoever | whomever",
    "recently": "of late",
    "see, or nothing": "behold",
    "is notified, receives": "hear | hears | heard",
    "it (a process, a worker), they (people)": "he | him | his | himself | she | her | herself",
    "release": "nacks? | nacked",
    "lease": r"visibility\ timeouts?",
    "dead letter": "dlqs?",
    "topic": "tenants?",
    # American spelling; Celery and asyncio spell `cancelled`
    "behavior": "behaviours?",
    "color": "colours? | coloured | colouring",
    "honor": "honours? | honoured | honouring",
    "favor": "favours? | favoured | favourites?",
    "neighbor": "neighbours? | neighbouring",
    "-ize": r"(?:initial|normal|optim|organ|priorit|recogn|serial|synchron|util)is(?:e[sd]?|ing)",
    "gray, center, catalog, judgment": "grey | centre[sd]? | catalogues? | judgement",
    "while, among, learned": "whilst | amongst | learnt",
}

# A name in code is not one of these words: name the thing.
IDENTIFIERS = {
    "headers, options, answers, reported": "told",
    "headers, options, answers, message": "said",
    "created, calls, generated id, jobs": "made",
}

# (word, the beginning of the path where it means something else)
ALLOWED = {
    ("band", "src/laneway/engines/valkey/scripts/"),  # bit.band, "binary and"
    ("bell", "src/laneway/cli/terminal.py"),  # the terminal's
    ("made", "src/laneway/gateway/connection.py"),  # asyncio calls connection_made
    ("made", "src/laneway/gateway/connection.py"),
    ("tenant", "pyproject.toml"),  # what people search for
    ("visibility timeout", "docs/celery-on-laneway.md"),  # Celery's option
    ("visibility timeout", "src/laneway/contrib/kombu/apps.py"),
}


def _pattern(alternatives: str) -> re.Pattern[str]:
    phrases = (phrase.strip().replace("\\ ", " ") for phrase in alternatives.split(" | "))
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b")


BANNED = {instead: _pattern(words) for instead, words in WORDS.items()}
ANY = re.compile("|".join(pattern.pattern for pattern in BANNED.values()))
BANNED_NAMES = {word: instead for instead, word in IDENTIFIERS.items()}


@cache
def _files() -> tuple[str, ...]:
    """The tracked files, and new ones that are not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        pytest.skip("not a checkout")
    return tuple(sorted(name for name in listing.stdout.split("\n") if (ROOT / name).is_file()))


def _files_of(*suffixes: str) -> list[str]:
    return [name for name in _files() if name.endswith(suffixes) and name != ITSELF]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _as_words(line: str) -> str:
    """`LeaseRenewal.made_id` as "lease renewal.made id"."""
    for name in ("GitHub", "ZooKeeper"):
        line = line.replace(name, name.lower())
    plain = line.replace("_", " ")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", plain).lower()


def _banned_words(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, word and what to use instead."""
    for number, line in enumerate(text.splitlines(), 1):
        words = _as_words(line)
        if not ANY.search(words):
            continue
        for instead, pattern in BANNED.items():
            for match in pattern.finditer(words):
                yield number, match.group(), instead


def _python_names(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], token.string


def _lua_names(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        code = re.sub(r"'[^']*'|\"[^\"]*\"", "", line).partition("--")[0]
        for name in re.findall(r"[A-Za-z_]\w*", code):
            yield number, name


def _banned_names(name: str) -> Iterator[tuple[int, str, str]]:
    text = _text(name)
    if not any(word in text.lower() for word in BANNED_NAMES):
        return
    names = _python_names if name.endswith(".py") else _lua_names
    for number, identifier in names(text):
        for word in _as_words(identifier).split():
            if word in BANNED_NAMES:
                yield number, word, BANNED_NAMES[word]


def _is_excused(word: str, name: str) -> bool:
    return any(each in ("*", word) and name.startswith(where) for each, where in ALLOWED)


def _report(name: str, found: Iterable[tuple[int, str, str]]) -> list[str]:
    return [
        f"{name}:{number}: {word!r}; use {instead}"
        for number, word, instead in found
        if not _is_excused(word, name)
    ]


def _fail(lines: list[str]) -> None:
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_words_of_the_glossary() -> None:
    """No file uses a synonym of a word of the glossary, an archaism or a British spelling."""
    files = _files_of(".py", ".lua", ".sql", ".md", ".toml", ".ci/run", "Makefile")
    _fail([line for name in files for line in _report(name, _banned_words(_text(name)))])


def test_phrases() -> None:
    """In no part of the project does an unidiomatic phrase occur more often than before."""
    _files()
    _fail(words.above(words.measured()))


@pytest.mark.parametrize(
    ("phrase", "instead"),
    [
        ("# It acts on those that\n# wait, also if it is below.", "even, too"),
        ('"""\nOf a pattern, each page searches 10,000."""', "For …, …"),
        ('    """The time; None: it has none."""', "… or None if …"),
        ("error = f'{name} says no'", "shows, lists, names, reports, explains"),
    ],
)
def test_phrases_are_found(phrase: str, instead: str) -> None:
    """Phrases are found in strings and comments, over line breaks and at beginnings."""
    ((_, pieces),) = words.prose("tests/a.py", "tests", f"\n{phrase}\n")
    assert [found for found, _ in words.found_in(pieces)] == [instead]
    assert [*words.prose("tests/a.py", "tests", "by.itself = at - once")] == [("tests", [])]


def test_names_say_what_they_hold() -> None:
    """No name in code is a participle that could mean anything."""
    _fail(
        [line for name in _files_of(".py", ".lua") for line in _report(name, _banned_names(name))]
    )


def test_file_names() -> None:
    """File names keep to the glossary as well."""
    _fail([line for name in _files() for line in _report(name, _banned_words(name))])


def test_old_name() -> None:
    """The product's old name is in one line of the changelog, and nowhere else."""
    lines = [
        f"{name}:{number}"
        for name in _files()
        for number, line in enumerate((ROOT / name).read_bytes().lower().splitlines(), 1)
        if OLD_NAME.encode() in line
    ]
    assert [line for line in lines if not line.startswith("CHANGELOG.md:")] == []
    assert len(lines) <= 1


def _fits(line: str) -> bool:
    """Tables of Markdown, long addresses, and remarks to the linters stay on one line."""
    without = re.sub(r"\s*#\s*(noqa|type: ignore|pyright|fmt:|pragma).*", "", line)
    return len(without) <= LONGEST or line.startswith("|") or "://" in line


def test_width() -> None:
    """A line has at most 100 characters."""
    _fail(
        [
            f"{name}:{number}: {len(line)} characters"
            for name in _files_of(".py", ".lua", ".sql", ".md")
            for number, line in enumerate(_text(name).splitlines(), 1)
            if not _fits(line)
        ]
    )


NEW_SENTENCE = re.compile(r"[a-z0-9`*)\"][.!?][*`)\"]* (?=[A-Z`*\[\"(])")
ENDS = re.compile(r"[.!?:;][*`)\"]*$")
NUMBERED = re.compile(r"^\s*\d+\. ")
BLOCK = re.compile(r"\s*([-*+#|>]|\d+\.|```|$)")


def _prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, line and the next line, without code and tables."""
    lines = [*text.splitlines(), ""]
    is_code = False
    for number, (line, following) in enumerate(pairwise(lines), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("|"):
            yield number, line, following


def test_sentences_begin_lines() -> None:
    """In Markdown a sentence that needs more than one line begins a line: diffs can be read."""
    _fail(
        [
            f"{name}:{number}: begin a line with the sentence that goes on in the next one"
            for name in _files_of(".md")
            for number, line, following in _prose(_text(name))
            if NEW_SENTENCE.search(NUMBERED.sub("", line))
            and not ENDS.search(line)
            and not BLOCK.match(following)
        ]
    )


def test_the_glossary_defines_a_word_once() -> None:
    text = _text("docs/glossary.md")
    terms = Counter(re.findall(r"^\*\*([^*]+)\*\*:", text, re.MULTILINE))
    assert len(terms) > 50
    assert [term for term, count in terms.items() if count > 1] == []
