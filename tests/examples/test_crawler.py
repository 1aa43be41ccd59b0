"""
The crawler on a small generated site: the same set as an independent crawl, politely, through a
kill.
"""

from __future__ import annotations

import random
from pathlib import Path

from examples.crawler.crawler import RATE
from examples.crawler.run import closeness, most_at_once, repeats, run
from examples.crawler.website import Request


def test_the_crawler_finds_everything_politely_through_a_kill(tmp_path: Path) -> None:
    """A few hundred pages that link to each other, some failing first, some missing."""
    site = tmp_path / "site"
    site.mkdir()
    draw = random.Random(3)
    for n in range(250):
        links = (
            "".join(f'<a href="p{draw.randrange(260)}.html">x</a>' for _ in range(6))
            + f'<a href="p{n + 1}.html">next</a>'
        )
        (site / f"p{n}.html").write_text(f"<html><body>{links}</body></html>")
    work = tmp_path / "work"
    work.mkdir()
    found = run(site, "/p0.html", work)
    assert found["all as promised"], found
    assert found["pages fetched"] == "250"


def test_the_checks_see_what_they_are_for() -> None:
    """Too fast, too many at once, and pages fetched twice without a kill are found."""
    steady = [n / RATE for n in range(500)]
    assert closeness(steady) == 0
    assert closeness([*steady, *[1.0] * 40]) > 30
    assert closeness([n / (RATE * 1.2) for n in range(500)]) > 50
    requests = [Request(n, n + 2.5, "h", f"/{n}", 200, "a") for n in range(10)]
    assert most_at_once(requests) == 3
    again = [*requests, Request(20, 21, "h", "/1", 200, "b"), Request(20, 21, "h", "/2", 200, "b")]
    assert repeats(again, killed="a") == (2, 0)
    assert repeats(again, killed="c") == (0, 2)
    assert repeats([*requests, requests[0]], killed="a") == (0, 1)
