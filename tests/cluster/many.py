"""
Many candidates, forked from one process: `python many.py URL FENCED COUNT`. SIGTERM ends them all.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from laneway import Laneway, Term
from tests.cluster.fenced_store import FencedStore


class Short:
    def inaugurate(self, term: Term) -> None:
        self.store = FencedStore(sys.argv[2])
        handed_over = "handed over" if term.was_handed_over else "not handed over"
        self.store.write(term.number, f"begin, {handed_over}")

    def execute(self, term: Term) -> None:
        self.store.write(term.number, "work")
        term.sleep(0.02)

    def hand_over(self, term: Term) -> None:
        self.store.write(term.number, "handed over")
        self.store.close()


def main() -> None:
    children = []
    for _ in range(int(sys.argv[3])):
        child = os.fork()
        if child == 0:
            Laneway(sys.argv[1]).election("many", Short, term=30).run()
            os._exit(0)
        children.append(child)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(True))
    while not stop:
        signal.pause()
    for child in children:
        os.kill(child, signal.SIGTERM)
    for child in children:
        print("ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
