"""The crawler on a small generated site: the same set as an independent crawl, politely, through a kill."""

from __future__ import annotations

import random
from pathlib import Path

from examples.crawler.run import run


def test_the_crawler_finds_everything_politely_through_a_kill(tmp_path: Path) -> None:
    """A few hundred pages that link to each other, some failing first, some missing."""
    site = tmp_path / "site"
    site.mkdir()
    draw = random.Random(3)
    for n in range(250):
        links = "".join(f'<a href="p{draw.randrange(260)}.html">x</a>' for _ in range(6)) + f'<a href="p{n + 1}.html">next</a>'
        (site / f"p{n}.html").write_text(f"<html><body>{links}</body></html>")
    work = tmp_path / "work"
    work.mkdir()
    found = run(site, "/p0.html", work)
    assert found["all as promised"], found
    assert found["pages fetched"] == "250"
