"""
The gateway: publish, lease and settle over HTTP, beside an application that does nothing.

The ceiling is starlette on uvicorn (with httptools as its parser) answering a constant. Client and
server share the machine; all take the same turns, so they are compared in one run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.common import options, pick, publish_table, store
from laneway import Laneway
from laneway.gateway.login.tokens import create as create_token
from laneway.gateway.waiting.long_poll import MAX_WAITING as POLLS_OF_TOKEN

CONNECTIONS = 64
BATCH = 100
ROUNDS = 3
POLLS_MEASURED = 300
BODY = {"order": 42, "merchant": "acme", "lines": [1, 2, 3]}

NO_OP = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def answer(request):
    await request.body()
    return Response(b'{"id":"1","outcome":"accepted"}', 201, media_type="application/json")
app = Starlette(routes=[Route("/{path:path}", answer, methods=["POST"])])
listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # TCP_NODELAY
listening.bind(("127.0.0.1", 0))
listening.listen(1024)
print("http://127.0.0.1:%d" % listening.getsockname()[1], flush=True)
config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False, ws="none")
uvicorn.Server(config).run(sockets=[listening])
"""

Row = tuple[str, float, float | None]


def main() -> None:
    chosen = options(__doc__ or "")
    seconds = pick(chosen, 5.0, 1.5, 0.3)
    rounds = pick(chosen, ROUNDS, 2, 1)
    with store(chosen) as place, serving(gateway(place.url)) as ours, serving(no_op()) as other:
        found: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, port, run in measurements(ours, other):
                found.setdefault(name, []).append(asyncio.run(run(port, seconds)))
        polls = pick(chosen, 1000, 1000, 20)
        tokens = created_tokens(place.url, polls)
        with serving([*gateway(place.url), "--max-connections", "2000"]) as polled:
            waiting = asyncio.run(long_polls(polled, tokens, polls, seconds))
    ceiling = statistics.median(found[NAMES[0]])
    rows: list[Row] = []
    for name, rates in found.items():
        rate = statistics.median(rates)
        rows.append((name, rate, rate / ceiling if name in NAMES else None))
    rows += waiting
    publish_table(
        "gateway",
        chosen,
        ("", "measured", "ratio"),
        rows,
        f"{CONNECTIONS} connections, one request of each at a time; median of {rounds} runs of"
        f" {seconds:g} s; ratio: to the application that does nothing",
    )


def created_tokens(url: str, polls: int) -> list[str]:
    """New tokens of the store, as many as so many long polls need."""
    with Laneway(url) as app:
        return [
            create_token(app.engine, f"bench {first}", ["publish", "consume"])[1]
            for first in range(0, polls, POLLS_OF_TOKEN)
        ]


def gateway(url: str) -> list[str]:
    return [sys.executable, "-m", "laneway", "-u", url, "serve", "-b", "127.0.0.1:0", "--no-login"]


def no_op() -> list[str]:
    return [sys.executable, "-c", NO_OP]


class Served:
    """A server: its port and process."""

    def __init__(self, port: int, process: int) -> None:
        self.port = port
        self.process = process

    def memory(self) -> int:
        """Bytes of memory that it uses."""
        with open(f"/proc/{self.process}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def cpu(self) -> float:
        """Seconds of processor time that it has used."""
        with open(f"/proc/{self.process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(command: Sequence[str]) -> Iterator[Served]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)", process.stdout.readline().partition("//")[2])
        assert found is not None
        yield Served(int(found[1]), process.pid)
    finally:
        process.terminate()
        process.wait()


NAMES = (
    "starlette that does nothing, requests/s",
    "publish, requests/s",
    f"publish lists of {BATCH}, messages/s",
    f"publish lines, {BATCH} a request, messages/s",
    f"lease and settle {BATCH}, messages/s",
)
LONE = "one publish at a time, p50 in ms"
CPU = (
    "starlette that does nothing, us of CPU a request",
    "publish, us of CPU a request",
)


def measurements(ours: Served, other: Served) -> Iterator[tuple[str, Served, object]]:
    one = request("/v1/topics/push.acme/messages", {"body": BODY})
    many = request("/v1/messages", [{"topic": "push.acme", "body": BODY}] * BATCH)
    line = json.dumps({"topic": "push.acme", "body": BODY}).encode() + b"\n"
    lines = raw_request("/v1/messages", line * BATCH, "application/x-ndjson")
    yield NAMES[0], other, lambda served, s: rate(served, one, s, 1)
    yield NAMES[1], ours, lambda served, s: rate(served, one, s, 1)
    yield NAMES[2], ours, lambda served, s: rate(served, many, s, BATCH)
    yield NAMES[3], ours, lambda served, s: rate(served, lines, s, BATCH)
    yield NAMES[4], ours, consume
    yield LONE, ours, lambda served, s: lone(served, one, s)
    yield CPU[0], other, lambda served, s: cpu(served, one, s)
    yield CPU[1], ours, lambda served, s: cpu(served, one, s)


def request(path: str, body: object, token: str | None = None) -> bytes:
    return raw_request(path, json.dumps(body).encode(), "application/json", token)


def raw_request(path: str, body: bytes, kind: str, token: str | None = None) -> bytes:
    authorization = "" if token is None else f"authorization: Bearer {token}\r\n"
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n{authorization}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Client:
    """One connection; the answer is read as far as needed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def send(self, sent: bytes) -> bytes:
        """Send a request, and return the answer's body."""
        self._writer.write(sent)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 20"), head
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None:
            return await self._reader.readexactly(int(length[1]))
        body = b""
        while size := int((await self._reader.readline()).strip(), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return body

    def close(self) -> None:
        self._writer.close()


async def rate(served: Served, sent: bytes, seconds: float, messages: int) -> float:
    """Messages a second of all connections."""
    clients = [await Client.open(served.port) for _ in range(CONNECTIONS)]
    count = 0
    end = time.perf_counter() + seconds

    async def run(client: Client) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await client.send(sent)
            count += messages

    began = time.perf_counter()
    await asyncio.gather(*map(run, clients))
    took = time.perf_counter() - began
    for client in clients:
        client.close()
    return count / took


async def cpu(served: Served, sent: bytes, seconds: float) -> float:
    """Microseconds of the server's processor time for a request: comparable on a busy machine."""
    before, began = served.cpu(), time.perf_counter()
    requests = await rate(served, sent, seconds, 1) * (time.perf_counter() - began)
    return (served.cpu() - before) / requests * 1e6


async def consume(served: Served, seconds: float) -> float:
    """Messages a second that are leased and settled; there are enough of them."""
    fill = request("/v1/messages", [{"topic": "push.acme", "body": BODY}] * 10_000)
    filler = await Client.open(served.port)
    for _ in range(max(1, round(seconds * 3))):
        await filler.send(fill)
    filler.close()
    lease = request("/v1/lease", {"n": BATCH})
    clients = [await Client.open(served.port) for _ in range(4)]
    count = 0
    end = time.perf_counter() + seconds

    async def run(client: Client) -> None:
        nonlocal count
        while time.perf_counter() < end:
            deliveries = json.loads(await client.send(lease))["deliveries"]
            if not deliveries:
                return
            settlements = [{"receipt": each["receipt"]} for each in deliveries]
            await client.send(request("/v1/settle", settlements))
            count += len(deliveries)

    began = time.perf_counter()
    await asyncio.gather(*map(run, clients))
    took = time.perf_counter() - began
    for client in clients:
        client.close()
    return count / took


async def lone(served: Served, sent: bytes, seconds: float) -> float:
    """Milliseconds of one request when there is no other."""
    client = await Client.open(served.port)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        await client.send(sent)
        times.append(time.perf_counter() - began)
    client.close()
    return statistics.median(times) * 1000


async def long_polls(
    served: Served, tokens: Sequence[str], count: int, seconds: float
) -> list[Row]:
    """What waiting lease requests cost the server, and how soon they get a message."""
    memory = served.memory()
    waits = [request("/v1/lease", {"wait": 60, "topics": ["poll"]}, token) for token in tokens]
    clients = [await Client.open(served.port) for _ in range(count)]
    arrived: asyncio.Queue[float] = asyncio.Queue()

    async def wait(client: Client, sent: bytes) -> None:
        answer = await client.send(sent)
        arrived.put_nowait(time.perf_counter())
        assert json.loads(answer)["deliveries"]

    waiting = [
        asyncio.ensure_future(wait(client, waits[number // POLLS_OF_TOKEN]))
        for number, client in enumerate(clients)
    ]
    await asyncio.sleep(1.0)
    memory = served.memory() - memory
    before, began = served.cpu(), time.perf_counter()
    await asyncio.sleep(max(seconds, 1.0))
    share = (served.cpu() - before) / (time.perf_counter() - began)
    publisher = await Client.open(served.port)
    one = request("/v1/topics/poll/messages", {"body": 1}, tokens[0])
    times = []
    for number in range(count):
        began = time.perf_counter()
        await publisher.send(one)
        first = await arrived.get()
        if number < POLLS_MEASURED:
            times.append((first - began) * 1000)
    await asyncio.gather(*waiting)
    for client in (*clients, publisher):
        client.close()
    return [
        (f"{count} waiting lease requests, % of a core", share * 100, None),
        (f"{count} waiting lease requests, MB of memory", memory / 1e6, None),
        ("publish until a waiting request has it, p50 in ms", statistics.median(times), None),
        ("the same, p95 in ms", statistics.quantiles(times, n=20)[-1], None),
    ]


if __name__ == "__main__":
    main()
