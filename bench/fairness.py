"""Fairness: what a flood of one topic does to 999 quiet ones, Jain's index, and the tiers' shares."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter

from bench.common import BODY, folder, line, options, pick, process, publish_table
from fairlead import Fairlead, Message
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Draft, Settlement

WORKER = """
import asyncio, sys, time
from fairlead import Fairlead
app = Fairlead(sys.argv[1])
waits = []
@app.handler("*")
async def note(message):
    if message.body == 2:
        print("at work", flush=True)
    elif message.body:
        waits.append(time.time() - message.published_at)
    await asyncio.sleep(0.002)
app.run_worker(concurrency=50)
waits.sort()
print(len(waits), waits[len(waits) // 2] * 1e3, waits[int(len(waits) * 0.99)] * 1e3, flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    flood = pick(chosen, 1_000_000, 100_000, 1_000)
    seconds = pick(chosen, 15.0, 6.0, 1.0)
    quiet = waits(0, seconds, chosen.seed)
    flooded = waits(flood, seconds, chosen.seed)
    rows: list[tuple[object, ...]] = [
        ("quiet topics' wait p50, ms", quiet[0], flooded[0], flooded[0] / quiet[0]),
        ("quiet topics' wait p99, ms", quiet[1], flooded[1], flooded[1] / quiet[1]),
    ]
    publish_table(
        "fairness", chosen, ("", "without", f"one of 1,000 with {flood:,}", "ratio"), rows, "999 quiet topics, 500 messages/s, 2 ms handlers"
    )
    jain = lowest_jain(pick(chosen, 200, 50, 10), pick(chosen, 1_000, 200, 20))
    shares = tier_shares(pick(chosen, 20_000, 5_000, 2_000))
    rows = [
        ("Jain's index, lowest of all windows with 20 deliveries each", jain, ">= 0.99"),
        *((f"share of {t}", s, f"{w:.0%}") for t, s, w in shares),
    ]
    publish_table("shares", chosen, ("", "measured", "target"), rows, "leases of 1 to 100")


def waits(flood: int, seconds: float, seed: int) -> tuple[float, float]:
    """p50 and p99 of the quiet topics' waiting time, in milliseconds."""
    draw = random.Random(seed)
    with folder() as place:
        url = f"sqlite:///{place}/q.db"
        app = Fairlead(url)
        app.publish("first", 2)
        app.publish_many((Message("flood", 0) for _ in range(flood)), progress=False)
        with process(WORKER, url) as worker:
            line(worker)
            stop = threading.Event()
            end = time.monotonic() + seconds
            due = time.monotonic()
            while time.monotonic() < end:
                app.publish(f"quiet.{draw.randrange(999)}", 1)
                due += draw.expovariate(500)
                stop.wait(max(0.0, due - time.monotonic()))
            worker.send_signal(signal.SIGTERM)
            number, p50, p99 = line(worker).split()
        assert int(number) > seconds * 300, "the quiet topics were served"
        app.close()
    return float(p50), float(p99)


def lowest_jain(topics: int, rounds: int) -> float:
    """Over every window of the hand-outs in which each of the equal, backlogged topics has at least 20."""
    engine = open_engine("sqlite://", Settings())
    for _ in range(25 + rounds // 10):
        engine.put([Draft(f"t.{n}", BODY) for n in range(topics)])
    draw = random.Random(topics)
    order: list[str] = []
    while leases := engine.lease(draw.randint(1, 100)).leases:
        order += [lease.topic for lease in leases]
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    order = order[: topics * 25]  # while all are backlogged
    lowest = 1.0
    for first in range(0, len(order) - topics * 20, max(1, topics // 7)):
        window = order[first : first + topics * 21]
        counts = list(Counter(window).values())
        if len(counts) == topics and min(counts) >= 20:
            lowest = min(lowest, sum(counts) ** 2 / (topics * sum(count * count for count in counts)))
    return lowest


def tier_shares(deliveries: int) -> list[tuple[str, float, float]]:
    """(tier, its part, its target) while all three have work, by workers that lease different numbers."""
    engine = open_engine("sqlite://", Settings())
    for tier in ("high", "mid", "low"):
        engine.policy_set("code", f"{tier}.*", {"tier": tier})
        for first in range(0, deliveries, 500):
            engine.put([Draft(f"{tier}.{n % 50}", BODY) for n in range(first, first + 500)])
    draw = random.Random(deliveries)
    given: Counter[str] = Counter()
    while given.total() < deliveries:
        leases = engine.lease(draw.choice([1, 2, 7, 100])).leases
        given.update(lease.topic.partition(".")[0] for lease in leases)
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    return [(tier, given[tier] / given.total(), target) for tier, target in (("high", 0.6), ("mid", 0.3), ("low", 0.1))]


if __name__ == "__main__":
    main()
