"""
Deterministic simulation: a real engine under a virtual clock, and a fleet of small actors.

An hour of a thousand workers takes less than a minute. Everything follows from one seed: when
messages are published, how long handlers take, which calls and answers are lost, who crashes or
stops, how the store's clock jumps. The number of a failure repeats it.

>>> from laneway import Laneway
>>> app = Laneway("sqlite:///shop.db")
>>> app.policy("mail.*", concurrency=5)
>>> with simulated(app, seed=1) as fleet:
...     flood = fleet.publisher("mail.flood", rate=40)
...     quiet = fleet.publisher("mail.quiet", rate=0.5)
...     workers = fleet.workers(3, slots=5, seconds=0.2)
...     got = fleet.run("20s")
>>> got["mail.flood"].longest_wait > 5, got["mail.quiet"].longest_wait < 1
(True, True)

- `clock`: the heap of events, tasks, and processes that crash and stop.
- `store`: the engine behind a network that is slow and loses calls and answers.
- `actors`: publishers, spools, workers, destinations, operators, chaos.
- `checks`: what must hold after each call, and at the end.
- `publishing_checks`: what must hold for dedupe, ttl, backlog limits, merges and spools.
- `fleet`: all of them together.

The design follows the simulation of FoundationDB (Zhou et al., "FoundationDB: A Distributed
Unbundled Transactional Key Value Store", SIGMOD 2021, section 4): rare faults are made likely.
"""

from laneway.testing.simulation.actors import (
    Actor,
    Chaos,
    Destination,
    End,
    Fault,
    Operator,
    Publisher,
    Spool,
    Worker,
)
from laneway.testing.simulation.checks import Broken, Check
from laneway.testing.simulation.fleet import Fleet, TopicReport, simulated
from laneway.testing.simulation.store import Network, Store

__all__ = [
    "Actor",
    "Broken",
    "Chaos",
    "Check",
    "Destination",
    "End",
    "Fault",
    "Fleet",
    "Network",
    "Operator",
    "Publisher",
    "Spool",
    "Store",
    "TopicReport",
    "Worker",
    "simulated",
]
