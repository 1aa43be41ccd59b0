"""
The crawler. Every host is a topic with its own rate and concurrency; shallow pages of a host are
fetched first; a page is fetched only once.

A page's links are published together with its ack, in one transaction: after a kill in the middle,
both are stored or neither.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

from laneway import Delivery, Laneway, LeaseLost, Message

RATE, BURST, CONCURRENCY = 150, 5, 4
"""The limits of each host."""

TIMEOUT, LEASE = 10.0, 12
"""
Seconds. A request times out well before its lease ends, so that no other crawler fetches the same
page meanwhile.
"""

AGENT = "laneway-crawler/{pid}"
THREADS = 8
REDIRECTS = (301, 302, 303, 307, 308)


def make_app(url: str) -> Laneway:
    """The application with its one policy."""
    app = Laneway(url)
    app.policy(
        "host.*",
        rate=RATE,
        burst=BURST,
        concurrency=CONCURRENCY,
        lease=LEASE,
        retries=5,
        backoff="300ms",
        dedupe="forever",
    )
    return app


def page(url: str, depth: int) -> Message:
    """The message for a page: its id is the URL, its topic the host."""
    url = urldefrag(url).url
    return Message(
        f"host.{urlsplit(url).netloc}",
        {"url": url, "depth": depth},
        id=url,
        priority=max(-depth, -100),
    )


class Links(HTMLParser):
    """The links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


def fetch(url: str) -> tuple[int, list[str]]:
    """The status of a page, and the URLs that it links to."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
    try:
        connection.request(
            "GET", parts.path or "/", headers={"User-Agent": AGENT.format(pid=os.getpid())}
        )
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status in REDIRECTS:
        return answer.status, [urljoin(url, answer.getheader("Location") or "")]
    if answer.status != 200:
        return answer.status, []
    links = Links()
    links.feed(body.decode(errors="replace"))
    targets = (urldefrag(urljoin(url, link)).url for link in links.found)
    return 200, [
        target
        for target in targets
        if urlsplit(target).scheme == "http" and target.endswith(".html")
    ]


def handle(delivery: Delivery, allowed: frozenset[str]) -> None:
    """Fetch one page; publish its links together with the ack."""
    url, depth = delivery.body["url"], delivery.body["depth"]
    try:
        status, links = fetch(url)
    except OSError as error:
        delivery.retry(error=str(error))
        return
    if status in (429, 503):
        delivery.retry(error=f"HTTP {status}")
    elif status >= 400:
        delivery.dead(f"HTTP {status}")
    else:
        delivery.ack(
            publish=[
                page(link, depth + 1)
                for link in dict.fromkeys(links)
                if urlsplit(link).netloc in allowed
            ]
        )


def crawl(app: Laneway, allowed: frozenset[str], stop: threading.Event) -> None:
    """One thread: lease, fetch, settle."""
    while not stop.is_set():
        for delivery in app.lease(1, wait=1.0):
            try:
                handle(delivery, allowed)
            except LeaseLost:
                # too slow: another crawler has the page; no link was published twice
                pass


def main() -> None:
    """`python -m examples.crawler.crawler STORE HOST …`: crawl until killed."""
    app = make_app(sys.argv[1])
    stop = threading.Event()
    threads = [
        threading.Thread(target=crawl, args=(app, frozenset(sys.argv[2:]), stop), daemon=True)
        for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
