"""
`python -m examples.crawler.run`: crawl a real documentation set, kill a crawler in the middle, and check everything.

The set is Debian's `python3.11-doc` (some 500 pages), fetched with apt-get if it is not given with --folder.
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

from examples.crawler.crawler import BURST, RATE, fetch, make_app, page
from examples.crawler.website import Site
from fairlead import Fairlead

PACKAGE, PLACE = "python3.11-doc", "usr/share/doc/python3.11/html"
HOSTS, CRAWLERS, THREADS = 4, 3, 8
RATE_SLACK = 3
"""Requests that may reach a host closer together than they were handed out: the way there takes a moment that varies."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder with HTML; default: the documentation of Python from Debian's package")
    parser.add_argument("--start", default="/contents.html", help="the first page")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fairlead-crawler-") as work:
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
    """Both crawls, and what came of them."""
    expected_site = Site(folder, HOSTS).start()
    expected = independent_crawl(expected_site, start)
    expected_site.stop()
    site = Site(folder, HOSTS).start()
    store = f"sqlite:///{work}/frontier.db"
    began = time.time()
    with make_app(store) as app:
        app.publish(**_fields(page(f"http://{site.hosts[0]}{start}", 0)))
        crawl_with_a_kill(app, store, site, len(expected))
        took = time.time() - began
        found = check(app, site, expected)
    site.stop()
    return {"seconds": f"{took:.1f}", **found}


def _fields(message: object) -> dict[str, object]:
    return {name: getattr(message, name) for name in ("topic", "body", "id", "priority")}


def independent_crawl(site: Site, start: str) -> set[str]:
    """What there is: a plain breadth-first search, one request after the other, without Fairlead. Paths of pages that answered 200."""
    waiting, seen, pages = deque([f"http://{site.hosts[0]}{start}"]), {f"http://{site.hosts[0]}{start}"}, set()
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


def crawl_with_a_kill(app: Fairlead, store: str, site: Site, pages: int) -> None:
    """Three crawlers; one is killed when a third is done, and another takes its place."""
    crawlers = [start_crawler(store, site) for _ in range(CRAWLERS)]
    try:
        while not is_finished(app, site):
            if crawlers[0].poll() is None and sum(status == 200 for _, _, _, status in site.log) > pages // 3:
                crawlers[0].send_signal(signal.SIGKILL)
                crawlers[0].wait()
                crawlers.append(start_crawler(store, site))
    finally:
        for crawler in crawlers:
            crawler.kill()
            crawler.wait()


def is_finished(app: Fairlead, site: Site) -> bool:
    """Every host's done cursor has passed all that was published, and nothing new has come meanwhile."""
    for host in site.hosts:
        if not app.topic(f"host.{host}").wait_done(timeout=0.2):
            return False
    now = app.engine.overview()
    return not now.waiting and not now.leased


def start_crawler(store: str, site: Site) -> subprocess.Popen[bytes]:
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(root / "src")])
    return subprocess.Popen([sys.executable, "-m", "examples.crawler.crawler", store, *site.hosts], env={**os.environ, "PYTHONPATH": path})


def check(app: Fairlead, site: Site, expected: set[str]) -> dict[str, object]:
    """The server's own log against what was promised."""
    fetched = Counter(path.lstrip("/") for _, _, path, status in site.log if status == 200)
    twice = {path for path, count in fetched.items() if count > 1}
    fastest = {host: most_in_a_second([at for at, where, _, _ in site.log if where == host]) for host in site.hosts}
    done = app.engine.overview()
    same = set(fetched) == expected
    once = len(twice) <= THREADS
    polite = all(count <= RATE + BURST + RATE_SLACK for count in fastest.values())
    return {
        "pages of the independent crawl": f"{len(expected):,}",
        "pages fetched": f"{len(fetched):,}",
        "the same set": same,
        "requests, redirects and failures included": f"{len(site.log):,}",
        "fetched again after the kill (at most what ran then)": f"{len(twice)} of at most {THREADS}",
        "retried after a failure": sum(status == 503 for _, _, _, status in site.log),
        f"most requests of a host in a second (rate {RATE}/s)": max(fastest.values()),
        "dead letters (links to pages that are not there)": done.dead,
        "all as promised": same and once and polite,
    }


def most_in_a_second(moments: list[float]) -> int:
    moments.sort()
    most = first = 0
    for last, moment in enumerate(moments):
        while moment - moments[first] > 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


if __name__ == "__main__":
    main()
