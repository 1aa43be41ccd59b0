"""
Producers and workers killed by SIGKILL at random moments: no accepted message is lost, and none is
delivered again while its lease is held.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Settlement
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server
from laneway.units import SECOND
from tests.seeds import seed_for

SOURCE = str(Path(__file__).parents[2] / "src")
ROUNDS = int(os.environ.get("LANEWAY_KILLS", "8"))
LEASE_SECONDS = 1.0

PRODUCER = """
import os, random, sys, time
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft
engine = open_engine(sys.argv[1], Settings())
draw = random.Random(int(sys.argv[3]))
with open(sys.argv[2], "a", buffering=1) as log:
    number = 0
    while True:
        ids = [f"{os.getpid()}-{number + n}" for n in range(draw.randint(1, 40))]
        number += len(ids)
        engine.put([Draft(f"t.{draw.randrange(20)}", b"x", id=each, key=draw.choice([None, "k"]))
                    for each in ids])
        log.write("".join(f"{each}\\n" for each in ids))
        time.sleep(0.02)  # no more than can be checked afterwards, also where the store is fast
"""
"""Logs the ids that `put` has returned for."""

WORKER = """
import os, random, sys, time
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Settlement
engine = open_engine(sys.argv[1], Settings())
draw = random.Random(int(sys.argv[3]))
with open(sys.argv[2], "a", buffering=1) as log:
    while True:
        leases = engine.lease(draw.randint(1, 30)).leases
        log.write("".join(f"leased {l.topic} {l.id} {l.fence} {l.deadline_us} {l.key}\\n"
                          for l in leases))
        time.sleep(draw.uniform(0, 0.1) * bool(leases))  # the work; most kills come during it
        actions = [draw.choice(["ack", "ack", "ack", "release", "retry"]) for _ in leases]
        at = time.time_ns() // 1000
        log.write("".join(f"settling {l.topic} {l.id} {l.fence} {at} -\\n" for l in leases))
        answers = engine.settle([Settlement(l.handle, l.fence, a, delay_us=0)
                                 for l, a in zip(leases, actions)])
        log.write("".join(f"{answer} {l.topic} {l.id} {l.fence} 0 -\\n"
                          for l, answer in zip(leases, answers)))
        if not leases:
            engine.wait(0.2)
"""


@pytest.mark.parametrize("store", ["sqlite", "valkey", "postgres"])
def test_nothing_is_lost_or_held_twice_through_many_kills(tmp_path: Path, store: str) -> None:
    """
    Each id that `put` returned for ends acked, and exactly one lease at a time holds a message.
    """
    seed = seed_for("LANEWAY_KILLS")
    print(f"LANEWAY_SEED={seed}")
    draw = random.Random(seed)
    with ExitStack() as stack:
        if store == "sqlite":
            url = f"sqlite:///{tmp_path}/q.db"
        else:
            server: Server | PostgresServer = (
                Server() if store == "valkey" else PostgresServer(fsync="off")
            )
            stack.enter_context(server)
            url = server.url
        engine = stack.enter_context(closing(open_engine(url, Settings())))
        kill_many(tmp_path, url, engine, draw)


def kill_many(tmp_path: Path, url: str, engine: FullEngine, draw: random.Random) -> None:
    """
    Kill producers and workers on a store one after the other; then compare their logs with the
    store.
    """
    engine.policy_set(
        "code", "*", {"lease": LEASE_SECONDS, "retries": 1_000_000, "dedupe": "forever"}
    )
    engine.policy_set("code", "t.1", {"serial": True})
    engine.policy_set("code", "t.2", {"concurrency": 3})
    alive: dict[str, list[Running]] = {"producer": [], "worker": []}
    try:
        for number in range(ROUNDS):
            for kind, program in (("producer", PRODUCER), ("worker", WORKER)):
                while len(alive[kind]) < 2:
                    alive[kind].append(
                        start(
                            program, url, tmp_path / f"{kind}.{number}.{len(alive[kind])}.log", draw
                        )
                    )
            victims = alive[("producer", "worker")[number % 2]]
            victim = victims.pop(draw.randrange(len(victims)))
            victim.wait_for_log()
            time.sleep(draw.uniform(0, 0.3))  # the moment of the kill is what is random
            victim.kill()
    finally:
        for running in alive["producer"] + alive["worker"]:
            running.kill()
    drain(engine)
    accepted = [
        line
        for path in tmp_path.glob("producer.*.log")
        for line in path.read_text().split("\n")[:-1]
    ]
    history = [
        line.split()
        for path in tmp_path.glob("worker.*.log")
        for line in path.read_text().split("\n")[:-1]
    ]
    finished = sum(
        state == "finished"
        for n in range(20)
        for state in engine.lookup(f"t.{n}", accepted).values()
    )
    acked = Counter((topic, each) for what, topic, each, *_ in history if what == "acked")
    print(
        f"{len(accepted):,} accepted, {len(acked):,} acked by workers that were killed,"
        f" {len(history):,} lines of history"
    )
    assert len(accepted) > ROUNDS
    assert finished == len(accepted), "an accepted message is gone"
    assert max(acked.values(), default=1) == 1, "a message was acked twice"
    holds = read_holds(history)
    assert sum(hold.answer is None for hold in holds) > 0, (
        "no worker was killed while it held something"
    )
    check_one_holder(holds)
    check_at_most(1, [hold for hold in holds if hold.topic == "t.1" and hold.key == "k"])
    check_at_most(3, [hold for hold in holds if hold.topic == "t.2"])
    overview = engine.overview()
    assert overview.published == overview.done + overview.dead + overview.waiting + overview.leased
    assert [check for check in engine.doctor() if not check.ok] == []


@dataclass
class Running:
    """A producer or worker, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for_log(self) -> None:
        """
        Wait until its first call has returned, which may take seconds on a busy machine; killed
        before, it would test nothing.
        """
        deadline = time.monotonic() + 60
        while not (self.log.exists() and self.log.stat().st_size):
            assert self.process.poll() is None, "it ended by itself; see its output above"
            assert time.monotonic() < deadline, "it did not begin"
            time.sleep(0.005)  # another process writes the file

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def start(program: str, url: str, log: Path, draw: random.Random) -> Running:
    arguments = [url, str(log), str(draw.randrange(1 << 30))]
    return Running(
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments], env={**os.environ, "PYTHONPATH": SOURCE}
        ),
        log,
    )


def drain(engine: object) -> None:
    """Finish what is left; leases of killed workers expire."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        leases = engine.lease(500).leases  # type: ignore[attr-defined]
        if leases:
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])  # type: ignore[attr-defined]
        elif not (now := engine.overview()).waiting and not now.leased:  # type: ignore[attr-defined]
            return
        else:
            engine.wait(0.5)  # type: ignore[attr-defined]
    raise AssertionError("the store was not drained")


@dataclass
class Hold:
    """
    One lease, from its worker's log. Times are microseconds of the engine's clock, which all
    processes share here.
    """

    topic: str
    id: str
    fence: int
    key: str
    deadline: int
    settled_at: int | None = None
    """When its worker was about to settle it; None: the worker was killed before."""
    answer: str | None = None

    @property
    def delivered_at(self) -> int:
        return self.deadline - round(LEASE_SECONDS * SECOND)

    @property
    def over(self) -> int:
        """Until when it was held at least."""
        if self.settled_at is None or self.answer == "lost":
            return self.deadline
        return min(self.settled_at, self.deadline)


def read_holds(history: list[list[str]]) -> list[Hold]:
    """
    The leases in the order of their deliveries, without those that a worker did not live to log.
    """
    holds: dict[int, Hold] = {}
    for what, topic, each, fence, at, key in history:
        number = int(fence)
        if what == "leased":
            assert number not in holds, "a fence was used twice"
            holds[number] = Hold(topic, each, number, key, int(at))
        elif what == "settling":
            holds[number].settled_at = int(at)
        else:
            holds[number].answer = what
    return sorted(holds.values(), key=lambda hold: hold.fence)


def check_one_holder(holds: list[Hold]) -> None:
    """
    A message is delivered again only when its previous lease was settled or had expired; a killed
    worker's lease by its deadline alone.
    """
    by_message: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        by_message.setdefault((hold.topic, hold.id), []).append(hold)
    for of_one in by_message.values():
        for before, after in pairwise(of_one):
            assert after.delivered_at >= before.over, ("delivered while it was held", before, after)


def check_at_most(limit: int, holds: list[Hold]) -> None:
    """Never more leases at once than `limit`."""
    changes = sorted(
        [(hold.over, -1) for hold in holds] + [(hold.delivered_at, 1) for hold in holds]
    )
    held = 0
    for _, change in changes:
        held += change
        assert held <= limit, f"{held} are held at once"
