"""
`python -m examples.crawler.run`: crawl a real documentation set, kill a crawler in the middle, and
check everything.

The set is Debian's `python3.11-doc` (about 500 pages), fetched with apt-get, or that of --folder.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple

from examples.crawler.crawler import AGENT, BURST, CONCURRENCY, RATE, THREADS, fetch, make_app, page
from examples.crawler.website import Request, Site
from laneway import Laneway

PACKAGE, PLACE = "python3.11-doc", "usr/share/doc/python3.11/html"
HOSTS, CRAWLERS = 4, 3
JITTER = 0.15
"""
Seconds by which the time from the delivery of a page to its request may vary on a busy machine:
requests may be that much closer together.
"""

DEADLINE = 300.0
"""Seconds after which a crawl has failed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        help="a folder with HTML; default: the documentation of Python from Debian's package",
    )
    parser.add_argument("--start", default="/contents.html", help="the first page")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laneway-crawler-") as work:
        folder = chosen.folder or documentation(Path(work))
        found = run(folder, chosen.start, Path(work))
    for name, value in found.items():
        print(f"{name:52} {value}")
    sys.exit(0 if found["all as promised"] else 1)


def documentation(work: Path) -> Path:
    """Debian's package, unpacked."""
    subprocess.run(["apt-get", "download", "-qq", PACKAGE], cwd=work, check=True)
    (package,) = work.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", package, work / "doc"], check=True)
    return work / "doc" / PLACE


def run(folder: Path, start: str, work: Path) -> dict[str, object]:
    """Run both crawls and compare them."""
    expected_site = Site(folder, HOSTS).start()
    expected = independent_crawl(expected_site, start)
    expected_site.stop()
    site = Site(folder, HOSTS).start()
    store = f"sqlite:///{work}/frontier.db"
    began = time.time()
    with make_app(store) as app:
        app.publish(**_fields(page(f"http://{site.hosts[0]}{start}", 0)))
        killed = crawl_with_a_kill(app, store, site, len(expected))
        took = time.time() - began
        found = check(app, site, expected, killed)
    site.stop()
    return {"seconds": f"{took:.1f}", **found}


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in ("topic", "body", "id", "priority")}


def independent_crawl(site: Site, start: str) -> set[str]:
    """
    The expected paths: those that answer 200 to a breadth-first search without Laneway, one request
    after the other.
    """
    waiting, seen, pages = (
        deque([f"http://{site.hosts[0]}{start}"]),
        {f"http://{site.hosts[0]}{start}"},
        set(),
    )
    while waiting:
        url = waiting.popleft()
        status, links = fetch(url)
        if status == 503:
            waiting.append(url)
            continue
        if status == 200:
            pages.add(url.partition("//")[2].partition("/")[2])
        for link in links:
            if link not in seen and link.partition("//")[2].partition("/")[0] in site.hosts:
                seen.add(link)
                waiting.append(link)
    return pages


class Killed(NamedTuple):
    """The crawler that was killed, and how many pages had been fetched then."""

    agent: str
    pages_before: int


def crawl_with_a_kill(app: Laneway, store: str, site: Site, pages: int) -> Killed | None:
    """
    Run three crawlers; kill one after a third of the pages and start another. Returns None if the
    crawl ended first.
    """
    deadline = time.monotonic() + DEADLINE
    crawlers = [start_crawler(store, site) for _ in range(CRAWLERS)]
    killed = None
    try:
        while not app.wait_idle("host.*", timeout=0.05):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the crawl did not end within {DEADLINE:.0f} s: {app.engine.overview()}"
                )
            if any(crawler.poll() is not None for crawler in crawlers):
                raise RuntimeError("a crawler ended unexpectedly; its output is above")
            if killed is None and pages // 3 < len(site.pages()) < pages:
                victim = crawlers.pop(0)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                killed = Killed(AGENT.format(pid=victim.pid), len(site.pages()))
                crawlers.append(start_crawler(store, site))
    finally:
        for crawler in crawlers:
            crawler.kill()
            crawler.wait()
    return killed


def start_crawler(store: str, site: Site) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src")])
    return subprocess.Popen(
        [sys.executable, "-m", "examples.crawler.crawler", store, *site.hosts],
        env={**os.environ, "PYTHONPATH": path},
    )


def check(app: Laneway, site: Site, expected: set[str], killed: Killed | None) -> dict[str, object]:
    """Compare the web server's log with what was promised."""
    pages = site.pages()
    fetched = {request.path.lstrip("/") for request in pages}
    cut_off, again = repeats(pages, killed.agent if killed is not None else "")
    closest = max(
        closeness([request.began for request in site.log if request.host == host])
        for host in site.hosts
    )
    at_once = max(
        most_at_once([request for request in site.log if request.host == host])
        for host in site.hosts
    )
    was_killed = killed is not None and 0 < killed.pages_before < len(expected)
    same = fetched == expected
    once = again == 0 and cut_off <= THREADS
    polite = closest <= RATE * JITTER and at_once <= CONCURRENCY
    return {
        "pages of the independent crawl": f"{len(expected):,}",
        "pages fetched": f"{len(fetched):,}",
        "the same set": same,
        "pages when a crawler was killed": (
            f"{killed.pages_before:,}" if killed is not None else "never"
        ),
        "fetched again because it was killed before its ack": f"{cut_off} of at most {THREADS}",
        "fetched again for any other reason": again,
        "requests, redirects and failures included": f"{len(site.log):,}",
        "retried after a failure": sum(request.status == 503 for request in site.log),
        f"requests beyond the rate in any window ({RATE}/s, burst {BURST})": (
            f"{closest:.1f}, jitter explains {RATE * JITTER:.1f}"
        ),
        f"most concurrent requests to a host (limit {CONCURRENCY})": at_once,
        "dead letters (links to pages that are not there)": app.engine.overview().dead,
        "all as promised": was_killed and same and once and polite,
    }


def repeats(pages: list[Request], killed: str) -> tuple[int, int]:
    """
    Pages fetched twice: (because the crawler was killed before its ack, for any other reason).
    """
    by_others = Counter(request.path for request in pages if request.agent != killed)
    by_killed = Counter(request.path for request in pages if request.agent == killed)
    again = sum(count - 1 for counts in (by_others, by_killed) for count in counts.values())
    return len(by_others.keys() & by_killed.keys()), again


def closeness(moments: list[float]) -> float:
    """
    How many requests the worst window, of any length, has beyond its rate and burst.
    """
    moments.sort()
    worst = earliest = float("-inf")
    for number, moment in enumerate(moments):
        # A window from the request i to this one holds number - i + 1, and allows BURST + RATE *
        # its length.
        earliest = max(earliest, RATE * moment - number)
        worst = max(worst, number + 1 - RATE * moment + earliest - BURST)
    return max(worst, 0.0)


def most_at_once(requests: list[Request]) -> int:
    changes = sorted(
        [(request.began, 1) for request in requests] + [(request.ended, -1) for request in requests]
    )
    most = running = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


if __name__ == "__main__":
    main()
