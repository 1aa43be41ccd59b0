"""
Push: requests a second of one sender, beside what its HTTP client and aiohttp reach by themselves,
with the same receiver, payload and number in flight, one after the other in one run.

- `laneway`: messages in the store to answered requests, through the public API: signed, with the
  address guard, the breaker and the adaptive limit.
- `pycurl`: the same requests by a bare CurlMulti, which is what Laneway's transport is built on.
- `aiohttp`: the same requests by an aiohttp session.

Then what many endpoints cost: registering, looking up, sending to; what endpoints that hang or
answer 503, and names whose servers hang, cost the others; how many requests a dead one gets; and
cold TLS.

CPU is that of the sending process. The receiver is a process of its own on the same machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

from bench import push_endpoints as bad
from bench.common import options, pick, publish_table
from laneway import Laneway, Message
from laneway.push.address_guard import Guard
from laneway.push.secret_store import new_key
from laneway.push.transport import Destination, Request, Settings, Transport

IN_FLIGHT = 64
ACTIVE = 50_000
BODY = bad.BODY


def timed(count: int, call: Callable[[], None]) -> tuple[float, float]:
    """Requests a second, and µs of CPU for each."""
    began, used = time.perf_counter(), time.process_time()
    call()
    return count / (time.perf_counter() - began), (time.process_time() - used) / count * 1e6


def with_laneway(port: int, count: int, endpoints: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        app = Laneway(f"sqlite:///{folder}/q.db", durability="memory")
        app.push("push.*")
        url = f"http://127.0.0.1:{port}/hooks"
        app.endpoints.set_many(
            (f"push.{n}", {"url": url, "allow_private": True, "log": "failures"})
            for n in range(endpoints)
        )
        app.publish_many(
            Message(f"push.{n % endpoints}", BODY, headers={"content-type": "application/json"})
            for n in range(count)
        )
        found = timed(count, lambda: check(app, count))
        app.close()
        return found


def check(app: Laneway, count: int) -> None:
    summary = app.run_worker(burst=True, concurrency=IN_FLIGHT)
    assert summary.acked == count, summary


def with_pycurl(port: int, count: int, _: int) -> tuple[float, float]:
    async def send() -> None:
        transport = Transport(asyncio.get_running_loop(), Guard(["127.0.0.0/8"]))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left, running = count, 0
        destination = Destination(
            url=f"http://127.0.0.1:{port}/hooks",
            host="127.0.0.1",
            settings=Settings(timeout_ms=15_000, connect_timeout_ms=5_000, http2=False),
        )

        def begin() -> None:
            nonlocal left, running
            left, running = left - 1, running + 1
            transport.start(
                Request(
                    destination=destination,
                    headers=[b"content-type: application/json", b"expect:"],
                    body=BODY,
                    finished=ended,
                )
            )

        def ended(answer: Any) -> None:
            nonlocal running
            assert answer.status == 200, answer
            running -= 1
            if left:
                begin()
            elif not running:
                done.set_result(None)

        for _ in range(min(IN_FLIGHT, count)):
            begin()
        await done
        transport.close()

    return timed(count, lambda: asyncio.run(send()))


def with_aiohttp(port: int, count: int, _: int) -> tuple[float, float] | None:
    try:
        import aiohttp
    except ImportError:
        return None

    async def send() -> None:
        left = iter(range(count))
        async with aiohttp.ClientSession() as session:

            async def several() -> None:
                for _ in left:
                    async with session.post(
                        f"http://127.0.0.1:{port}/hooks",
                        data=BODY,
                        headers={"content-type": "application/json"},
                    ) as answer:
                        assert answer.status == 200
                        await answer.read()

            await asyncio.gather(*(several() for _ in range(IN_FLIGHT)))

    return timed(count, lambda: asyncio.run(send()))


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--names", action="store_true", help="only what names whose servers hang cost the others"
    )
    parser.add_argument(
        "--endpoints",
        type=int,
        metavar="N",
        help="only what N endpoints in the table cost, of which 50,000 at most are sent to",
    )


def main() -> None:
    chosen = options(__doc__ or "push", _add)
    os.environ["LANEWAY_SECRETS_KEY"] = new_key()
    if chosen.endpoints:
        with bad.receiver() as port:
            many_endpoints(chosen, [(chosen.endpoints, min(chosen.endpoints, ACTIVE))], port)
        return
    if chosen.names:
        with bad.receiver() as port:
            hanging(chosen, port)
        return
    count, endpoints = pick(chosen, (50_000, 1_000), (5_000, 1_000), (200, 20))
    rows: list[tuple[Any, ...]] = []
    rates: dict[str, float] = {}
    with bad.receiver() as port:
        for name, run in (
            ("aiohttp", with_aiohttp),
            ("pycurl", with_pycurl),
            ("laneway", with_laneway),
        ):
            found = run(port, count, endpoints)
            if found is None:
                print("aiohttp is not installed: pip install -r bench/requirements.txt")
                continue
            rates[name] = found[0]
            beside = ("aiohttp", "pycurl")
            ratios = (found[0] / rates[each] if each in rates else "-" for each in beside)
            rows.append((name, *found, *ratios))
    publish_table(
        "push",
        chosen,
        ("sender", "requests/s", "CPU µs each", "of aiohttp's", "of pycurl's"),
        rows,
        f"{count:,} requests to {endpoints:,} endpoints, {IN_FLIGHT} in flight",
    )
    more(chosen)


def many_endpoints(chosen: Any, sizes: Iterable[tuple[int, int]], port: int) -> None:
    rows = []
    for known, active in sizes:
        rows += [(f"{known:,}", *row) for row in bad.registered(known, active, port)]
    publish_table(
        "push_endpoints",
        chosen,
        ("in the table", "figure", "endpoints", "value"),
        rows,
        "plain HTTP, 64 in flight, one message each, sent by a process of its own",
    )


def hanging(chosen: Any, port: int) -> None:
    seconds, rate = pick(chosen, (60, 50), (30, 50), (1, 50))
    publish_table(
        "push_names",
        chosen,
        ("beside", "sent", "p50 ms", "p99 ms", "ratio", "CPU µs each", "failed", "breakers open"),
        bad.beside_hanging_names(seconds, rate, port),
        f"{rate} messages a second to 50 good endpoints for {seconds} s; a look-up of a hanging"
        f" name takes {bad.HANG_SECONDS:g} s; failures and breakers are those of the good",
    )


def more(chosen: Any) -> None:
    with bad.receiver() as port:
        sizes = pick(
            chosen,
            ((1_000, 1_000), (50_000, ACTIVE), (1_000_000, ACTIVE)),
            ((2_000, 2_000),),
            ((50, 50),),
        )
        many_endpoints(chosen, sizes, port)
        seconds, rate = pick(chosen, (60, 200), (6, 100), (1, 50))
        publish_table(
            "push_neighbors",
            chosen,
            (
                "bad",
                "sent",
                "p50 ms",
                "p99 ms",
                "ratio",
                "CPU µs each",
                "slots of the hanging",
                "attempts of 503",
            ),
            bad.beside_bad_ones(seconds, rate, port),
            f"{rate} messages a second to 998 good endpoints for {seconds} s; timeouts of 2 s",
        )
        hanging(chosen, port)
        waiting, minutes = pick(chosen, (100_000, 10), (1_000, 10), (100, 1))
        publish_table(
            "push_dead",
            chosen,
            ("waiting", "minutes", "requests"),
            bad.dead_endpoint(waiting, minutes, port),
            f"the breaker's times are {bad.FASTER} times shorter",
        )
    publish_table(
        "push_tls",
        chosen,
        ("requests", "requests/s", "CPU ms each"),
        bad.cold_tls(pick(chosen, 1_000, 200, 20)),
        "TLS 1.3, RSA-2048, a new connection each, receiver on the same machine",
    )


if __name__ == "__main__":
    main()
