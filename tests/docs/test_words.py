"""One word for one thing: synonyms that would blur it are not used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "laneway"
BANNED = re.compile(r"\b(nack|visibility[ _]timeout|dlq|tenants?)\b", re.IGNORECASE)


@pytest.mark.parametrize(
    "path",
    sorted([*SOURCES.rglob("*.py"), *SOURCES.rglob("*.sql")]),
    ids=lambda path: str(path.relative_to(SOURCES)),
)
def test_words(path: Path) -> None:
    """No source uses a second word for settle, lease, dead letter or topic."""
    found = [
        f"{number}: {line.strip()}"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED.search(line)
    ]
    assert found == []
