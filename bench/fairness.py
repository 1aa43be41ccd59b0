"""
Fairness: the effect of a flood of one topic on 999 quiet ones, Jain's index, and the tiers' shares.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from argparse import Namespace
from collections import Counter, deque

from bench.common import BODY, line, options, pick, process, publish_table, spread, store, usual
from laneway import Laneway, Message
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement

WORKER = """
import asyncio, sys, time
from laneway import Laneway
app = Laneway(sys.argv[1])
waits = []
@app.handler("*")
async def note(message):
    if message.body == 2:
        print("at work", flush=True)
    elif message.body:
        waits.append(time.time() - message.published_at)
    await asyncio.sleep(0.002)
app.run_worker(concurrency=50)
print(*waits, flush=True)
"""


WINDOW = 20
"""Deliveries that each topic must have in a window that is judged by Jain's index."""
SHARE_WINDOW = 2_000
PATIENCE = 20.0
"""
Seconds that the quiet topics have after the last publish, and what a message counts that was not
served then.
"""


def main() -> None:
    chosen = options(__doc__ or "")
    flood = pick(chosen, 1_000_000, 100_000, 1_000)
    seconds = pick(chosen, 15.0, 6.0, 1.0)
    runs = [
        (waits(chosen, 0, seconds, chosen.seed + n), waits(chosen, flood, seconds, chosen.seed + n))
        for n in range(pick(chosen, 3, 1, 1))
    ]
    rows: list[tuple[object, ...]] = []
    repeats: dict[str, dict[str, dict[str, float]]] = {}
    for n, name in enumerate(("quiet topics' wait p50, ms", "quiet topics' wait p99, ms")):
        quiet, flooded = (
            spread([without[n] for without, _ in runs]),
            spread([during[n] for _, during in runs]),
        )
        rows.append((name, quiet["median"], flooded["median"], flooded["median"] / quiet["median"]))
        repeats[name] = {"without": quiet, "flood": flooded}
    publish_table(
        "fairness",
        chosen,
        ("", "without", f"one of 1,000 with {flood:,}", "ratio"),
        rows,
        f"999 quiet topics, 500 messages/s, 2 ms handlers, {usual(chosen)}; medians of {len(runs)}",
        repeats=repeats,
    )
    jain = lowest_jain(chosen, pick(chosen, 200, 50, 10), pick(chosen, 1_000, 200, 20))
    shares = tier_shares(chosen, pick(chosen, 20_000, 5_000, 2_500))
    rows = [
        ("Jain's index, lowest of all windows with 20 deliveries each", jain, ">= 0.99", "-"),
        *(
            (f"share of {tier}", share, f"{wanted:.0%}", furthest * 100)
            for tier, share, wanted, furthest in shares
        ),
    ]
    publish_table(
        "shares",
        chosen,
        ("", "measured", "target", "furthest off in any 2,000, points"),
        rows,
        "leases of 1 to 100",
    )


def waits(chosen: Namespace, flood: int, seconds: float, seed: int) -> tuple[float, float]:
    """
    p50 and p99 of the quiet topics' waiting time, in milliseconds; messages that are not served by
    the end count too.
    """
    draw = random.Random(seed)
    with store(chosen, usual(chosen)) as place:
        url = place.url
        app = Laneway(url)
        app.publish("first", 2)
        app.publish_many((Message("flood", 0) for _ in range(flood)), progress=False)
        with process(WORKER, url) as worker:
            line(worker)
            stop = threading.Event()
            published = 0
            end = time.monotonic() + seconds
            due = time.monotonic()
            while time.monotonic() < end:
                app.publish(f"quiet.{draw.randrange(999)}", 1)
                published += 1
                due += draw.expovariate(500)
                stop.wait(max(0.0, due - time.monotonic()))
            patience = time.monotonic() + PATIENCE
            while (
                any(
                    topic.waiting
                    for topic in app.topics(order="backlog", pattern="quiet.*", limit=1)
                )
                and time.monotonic() < patience
            ):
                stop.wait(0.05)
            worker.send_signal(signal.SIGTERM)
            served = sorted(float(wait) for wait in line(worker).split())
        app.close()
    waited = served + [PATIENCE] * (published - len(served))
    return waited[len(waited) // 2] * 1e3, waited[int(len(waited) * 0.99)] * 1e3


def lowest_jain(chosen: Namespace, topics: int, rounds: int) -> float:
    """
    The lowest Jain's index of all windows in which each of the equal, backlogged topics has at
    least 20 deliveries: for each delivery the shortest such window that starts there. Longer
    windows are more even. Raises RuntimeError if there is no such window.
    """
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        for _ in range(25 + rounds // 10):
            engine.put([Draft(f"t.{n}", BODY) for n in range(topics)])
        draw = random.Random(topics)
        order: list[str] = []
        while leases := engine.lease(draw.randint(1, 100)).leases:
            order += [lease.topic for lease in leases]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        engine.close()
    order = order[: topics * 25]  # while all are backlogged
    counts: Counter[str] = Counter()
    squares = 0
    below = topics  # of the topics, those that have less than 20 in the window
    window: deque[str] = deque()
    found: list[float] = []
    for topic in order:
        window.append(topic)
        squares += 2 * counts[topic] + 1
        counts[topic] += 1
        below -= counts[topic] == WINDOW
        while not below:
            found.append(len(window) ** 2 / (topics * squares))
            first = window.popleft()
            below += counts[first] == WINDOW
            squares -= 2 * counts[first] - 1
            counts[first] -= 1
    if not found:
        raise RuntimeError(
            f"no window of {len(order):,} deliveries gave each of {topics:,} equal topics {WINDOW}"
        )
    return min(found)


def tier_shares(chosen: Namespace, deliveries: int) -> list[tuple[str, float, float, float]]:
    """
    (tier, its share, its target, its largest distance from it in any 2,000 deliveries) while all
    tiers have messages, with workers that lease different numbers.
    """
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        targets = {"high": 0.6, "mid": 0.3, "low": 0.1}
        for tier in targets:
            engine.policy_set("code", f"{tier}.*", {"tier": tier})
            for first in range(0, deliveries, 500):
                engine.put([Draft(f"{tier}.{n % 50}", BODY) for n in range(first, first + 500)])
        draw = random.Random(deliveries)
        order: list[str] = []
        while len(order) < deliveries:
            leases = engine.lease(draw.choice([1, 2, 7, 100])).leases
            order += [lease.topic.partition(".")[0] for lease in leases]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        engine.close()
    return [
        (tier, order.count(tier) / len(order), target, furthest_share(order, tier, target))
        for tier, target in targets.items()
    ]


def furthest_share(order: list[str], tier: str, target: float) -> float:
    """
    The largest distance between a tier's share and its target in any 2,000 consecutive deliveries.
    """
    count = order[:SHARE_WINDOW].count(tier)
    worst = abs(count / SHARE_WINDOW - target)
    for gone, come in zip(order, order[SHARE_WINDOW:], strict=False):
        count += (come == tier) - (gone == tier)
        worst = max(worst, abs(count / SHARE_WINDOW - target))
    return worst


if __name__ == "__main__":
    main()
