"""
A shop tells its merchants of their orders over HTTP. Most receivers answer; some hang, fail, say
429 or 410, and some recover.

    python -m examples.webhooks.webhooks URL [MERCHANTS [ORDERS]]    the default: 50,000 and 2

The receivers are one local server, in this process: what a merchant's receiver does is in the path
of its endpoint. At the end it prints, for each kind of receiver, how many orders were delivered,
wait, or are dead, and how many requests that took.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator

from laneway import Laneway, Message
from laneway.push.secret_store import new_key

KINDS = ("good", "slow", "hangs", "fails", "busy", "gone", "recovers")
RARE = 200
"""One merchant in so many has each kind of receiver other than good."""

TIMEOUT = 1.0


class Receivers:
    """The receivers of all merchants: a small HTTP server on the loopback interface."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self._orders: set[bytes] = set()
        self.is_recovered = False
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        self._loop.run_until_complete(self._open())
        self._loop.run_forever()
        self._server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                kind = head.split(b" ", 2)[1].decode().split("/")[1]
                await reader.readexactly(int(header(head, b"content-length:")))
                status, headers = await self._answer(kind, header(head, b"webhook-id:"))
                writer.write(f"HTTP/1.1 {status} x\r\n{headers}content-length: 0\r\n\r\n".encode())
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # cancelled: at the end, and asyncio of Python 3.11 would report it
        finally:
            writer.close()

    async def _answer(self, kind: str, order: bytes) -> tuple[int, str]:
        self.requests[kind] += 1
        if kind == "hangs" or (kind == "recovers" and not self.is_recovered):
            if kind == "hangs":
                await asyncio.sleep(10 * TIMEOUT)
            return 500, ""
        if kind == "busy":
            return 429, "retry-after: 2\r\n"
        if kind == "fails":
            return 500, ""
        if kind == "gone":
            return 410, ""
        if kind == "slow":
            await asyncio.sleep(0.2)
        if order not in self._orders:  # else sent again: its answer came after the time limit
            self._orders.add(order)
            self.delivered[kind] += 1
        return 200, ""

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def header(head: bytes, name: bytes) -> bytes:
    """The value of a header; the name is in lower case, with its colon."""
    start = head.lower().index(name) + len(name)
    return head[start : head.index(b"\r\n", start)].strip()


def open_app(url: str) -> Laneway:
    """The shop's application: merchants' topics are pushed."""
    app = Laneway(url)
    app.policy("push.*", backoff=["1s", "2s", "4s", "8s", "1m"])  # so that it can be watched
    app.push("push.*")
    return app


def kind_of(merchant: int) -> str:
    """What the receiver of a merchant does."""
    return KINDS[merchant % RARE] if merchant % RARE < len(KINDS) else "good"


def endpoints(merchants: int, port: int) -> Iterator[tuple[str, dict[str, object]]]:
    """An endpoint for each merchant."""
    for merchant in range(merchants):
        yield (
            f"push.{merchant}",
            {
                "url": f"http://127.0.0.1:{port}/{kind_of(merchant)}/{merchant}",
                "timeout": TIMEOUT,
                "allow_private": True,
            },
        )


def orders(merchants: int, count: int) -> Iterator[Message]:
    """So many orders of each merchant."""
    for order in range(count):
        for merchant in range(merchants):
            yield Message(f"push.{merchant}", {"type": "order.paid", "order": order})


def expected_of(merchants: int, count: int, kinds: tuple[str, ...]) -> int:
    """How many orders merchants with such receivers have."""
    return count * sum(kind_of(merchant) in kinds for merchant in range(merchants))


def run(url: str, merchants: int, count: int, seconds: float = 600.0) -> dict[str, Counter[str]]:
    """
    Deliver the orders until the good, the slow and the recovered receivers have all of theirs, or
    the time is over. The receivers recover halfway.
    """
    os.environ.setdefault("LANEWAY_SECRETS_KEY", new_key())
    receivers = Receivers()
    app = open_app(url)
    app.endpoints.set_many(endpoints(merchants, receivers.port))
    app.publish_many(orders(merchants, count))
    worker = app.worker(concurrency=256)
    thread = threading.Thread(target=worker.run)
    thread.start()
    deadline = time.monotonic() + seconds
    good = expected_of(merchants, count, ("good", "slow"))
    try:
        while time.monotonic() < deadline:
            delivered = receivers.delivered
            if delivered["good"] + delivered["slow"] >= good:
                receivers.is_recovered = True
                if delivered["recovers"] >= expected_of(merchants, count, ("recovers",)):
                    break
            time.sleep(0.05)
    finally:
        worker.stop()
        thread.join()
    found = {"requests": receivers.requests, "delivered": receivers.delivered}
    found["dead"] = Counter(letter.message.topic for letter in app.dead_letters.list(limit=100))
    found["disabled"] = Counter(
        kind_of(int(each.topic.partition(".")[2]))
        for each in app.endpoints.list("push.*", limit=10_000, state="disabled")
    )
    app.close()
    receivers.close()
    return found


def main() -> None:
    url = sys.argv[1]
    merchants, count = (*map(int, sys.argv[2:4]), *(50_000, 2)[len(sys.argv) - 2 :])
    began = time.monotonic()
    found = run(url, merchants, count)
    print(f"{merchants:,} merchants, {count} orders each, {time.monotonic() - began:.1f} s")
    for kind in KINDS:
        orders_of = expected_of(merchants, count, (kind,))
        print(
            f"{kind:<9} {found['delivered'][kind]:>7,} of {orders_of:,} delivered,"
            f" {found['requests'][kind]:,} requests, {found['disabled'][kind]:,} disabled"
        )


if __name__ == "__main__":
    main()
