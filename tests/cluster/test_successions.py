"""
Many quick successions: stopped, asked, interrupted at random. `make test-elections` runs more.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from laneway import Election, Laneway, Term
from laneway.testing.servers import until
from tests.cluster.conftest import TERM, Store
from tests.cluster.fenced_store import FencedStore
from tests.seeds import seed_for

SUCCESSIONS = int(os.environ.get("LANEWAY_SUCCESSIONS", "12"))
PROCESSES = int(os.environ.get("LANEWAY_CANDIDATES", "6"))
SEED = seed_for("LANEWAY_SUCCESSIONS")
MANY = str(Path(__file__).parent / "many.py")


class Fence:
    """Takes writes of the newest term only, and knows who wrote."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.terms: dict[int, object] = {}
        self.refused = 0

    def write(self, number: int, career: object) -> None:
        with self._lock:
            if self.terms and number < max(self.terms):
                self.refused += 1
                return
            assert self.terms.setdefault(number, career) is career, "two holders of one term"


def test_random_successions(store: Store) -> None:
    """However terms end, the next one begins, has a larger number, and one holder."""
    print(f"LANEWAY_SEED={SEED}", store.name)
    draw = random.Random(SEED)
    fence = Fence()

    class Career:
        def inaugurate(self, term: Term) -> None:
            fence.write(term.number, self)

        def execute(self, term: Term) -> None:
            while term.sleep(0.002):
                fence.write(term.number, self)
                if draw.random() < 0.002:
                    raise ValueError("a random failure")

        def hand_over(self, term: Term) -> None:
            fence.write(term.number, self)

    def elect(app: Laneway) -> tuple[Election, threading.Thread]:
        election = app.election("many", Career, term=TERM, zookeeper=store.zookeeper)
        return election, election.start()

    with store.app() as app:
        candidates = [elect(app) for _ in range(3)]
        operator = app.election("many", zookeeper=store.zookeeper)
        for count in range(1, SUCCESSIONS):
            until(lambda count=count: len(fence.terms) >= count, f"term {count}, seed {SEED}", 60)  # type: ignore[misc]
            if draw.random() < 0.5:
                operator.step_down()
            else:
                position = draw.randrange(len(candidates))
                candidates[position][0].stop()
                candidates[position] = elect(app)
        until(lambda: len(fence.terms) >= SUCCESSIONS, f"the last term, seed {SEED}", 60)
    assert list(fence.terms) == sorted(fence.terms)


def test_many_processes(tmp_path: Path) -> None:
    """The same program in many processes: every term is handed over, none overlaps another."""
    fenced = FencedStore(tmp_path / "fenced.db")
    program = subprocess.Popen(
        [sys.executable, MANY, f"sqlite:///{tmp_path}/q.db", str(tmp_path / "fenced.db"),
         str(PROCESSES)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(
            lambda: len(fenced.terms()) >= SUCCESSIONS, f"{SUCCESSIONS} terms", 60 + 2 * SUCCESSIONS
        )
        program.send_signal(signal.SIGTERM)
        output, errors = program.communicate(timeout=60)
        assert program.returncode == 0, errors[-2000:]
        assert output.count("ended 0") == PROCESSES
    finally:
        program.kill()
        program.communicate()
    fenced.check()
    terms = list(fenced.terms().values())
    assert {each[0][1] for each in terms[1:]} == {"begin, handed over"}
    assert {each[-1][1] for each in terms} == {"handed over"}
    assert len({each[0][0] for each in terms}) > 1, "several processes have had a turn"
    fenced.close()
