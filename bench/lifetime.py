"""
Distinct topics over a lifetime leave nothing behind: waves of new topics, and the size of the store
after each.
"""

from __future__ import annotations

import argparse

from bench.common import BODY, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement

START = 1_700_000_000_000_000


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--topics", type=float, help="distinct topics of all waves together")

    chosen = options(__doc__ or "", more)
    topics = pick(chosen, 100_000, 20_000, 500)
    waves = -(-int(chosen.topics) // topics) if chosen.topics else pick(chosen, 20, 5, 3)
    now = START
    rows = []
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        engine.policy_set("code", "*", {"rate": 10, "concurrency": 2}, now_us=now)
        for wave in range(1, waves + 1):
            for first in range(0, topics, 500):
                engine.put(
                    [Draft(f"w{wave}.{n}", BODY) for n in range(first, first + 500)], now_us=now
                )
                now += 1_000
                leases = engine.lease(500, now_us=now).leases
                engine.settle(
                    [Settlement(lease.handle, lease.fence) for lease in leases], now_us=now
                )
            while leases := engine.lease(500, now_us=now).leases:
                engine.settle(
                    [Settlement(lease.handle, lease.fence) for lease in leases], now_us=now
                )
                now += 1_000
            now += 61_000_000  # past the longest lease: its batch's event goes too
            engine.tick(now_us=now)
            while engine.overview(now_us=now).topics:
                engine.tick(now_us=now)
            rows.append((wave * topics, place.left(), place.size()))
        engine.close()
    shown = rows if len(rows) <= 8 else rows[:: len(rows) // 5] + rows[-1:]
    publish_table(
        "lifetime",
        chosen,
        ("topics so far", "entries left", "bytes"),
        shown,
        "each topic with a rate and a concurrency, one message each",
    )
    assert all(left == 0 for _, left, _ in rows), "something was left behind"


if __name__ == "__main__":
    main()
