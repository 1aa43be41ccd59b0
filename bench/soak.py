"""
An hour at half the highest rate, with topics that come and go, policies that change, and a worker
killed each minute: does anything grow?

Before, the highest rate is measured: one publisher that pauses while 20,000 messages wait, and two
workers.

In the middle of the first sixth the publisher publishes messages of 4 seconds at once: the largest
backlog comes early, and what keeps the size of the largest backlog, such as SQLite's file, has it
from then on.

A quantity is flat if its mean over the last sixth of the run is at most the largest sample of the
second sixth, and at least the smallest: in an hour, minutes 50 to 60 and 10 to 20. Only one worker
is killed, again and again; the memory that is measured is the other's, which lives from beginning
to end. Beside its resident memory stands what of it is in use: the blocks of Python's allocator,
and the bytes that came from `malloc`. If the former grows and the latter does not, nothing leaks:
free memory lies between blocks that are in use.
"""

from __future__ import annotations

import argparse
import math
import os
import sqlite3
import statistics
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

from bench.common import (
    ServerStore,
    Store,
    folder,
    line,
    options,
    pick,
    process,
    publish_table,
    store,
    usual,
)
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Overview, Settings

IN_USE = """
import ctypes, os, sys, threading, time

def write_in_use(path):
    class Mallinfo2(ctypes.Structure):
        _fields_ = [(f"field{n}", ctypes.c_size_t) for n in range(10)]
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = Mallinfo2
    except (AttributeError, OSError):
        mallinfo2 = None
    while True:
        blocks = sys.getallocatedblocks()
        info = mallinfo2 and mallinfo2()
        malloc = info.field4 + info.field7 if info else ""  # in mappings of their own, in arenas
        with open(path + ".new", "w") as file:
            file.write(f"{blocks} {malloc}")
        os.replace(path + ".new", path)
        time.sleep(1)

def begin(path):
    threading.Thread(target=write_in_use, args=(path,), daemon=True).start()
"""
"""
What a program writes about itself each second: the blocks that Python's allocator has given out,
and the bytes that `malloc` has.
"""

WORKER = """
import sys
from laneway import Laneway
app = Laneway(sys.argv[1], durability=sys.argv[2])
@app.handler("*")
async def nothing(message): pass
app.engine
if len(sys.argv) > 3:
    begin(sys.argv[3])
print("ready", flush=True)
app.run_worker(concurrency=100)
"""

PUBLISHER = """
import sys, time
from collections import deque
from laneway import Laneway, Message
url, durability, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
app = Laneway(url, durability=durability)
engine, body, own = app.engine, "x" * 98, deque()
engine.policy_set("code", "*", {"lease": 10})
if len(sys.argv) > 5:
    begin(sys.argv[5])
print("ready", flush=True)
began = time.monotonic()
published = changes = at_once = 0
while (elapsed := time.monotonic() - began) < seconds:
    if elapsed >= changes:  # each second
        changes += 1
        own.append(f"soak.{int(elapsed // 5)}.{changes}")
        engine.policy_set("operator", own[-1], {"weight": changes % 5 + 1})
        engine.policy_set("operator", "soak.*", {"weight": changes % 3 + 1})
        if len(own) > 30:
            engine.policy_reset("operator", own.popleft())
    if rate and not at_once and elapsed >= seconds / 12:
        at_once = int(4 * rate)
        app.publish_many(
            (Message(f"soak.{int(elapsed // 5)}.{n % 1_000}", body) for n in range(at_once)),
            progress=False,
        )
    if rate:
        is_due = published < rate * elapsed
    else:
        is_due = published % 10_000 or engine.overview().waiting < 20_000
    if not is_due:
        time.sleep(0.005)
        continue
    wave = int(elapsed // 5)
    app.publish_many(
        (Message(f"soak.{wave}.{n % 1_000}", body) for n in range(published, published + 500)),
        progress=False,
    )
    published += 500
for topic in own:
    engine.policy_reset("operator", topic)
print(published + at_once, flush=True)
"""

COLUMNS = ("", "minutes 10 to 20", "at least", "at most", "last 10 minutes", "flat")


def add(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--minutes", type=float, help="how long (60; --quick: 6)")
    parser.add_argument("--rate", type=float, help="messages per second (half the highest)")


def main() -> None:
    chosen = options(__doc__ or "", add)
    minutes = chosen.minutes or pick(chosen, 60.0, 6.0, 0.1)
    rate = chosen.rate or highest(chosen, pick(chosen, 20.0, 10.0, 2.0)) / 2
    print(f"{rate:,.0f} messages a second for {minutes:g} minutes")
    soak = Soak(chosen, rate, minutes)
    soak.run()
    rows = [(name, *judged(values)) for name, values in soak.samples.items()]
    publish_table(
        "soak",
        chosen,
        COLUMNS,
        rows,
        f"{minutes:g} minutes at {rate:,.0f} messages/s, {usual(chosen)}: {soak.published:,}"
        f" published over {soak.topics:,} topics, {soak.kills} workers killed, {soak.lost} messages"
        f" lost, {soak.again:,} delivered again",
        repeats={"each minute": {name: by_minute(v) for name, v in soak.samples.items()}},
    )


def highest(chosen: Namespace, seconds: float) -> float:
    """Messages per second that a publisher and two workers pass on together."""
    durability = usual(chosen)
    with store(chosen, durability) as place, ExitStack() as stack:
        engine = open_engine(place.url, Settings())
        for _ in range(2):
            line(stack.enter_context(process(WORKER, place.url, durability)))
        publisher = stack.enter_context(
            process(PUBLISHER, place.url, durability, "0", f"{seconds}")
        )
        line(publisher)
        time.sleep(seconds / 4)  # until all of them are at full speed
        began, before = time.monotonic(), engine.overview().done
        time.sleep(seconds / 2)
        rate = (engine.overview().done - before) / (time.monotonic() - began)
        line(publisher)
        engine.close()
    return rate


class Soak:
    """One run and its samples: for each quantity its values, one every few seconds."""

    def __init__(self, chosen: Namespace, rate: float, minutes: float) -> None:
        self.samples: dict[str, list[float]] = {}
        self.published = self.kills = self.lost = self.again = 0
        self.topics = math.ceil(minutes * 12) * 1_000  # as in PUBLISHER: new ones every 5 s
        self._chosen = chosen
        self._rate = rate
        self._seconds = minutes * 60
        self._every = min(5.0, self._seconds / 60)

    def run(self) -> None:
        """Run it and take samples. Raises AssertionError if a message was lost."""
        chosen, durability = self._chosen, usual(self._chosen)
        with store(chosen, durability) as place, folder() as in_use, ExitStack() as stack:
            engine = open_engine(place.url, Settings())
            arguments = (place.url, durability)
            own = str(in_use / "worker")
            worker = stack.enter_context(process(IN_USE + WORKER, *arguments, own))
            line(worker)
            rate, seconds, own = str(self._rate), str(self._seconds), str(in_use / "publisher")
            publisher = stack.enter_context(
                process(IN_USE + PUBLISHER, *arguments, rate, seconds, own)
            )
            line(publisher)
            measured = {in_use / "publisher": publisher.pid, in_use / "worker": worker.pid}
            began = time.monotonic()
            time.sleep(self._every / 2)  # each sample is taken in the middle of a wave of topics
            killed, minute = 0.0, 1
            with ExitStack() as victim:
                while publisher.poll() is None and (
                    (elapsed := time.monotonic() - began) < self._seconds
                ):
                    if elapsed >= killed:
                        self.kills += bool(killed)
                        victim.close()  # SIGKILL
                        victim.enter_context(process(WORKER, *arguments))
                        killed += min(60.0, self._seconds / 6)
                    overview = self._sample(engine, place, measured)
                    if elapsed >= minute * 60:
                        so_far = overview.published / elapsed
                        print(
                            f"minute {minute}: {so_far:,.0f} messages/s so far,"
                            f" {overview.waiting:,} wait",
                            flush=True,
                        )
                        minute += 1
                    passed = time.monotonic() - began
                    time.sleep(self._every - (passed - self._every / 2) % self._every)
            self.published = int(line(publisher))
            self._check(engine)
            engine.close()

    def _sample(self, engine: FullEngine, place: Store, measured: dict[Path, int]) -> Overview:
        values: dict[str, float] = {}
        for in_use, pid in measured.items():
            name = in_use.name
            values[f"{name}: memory, MB"] = memory(pid)
            if in_use.exists():
                blocks, *malloc = map(int, in_use.read_text().split())
                values[f"{name}: blocks in use, thousands"] = blocks / 1e3
                if malloc:
                    values[f"{name}: malloc in use, MB"] = malloc[0] / 1e6
            values[f"{name}: descriptors"] = descriptors(pid)
        if isinstance(place, ServerStore):
            (server,) = place.servers
            values["server: memory in use, MB"] = int(server.info("used_memory")) / 1e6
            values["server: resident memory, MB"] = memory(server.pid)
            values["server: keys"] = server.run("DBSIZE")
            values["server: descriptors"] = descriptors(server.pid)
        else:
            path = Path(place.url.removeprefix("sqlite:///"))
            values["file, MB"] = path.stat().st_size / 1e6
            values["file: in use, MB"] = in_use_of(path) / 1e6
            values["write-ahead log, MB"] = Path(f"{path}-wal").stat().st_size / 1e6
        overview = engine.overview()
        values["topics with something"] = overview.topics
        values["messages waiting"] = overview.waiting
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)
        return overview

    def _check(self, engine: FullEngine) -> None:
        """Wait until everything is handled and count what was lost."""
        until = time.monotonic() + 60
        while (overview := engine.overview()).waiting + overview.leased:
            assert time.monotonic() < until, f"not drained: {overview}"
            time.sleep(0.1)
        self.lost = self.published - overview.done
        self.again = overview.delivered - overview.done
        assert not self.lost, f"{self.lost} of {self.published} messages were lost"


def judged(values: list[float]) -> Iterator[object]:
    """The row of a quantity, as in COLUMNS."""
    sixth = max(1, len(values) // 6)
    second, last = values[sixth : 2 * sixth], statistics.mean(values[-sixth:])
    yield statistics.mean(second)
    yield min(second)
    yield max(second)
    yield last
    yield "yes" if min(second) <= last <= max(second) else "no"


def by_minute(values: list[float]) -> list[float]:
    """The means of 60 equal parts of the run."""
    size = len(values) / 60
    return [
        round(
            statistics.mean(values[int(n * size) : max(int((n + 1) * size), int(n * size) + 1)]), 3
        )
        for n in range(min(60, len(values)))
    ]


def in_use_of(path: Path) -> int:
    """The bytes of a SQLite file without its free pages."""
    with closing(sqlite3.connect(path)) as raw:
        pages, free, size = (
            raw.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def memory(pid: int) -> float:
    """The resident memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descriptors(pid: int) -> int:
    """The open file descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


if __name__ == "__main__":
    main()
