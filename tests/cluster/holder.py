"""
A candidate in a process of its own: `python holder.py URL NAMESPACE FENCED TERM BOUND ZOOKEEPER`.

The holder writes into a fenced store every few milliseconds, and does not look at `term.ending`
while it writes: it stops because its term is ending, is lost, or because the store refuses it.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from laneway import Laneway, Term
from tests.cluster.fenced_store import FencedStore, Refused


class Writer:
    def __init__(self) -> None:
        self.store = FencedStore(sys.argv[3])

    def inaugurate(self, term: Term) -> None:
        self.term = term
        handed_over = "handed over" if term.was_handed_over else "not handed over"
        self.store.write(term.number, f"begin, {handed_over}")

    def execute(self, term: Term) -> None:
        while not term.ending:
            try:
                self.store.write(term.number, "work")
            except Refused:
                print("refused", term.number, flush=True)
                raise
            time.sleep(0.005)

    def hand_over(self) -> None:
        self.store.write(self.term.number, "handed over")


def main() -> None:
    _, url, namespace, _, term, bound, zookeeper = sys.argv
    logging.basicConfig(level="INFO", format="%(asctime)s %(process)d %(message)s")
    app = Laneway(url, namespace=namespace)
    election = app.election(
        "writer",
        Writer,
        term=float(term),
        hand_over_within=float(bound),
        zookeeper=zookeeper or None,
    )
    print("candidate", flush=True)
    election.run()


if __name__ == "__main__":
    main()
