"""
Short work next to long work in one worker: how soon webhooks start while imports fill its slots.

Webhooks of 2,000 topics come 30 a second; each handler takes 5 ms. Hundreds of customers import at
the same time: plain functions that sleep for seconds, two messages for each topic, one at a time.
The worker has 100 slots and the default settings. A webhook's time is that from `publish` to its
handler's start. The imports' part of the slots is the mean of those that run until the last one has
begun.
"""

from __future__ import annotations

import random
import subprocess
import threading
import time
from typing import NamedTuple

from bench.common import options, pick, process, publish_table, store
from laneway import Laneway, Message, Tier

SLOTS = 100
HOOK_TOPICS = 2_000
HOOKS_A_SECOND = 30.0
STRICT = {"urgent": Tier("strict", reserve=0.05), "mid": Tier(1)}

WORKER = """
import asyncio, sys, time
from laneway import Laneway, Message
app = Laneway(sys.argv[1])
seconds = float(sys.argv[2])

def note(what, at):
    sys.stdout.write(f"{what} {at}\\n")
    sys.stdout.flush()

@app.handler("hook.*")
async def send(message: Message) -> None:
    note("hook", time.perf_counter() - message.body)
    await asyncio.sleep(0.005)

@app.handler("import.*")
def load(message: Message) -> None:
    note("begin", time.perf_counter())
    time.sleep(seconds)
    note("end", time.perf_counter())

if __name__ == "__main__":
    app.run_worker(concurrency=int(sys.argv[3]))
"""


class Case(NamedTuple):
    """A situation: whether there are webhooks and imports, and the tier of the webhooks."""

    name: str
    has_hooks: bool = True
    has_imports: bool = True
    tiers: dict[str, Tier] | None = None


CASES = (
    Case("webhooks alone", has_imports=False),
    Case("imports alone", has_hooks=False),
    Case("both"),
    Case("both, a strict tier with a reserve", tiers=STRICT),
)


class Notes:
    """What a worker's handlers report: read by a thread until the worker has ended."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self.hooks: list[float] = []
        self.begins: list[float] = []
        self.ends: list[float] = []
        self._worker = worker
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        lists = {"hook": self.hooks, "begin": self.begins, "end": self.ends}
        assert self._worker.stdout is not None
        for line in self._worker.stdout:
            what, _, seconds = line.partition(" ")
            lists[what].append(float(seconds))

    def mean_imports(self) -> float:
        """How many imports run, on average, until the last one has begun."""
        first, last = min(self.begins), max(self.begins)
        ran = sum(last - begin for begin in self.begins)
        ran -= sum(last - end for end in self.ends if end < last)
        return ran / max(last - first, 1e-9)


def main() -> None:
    chosen = options(__doc__ or "")
    random.seed(chosen.seed)
    topics, seconds = pick(chosen, (600, 4.0), (300, 4.0), (40, 0.3))
    slots = pick(chosen, SLOTS, SLOTS, 20)
    rows = [(case.name, *measured(chosen, case, topics, seconds, slots)) for case in CASES]
    publish_table(
        "slots",
        chosen,
        ("one worker", "webhooks", "p50 ms", "p99 ms", "longest ms", "imports running"),
        rows,
        f"{slots} slots, default settings; {topics:,} topics import twice, {seconds:g} s each",
    )


def measured(
    chosen: object, case: Case, topics: int, seconds: float, slots: int
) -> tuple[object, ...]:
    """The webhooks' number and times in milliseconds, and how many imports ran on average."""
    with (
        store(chosen, "fsync") as place,  # type: ignore[arg-type]  # the options
        Laneway(place.url, tiers=case.tiers) as app,
    ):
        app.policy("hook.*", rate="20/s", **({"tier": "urgent"} if case.tiers else {}))
        app.policy("import.*", concurrency=1)
        with process(WORKER, place.url, str(seconds), str(slots)) as worker:
            notes = Notes(worker)
            app.publish("hook.warm", time.perf_counter())
            while not notes.hooks:
                time.sleep(0.01)
            imports = 2 * topics if case.has_imports else 0
            app.publish_many(Message(f"import.c{n % topics}", n) for n in range(imports))
            while len(notes.begins) < min(imports, slots // 2):
                time.sleep(0.01)
            notes.hooks.clear()
            until = time.perf_counter() + (imports or 6 * slots) * seconds / slots
            sent = 0
            while time.perf_counter() < until:
                if case.has_hooks:
                    topic = f"hook.c{random.randrange(HOOK_TOPICS)}"
                    app.publish(topic, time.perf_counter())
                    sent += 1
                time.sleep(random.expovariate(HOOKS_A_SECOND))
            while len(notes.hooks) < sent or len(notes.ends) < imports:
                time.sleep(0.05)
            worker.terminate()
            worker.wait()
            notes.thread.join()
    waits = sorted(each * 1e3 for each in notes.hooks)
    times = (waits[len(waits) // 2], waits[len(waits) * 99 // 100], waits[-1]) if waits else ()
    return (
        len(waits),
        *(times or ("-", "-", "-")),
        notes.mean_imports() if case.has_imports else "-",
    )


if __name__ == "__main__":
    main()
