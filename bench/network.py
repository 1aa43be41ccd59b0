"""
A worker that is far from its store: handlers that do nothing, over a network that needs a
millisecond each way, and without that.

A proxy on this machine delays what passes it. Both ways of a run take turns, so that both meet the
same moments of the machine. Processor time is that of the worker, and of the server.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from bench.common import go, line, options, pick, process, publish_table, spread, store, usual
from bench.processes import WORKER
from laneway import Laneway, Message

DELAYS_MS = (0.0, 1.0)

PROXY = "import sys\nfrom bench.network import serve\nserve(int(sys.argv[1]), float(sys.argv[2]))"


def main() -> None:
    chosen = options(__doc__ or "")
    if chosen.engine == "sqlite":
        sys.exit("bench.network: a file has no network: --engine postgres, valkey or redis")
    messages = pick(chosen, 200_000, 60_000, 2_000)
    repeats = pick(chosen, 5, 3, 1)
    rows = []
    for topics in pick(chosen, (1, 1_000), (1, 1_000), (1,)):
        found: dict[float, list[tuple[float, float]]] = {delay: [] for delay in DELAYS_MS}
        for _ in range(repeats):
            for delay, runs in found.items():
                with store(chosen, usual(chosen)) as place, _delayed(place.url, delay) as url:
                    with Laneway(place.url, durability=usual(chosen)) as app:  # type: ignore[arg-type]
                        app.publish_many(
                            (Message(f"t.{n % topics}", "x" * 98) for n in range(messages)),
                            progress=False,
                        )
                    before = place.cpu()
                    taken = _drain(url, usual(chosen), messages)
                    runs.append((messages / taken, (place.cpu() - before) / messages * 1e6))
        near = spread([rate for rate, _ in found[DELAYS_MS[0]]])["median"]
        for delay, runs in found.items():
            rate, server = (spread(each)["median"] for each in zip(*runs, strict=True))
            rows.append((topics, delay, rate, server, near / rate))
    publish_table(
        "network",
        chosen,
        ("topics", "ms each way", "messages/s", "server, us", "costs, times"),
        rows,
        f"{messages:,} messages of 100 bytes, one worker, {usual(chosen)}; medians of {repeats},"
        " taking turns",
    )


def _drain(url: str, durability: str, messages: int) -> float:
    """Seconds in which one worker handles all of them."""
    with process(WORKER, url, durability, "0") as worker:
        line(worker)
        go(worker)
        began, ended, acked = line(worker).split()
    assert int(acked) == messages, acked
    return float(ended) - float(began)


@contextmanager
def _delayed(url: str, delay_ms: float) -> Iterator[str]:
    """The URL of this server behind a network with this delay each way."""
    if not delay_ms:
        yield url
        return
    port = urlsplit(url).port
    with process(PROXY, str(port), str(delay_ms / 1e3)) as proxy:
        yield url.replace(f":{port}", f":{line(proxy)}", 1)


def serve(port: int, seconds: float) -> None:
    """Print the port of a proxy to this one, and forward what comes until the process ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for source, target in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            for work, end in ((_receive, source), (_send, target)):
                threading.Thread(target=work, args=(end, waiting, seconds), daemon=True).start()


def _receive(
    source: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    data = b"-"
    while data:
        try:
            data = source.recv(1 << 18)
        except OSError:
            data = b""
        waiting.put((time.monotonic() + seconds, data))


def _send(
    target: socket.socket, waiting: queue.SimpleQueue[tuple[float, bytes]], seconds: float
) -> None:
    del seconds
    while True:
        due, data = waiting.get()
        time.sleep(max(due - time.monotonic(), 0))
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return


if __name__ == "__main__":
    main()
