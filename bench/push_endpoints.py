"""What many endpoints cost, and what a bad one costs the others; see `bench.push`."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import json
import random
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.dashboard import request
from laneway import Laneway, Message
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.gateway import Gateway
from laneway.push import breaker
from laneway.push.transport import Destination, Request, Settings, Transport

BODY = b'{"order":42,"text":"' + b"x" * 80 + b'"}'
PAGE = 10_000

MIXED = """
import asyncio, sys, time
OK = b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n"
BUSY = b"HTTP/1.1 503 busy\\r\\ncontent-length: 0\\r\\n\\r\\n"
FAILED = b"HTTP/1.1 500 failed\\r\\ncontent-length: 0\\r\\n\\r\\n"
class Receiver(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.buffer = transport, b""
    def data_received(self, data):
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\\r\\n\\r\\n")
            if not found:
                return
            lower = head.lower()
            at = lower.find(b"content-length:") + 15
            length = int(lower[at : (lower.find(b"\\r\\n", at) + 1 or len(lower) + 1) - 1])
            if len(rest) < length:
                return
            self.buffer = rest[length:]
            path = head.split(b" ", 2)[1]
            if path == b"/hang":
                return
            answer = {b"/busy": BUSY, b"/dead": FAILED}.get(path, OK)
            self.transport.write(answer)
            if path == b"/close":
                self.transport.close()
async def main():
    context = None
    if len(sys.argv) > 1:
        import ssl
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Receiver, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.contextmanager
def receiver(*certificate: str) -> Iterator[int]:
    """The port of a receiver whose paths behave differently, in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIXED, *certificate], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


# Many endpoints


def registered(count: int, active: int, port: int) -> list[tuple[Any, ...]]:
    """Rows about `count` endpoints in the table, of which `active` are sent to."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/q.db"
        app = Laneway(store, durability="memory")
        app.push("push.*")
        url = f"http://127.0.0.1:{port}/"
        before = time.process_time()
        began = time.perf_counter()
        for first in range(0, count, PAGE):
            app.endpoints.set_many(
                (f"push.{n}", {"url": url, "allow_private": True})
                for n in range(first, min(first + PAGE, count))
            )
        rows: list[tuple[Any, ...]] = [
            ("registered, endpoints/s", count, count / (time.perf_counter() - began)),
            ("registered, CPU µs each", count, (time.process_time() - before) / count * 1e6),
            ("table, bytes each", count, _size(folder) / count),
        ]
        names = [f"push.{random.randrange(count)}" for _ in range(1_000)]
        before = time.process_time()
        for name in names:
            app.endpoint(name).info()
        rows.append(("look-up, CPU µs", count, (time.process_time() - before) / 1_000 * 1e6))
        rows += [(name, count, figure) for name, figure in asyncio.run(_pages(app, count))]
        app.publish_many(Message(f"push.{n}", BODY) for n in range(active))
        app.close()
        sent = subprocess.run(
            [sys.executable, "-m", "bench.push_endpoints", store, str(active)],
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        rows += [(name, active, figure) for name, figure in json.loads(sent.stdout)]
        return rows


PAGES = {
    "/v1/endpoints, CPU ms": "/v1/endpoints?limit=50",
    "/v1/endpoints in the middle, CPU ms": "/v1/endpoints?limit=50&after={middle}",
    "/endpoints, CPU ms": "/endpoints",
    "/endpoint, CPU ms": "/endpoint?topic={middle}",
}


async def _pages(app: Laneway, count: int) -> list[tuple[str, float]]:
    """Medians of ten requests each, to a gateway in this process without a server."""
    gateway = Gateway(app, is_open=True, extensions=[Dashboard(app)])
    found = []
    for name, path in PAGES.items():
        times = []
        for _ in range(10):
            before = time.process_time()
            status, _body = await request(gateway, path.format(middle=f"push.{count // 2}"))
            times.append((time.process_time() - before) * 1e3)
            assert status == 200, (path, status)
        found.append((name, statistics.median(times)))
    await asyncio.to_thread(gateway.close)
    return found


def _send_all(store: str, count: int) -> list[tuple[str, float]]:
    """What a process does that only sends. "Grew" is beside its start, with all modules loaded."""
    app = Laneway(store, durability="memory")
    app.push("push.*")
    app.run_worker(burst=True, concurrency=1, max_messages=1)
    memory, began, before = _resident(), time.perf_counter(), time.process_time()
    summary = app.run_worker(burst=True, concurrency=64)
    assert summary.acked == count - 1, summary
    return [
        ("sent to, requests/s", count / (time.perf_counter() - began)),
        ("sent to, CPU µs each", (time.process_time() - before) / count * 1e6),
        ("sender grew by, MB", (_resident() - memory) / 1e6),
        ("sender's most, MB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
    ]


def _size(folder: str) -> int:
    return sum(
        each.stat().st_size for each in Path(folder).glob("q.db*") if each.suffix != ".db-shm"
    )


def _resident() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


# Bad neighbors


ROUNDS = 3
"""The runs with and without bad endpoints take turns, so that both meet the same machine."""

LOOKS = 100
"""Every so many messages it is looked how many slots the hanging endpoint has, also without one."""


def beside_bad_ones(seconds: float, rate: float, port: int) -> list[tuple[Any, ...]]:
    """
    How long the messages of good endpoints take, by themselves, and beside one that hangs and one
    that answers 503: how long each takes in `ROUNDS` runs of each kind.

    The control is beside two that have as many messages waiting and never get one, as their topics
    are paused.
    """
    kinds: dict[str, tuple[str, ...]] = {
        "none": (),
        "control: two are paused": ("paused1", "paused2"),
        "one hangs, one answers 503": ("hang", "busy"),
    }
    urls = {f"push.good{n}": f"http://127.0.0.1:{port}/" for n in range(998)}
    others = {
        name: {f"push.{each}": f"http://127.0.0.1:{port}/{each}" for each in bad}
        for name, bad in kinds.items()
    }
    return [
        (*row, max(run.held for run in runs), max(run.burnt for run in runs))
        for row, runs in _compared(urls, others, seconds, rate)
    ]


NAMES = 50
HANG_SECONDS = 20.0
"""How long the system's resolver waits for name servers that do not answer, with its defaults."""


def beside_hanging_names(seconds: float, rate: float, port: int) -> list[tuple[Any, ...]]:
    """As `beside_bad_ones`, beside `NAMES` endpoints whose names' servers never answer."""
    urls = {f"push.good{n}": f"http://good{n}.example:{port}/" for n in range(50)}
    hanging = {f"push.hang{n}": f"http://hang{n}.example:{port}/" for n in range(NAMES)}
    others = {
        "none": {},
        f"control: {NAMES} are paused": dict(
            zip((f"push.paused{n}" for n in range(NAMES)), hanging.values(), strict=True)
        ),
        f"{NAMES} names hang": hanging,
    }
    return [
        (*row, sum(run.failed for run in runs), sum(run.opened for run in runs))
        for row, runs in _compared(urls, others, seconds, rate)
    ]


def _look_up(name: str) -> list[str]:
    if name.startswith("hang"):
        time.sleep(HANG_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return ["127.0.0.1"]


def _compared(
    good: dict[str, str], others: dict[str, dict[str, str]], seconds: float, rate: float
) -> Iterator[tuple[tuple[Any, ...], list[Sent]]]:
    """A row for each kind of others, and its runs."""
    found: dict[str, list[Sent]] = {name: [] for name in others}
    for _ in range(ROUNDS):
        for name, bad in others.items():
            found[name].append(_sent(seconds / ROUNDS, rate, good, bad))
    first = 0.0
    for name, runs in found.items():
        waits = sorted(each for run in runs for each in run.waits)
        p99 = waits[int(len(waits) * 0.99)]
        first = first or p99
        cpu = sum(run.cpu for run in runs) / len(waits) * 1e6
        yield (name, len(waits), waits[len(waits) // 2], p99, p99 / first, cpu), runs


class Sent(NamedTuple):
    """
    Milliseconds of the good messages, seconds of CPU of publisher and sender, slots that the
    hanging endpoint held, attempts that 503 used; of the good ones failed attempts and open
    breakers.
    """

    waits: list[float]
    cpu: float
    held: int
    burnt: int
    failed: int
    opened: int


def _sent(seconds: float, rate: float, good: dict[str, str], bad: dict[str, str]) -> Sent:
    """Send `rate` messages a second to good endpoints; URLs by topic."""
    with tempfile.TemporaryDirectory() as folder:
        app = Laneway(f"sqlite:///{folder}/q.db", durability="memory")
        app.push("push.*")
        (handler, *_) = app.runtime.handlers.by_pattern()
        handler.settings.lookup = _look_up  # type: ignore[attr-defined]
        for topic, url in (good | bad).items():
            log = "all" if topic in good else "failures"
            app.endpoint(topic, url=url, allow_private=True, timeout=2, log=log)
        for topic in bad:
            app.publish_many(Message(topic, BODY) for _ in range(4_000 // (len(bad) or 1)))
            if topic.startswith("push.paused"):
                app.topic(topic).pause()
        worker = app.worker(concurrency=64)
        thread = threading.Thread(target=worker.run)
        thread.start()
        names = list(good)
        published: dict[str, float] = {}
        began, used = time.monotonic(), time.process_time()
        number, held = 0, 0
        while (now := time.monotonic()) < began + seconds:
            time.sleep(max(0.0, began + number / rate - now))
            at = time.time()
            receipt = app.publish(names[number % len(names)], BODY)
            published[receipt.id] = at
            number += 1
            if number % LOOKS == 0:
                held = max(held, app.topic("push.hang").stats().leased)
        used = time.process_time() - used
        burnt = max((each.attempt - 1 for each in app.topic("push.busy").peek(100)), default=0)
        worker.stop()
        thread.join()
        waits = [
            (each.at + each.milliseconds["ended"] / 1_000 - published[each.id]) * 1_000
            for each in _attempts(app, result="acked")
        ]
        failed = sum(each.topic in good for each in _attempts(app, result="retried"))
        opened = sum(each.topic in good for each in app.endpoints.list(limit=10_000, state="open"))
        app.close()
        return Sent(waits, used, held, burnt, failed, opened)


def _attempts(app: Laneway, result: str) -> Iterator[Any]:
    after = None
    while True:
        page = app.endpoints.attempts("push.*", limit=1_000, result=result, after=after)
        yield from page.attempts
        after = page.next
        if after is None:
            return


# A dead endpoint

FASTER = 100
"""The breaker's times are shortened so much."""


def dead_endpoint(waiting: int, minutes: float, port: int) -> list[tuple[Any, ...]]:
    """Requests to an endpoint that answers 500, and how soon it is found to answer again."""
    first, most = breaker.FIRST_SECONDS, breaker.MAX_SECONDS
    breaker.FIRST_SECONDS, breaker.MAX_SECONDS = first / FASTER, most / FASTER
    try:
        with tempfile.TemporaryDirectory() as folder:
            app = Laneway(f"sqlite:///{folder}/q.db", durability="memory")
            app.push("push.*")
            url = f"http://127.0.0.1:{port}/"
            endpoint = app.endpoint("push.x", url=url + "dead", allow_private=True)
            app.publish_many(Message("push.x", BODY) for _ in range(waiting))
            worker = app.worker(concurrency=64)
            thread = threading.Thread(target=worker.run)
            thread.start()
            time.sleep(minutes * 60 / FASTER)
            requests = len(endpoint.attempts(limit=1_000).attempts)
            worker.stop()  # what is left in the log is written
            thread.join()
            requests = max(requests, len(endpoint.attempts(limit=1_000).attempts))
            app.close()
    finally:
        breaker.FIRST_SECONDS, breaker.MAX_SECONDS = first, most
    return [(waiting, minutes, requests)]


# Cold TLS


def cold_tls(count: int) -> list[tuple[Any, ...]]:
    """Requests with a new connection each, RSA-2048, four at a time."""
    with tempfile.TemporaryDirectory() as folder:
        path, certificate = make_certificate(Path(folder))
        with receiver(str(path)) as port:
            began, before = time.perf_counter(), time.process_time()
            asyncio.run(_send_cold(count, port, certificate))
            rate = count / (time.perf_counter() - began)
            return [(count, rate, (time.process_time() - before) / count * 1e3)]


async def _send_cold(count: int, port: int, certificate: str) -> None:
    loop = asyncio.get_running_loop()
    transport = Transport(loop, None)
    left = iter(range(count))
    destination = Destination(
        url=f"https://127.0.0.1:{port}/close",
        host="127.0.0.1",
        settings=Settings(timeout_ms=15_000, connect_timeout_ms=5_000, ca=certificate, http2=False),
    )

    async def several() -> None:
        for _ in left:
            done: asyncio.Future[Any] = loop.create_future()
            transport.start(
                Request(
                    destination=destination,
                    headers=[b"content-type: application/json", b"expect:"],
                    body=BODY,
                    finished=done.set_result,
                )
            )
            answer = await done
            assert answer.status == 200, answer

    await asyncio.gather(*(several() for _ in range(4)))
    transport.close()


def make_certificate(folder: Path) -> tuple[Path, str]:
    """A file with a key and its certificate, and that certificate in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    found = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    text = found.public_bytes(serialization.Encoding.PEM).decode()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    path = folder / "receiver.pem"
    path.write_text(secret + text)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
    return path, text


if __name__ == "__main__":
    print(json.dumps(_send_all(sys.argv[1], int(sys.argv[2]))))
