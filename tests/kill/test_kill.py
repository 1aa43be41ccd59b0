"""Producers and workers ended with SIGKILL at random moments: nothing accepted is lost, nothing is handed out twice while a lease is held."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Settlement

SOURCE = str(Path(__file__).parents[2] / "src")
ROUNDS = int(os.environ.get("FAIRLEAD_KILLS", "25"))
LEASE_SECONDS = 1.0

PRODUCER = """
import os, random, sys
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Draft
engine = open_engine(sys.argv[1], Settings())
draw = random.Random(os.getpid())
with open(sys.argv[2], "a", buffering=1) as log:
    number = 0
    while True:
        ids = [f"{os.getpid()}-{number + n}" for n in range(draw.randint(1, 40))]
        number += len(ids)
        engine.put([Draft(f"t.{draw.randrange(20)}", b"x", id=each, key=draw.choice([None, "k"])) for each in ids])
        log.write("".join(f"{each}\\n" for each in ids))
"""
"""Writes down the ids that `put` has returned for."""

WORKER = """
import os, random, sys, time
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Settlement
engine = open_engine(sys.argv[1], Settings())
draw = random.Random(os.getpid())
with open(sys.argv[2], "a", buffering=1) as log:
    while True:
        leases = engine.lease(draw.randint(1, 30)).leases
        for lease in leases:
            log.write(f"leased {lease.topic} {lease.id} {lease.fence} {time.time():.6f} {lease.deadline_us / 1e6:.6f}\\n")
        actions = [draw.choice(["ack", "ack", "ack", "release", "retry"]) for _ in leases]
        began = time.time()
        answers = engine.settle([Settlement(l.handle, l.fence, a, delay_us=0) for l, a in zip(leases, actions)])
        for lease, action, answer in zip(leases, actions, answers):
            log.write(f"{answer} {lease.topic} {lease.id} {lease.fence} {began:.6f} 0\\n")
        if not leases:
            engine.wait(0.2)
"""


def test_nothing_is_lost_or_held_twice_through_many_kills(tmp_path: Path) -> None:
    """Every id that put returned for ends acked, exactly one lease at a time holds a message."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    url = f"sqlite:///{tmp_path}/q.db"
    engine = open_engine(url, Settings())
    engine.policy_set("code", "*", {"lease": LEASE_SECONDS, "retries": 1_000_000, "dedupe": "forever"})
    engine.policy_set("code", "t.1", {"serial": True})
    engine.policy_set("code", "t.2", {"concurrency": 3})
    alive: dict[str, list[subprocess.Popen[bytes]]] = {"producer": [], "worker": []}
    try:
        for number in range(ROUNDS):
            for kind, program in (("producer", PRODUCER), ("worker", WORKER)):
                while len(alive[kind]) < 2:
                    alive[kind].append(start(program, url, tmp_path / f"{kind}.{number}.{len(alive[kind])}.log"))
            time.sleep(draw.uniform(0.15, 0.4))  # the moment of the kill is what is random
            victims = alive[draw.choice(["producer", "worker"])]
            victim = victims.pop(draw.randrange(len(victims)))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
    finally:
        for process in alive["producer"] + alive["worker"]:
            process.kill()
            process.wait()
    drain(engine)
    accepted = [line for path in tmp_path.glob("producer.*.log") for line in path.read_text().split("\n")[:-1]]
    history = [line.split() for path in tmp_path.glob("worker.*.log") for line in path.read_text().split("\n")[:-1]]
    finished = sum(state == "finished" for n in range(20) for state in engine.lookup(f"t.{n}", accepted).values())
    acked = Counter((topic, each) for what, topic, each, *_ in history if what == "acked")
    print(f"{len(accepted):,} accepted, {len(acked):,} acked by workers that were killed, {len(history):,} lines of history")
    assert len(accepted) > ROUNDS
    assert finished == len(accepted), "an accepted message is gone"
    assert max(acked.values(), default=1) == 1, "a message was acked twice"
    check_one_holder(history)
    overview = engine.overview()
    assert overview.published == overview.done + overview.dead + overview.waiting + overview.leased
    assert [check for check in engine.doctor() if not check.ok] == []


def start(program: str, url: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, url, str(log)], env={**os.environ, "PYTHONPATH": SOURCE})


def drain(engine: object) -> None:
    """What is left is finished here; leases of the dead run out."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        leases = engine.lease(500).leases  # type: ignore[attr-defined]
        if leases:
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])  # type: ignore[attr-defined]
        elif not (now := engine.overview()).waiting and not now.leased:  # type: ignore[attr-defined]
            return
        else:
            engine.wait(0.5)  # type: ignore[attr-defined]
    raise AssertionError("it does not drain")


def check_one_holder(history: list[list[str]]) -> None:
    """Of each message, ordered by fence: a later lease was handed out only after the one before had ended or run out."""
    by_message: dict[tuple[str, str], dict[int, dict[str, tuple[float, float]]]] = {}
    for what, topic, each, fence, at, until in history:
        by_message.setdefault((topic, each), {}).setdefault(int(fence), {})[what] = (float(at), float(until))
    for leases in by_message.values():
        fences = sorted(leases)
        for before, after in pairwise(fences):
            if "leased" not in leases[after] or "leased" not in leases[before]:
                continue  # killed before it was written down
            ends = {what: at for what, (at, _) in leases[before].items() if what != "leased"}
            handed_out, ran_out = leases[after]["leased"][0], leases[before]["leased"][1]
            if "lost" in ends:
                assert handed_out >= ran_out - 0.001, ("handed out while it was held", leases)
            for what, at in ends.items():
                assert what == "lost" or handed_out >= at, ("handed out before it was given back", leases)
