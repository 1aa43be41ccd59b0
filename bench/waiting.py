"""The cost of 1,000 idle workers for a server, and the time until one of them has a message."""

from __future__ import annotations

import statistics
import threading
import time

from bench.common import ServerStore, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement


def main() -> None:
    chosen = options(__doc__ or "")
    if chosen.engine == "sqlite":
        chosen.engine = "valkey"
    workers = pick(chosen, 1_000, 1_000, 20)
    seconds = pick(chosen, 60.0, 20.0, 1.0)
    with store(chosen) as place:
        assert isinstance(place, ServerStore)
        engine = open_engine(place.url, Settings(durability="memory"))
        started: list[float] = []
        stop = threading.Event()

        def work() -> None:
            """Wait, lease and settle, as a worker does."""
            while not stop.is_set():
                if engine.wait(600.0) and not stop.is_set():
                    leases = engine.lease(10).leases
                    started.extend(time.perf_counter() - float(lease.body) for lease in leases)
                    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])

        threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        while sum(int(server.info("pubsub_clients") or 0) for server in place.servers) < workers:
            time.sleep(0.1)
        time.sleep(min(5.0, seconds))  # until all workers wait
        before, calls = place.cpu(), _calls(place)
        time.sleep(seconds)
        idle = (place.cpu() - before) / seconds * 100
        calls = (_calls(place) - calls) / seconds
        for n in range(pick(chosen, 300, 100, 5)):
            engine.put([Draft(f"t.{n}", b"%f" % time.perf_counter())])
            time.sleep(0.02)
        time.sleep(0.2)
        waits = sorted(wait * 1e3 for wait in started)
        stop.set()
        engine.interrupt()
        for thread in threads:
            thread.join(30)
        engine.close()
    publish_table(
        "waiting",
        chosen,
        ("idle workers", "server, % of a core", "calls/s", "p50 ms", "p99 ms"),
        [(workers, idle, calls, statistics.median(waits), waits[int(len(waits) * 0.99)])],
        "simulated workers, threads of one process",
    )


def _calls(place: ServerStore) -> int:
    return sum(int(server.info("total_commands_processed")) for server in place.servers)


if __name__ == "__main__":
    main()
