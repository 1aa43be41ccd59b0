"""
RQ with Laneway's queues: `rq worker --worker-class laneway.contrib.rq.Worker`.

RQ keeps its jobs, results and registries in Redis. The ids of the jobs that wait are messages of
Laneway: a queue is a topic, with a policy (rate, concurrency, weight, tier, pause).
docs/from-rq.md explains how to use it.
"""

from laneway.contrib.rq.queue import Queue
from laneway.contrib.rq.worker import (
    LeasingWorker,
    RandomWorker,
    RoundRobinWorker,
    SimpleWorker,
    SpawnWorker,
    Worker,
)

__all__ = [
    "LeasingWorker",
    "Queue",
    "RandomWorker",
    "RoundRobinWorker",
    "SimpleWorker",
    "SpawnWorker",
    "Worker",
]
