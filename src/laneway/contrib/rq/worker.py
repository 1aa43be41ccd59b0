"""RQ's workers, which hold the lease of a job while it runs."""

from __future__ import annotations

import logging
from typing import Any

import rq
from rq.job import Job
from rq.utils import import_queue_class
from rq.worker import BaseWorker

from laneway.contrib.rq.queue import CHANNEL, Queue, leases
from laneway.delivery import Delivery
from laneway.errors import LeaseLost

log = logging.getLogger("laneway.contrib.rq")


class LeasingWorker(BaseWorker):
    """
    A worker that takes jobs from Laneway. It extends the lease of a job with each of RQ's
    heartbeats, and acks the message when RQ has recorded how the job ended.
    """

    queue_class: type[rq.Queue] = Queue

    def __init__(self, queues: Any, *args: Any, **options: Any) -> None:
        given = options.get("queue_class") or type(self).queue_class
        kind = import_queue_class(given) if isinstance(given, str) else given
        options["queue_class"] = Queue if kind is rq.Queue else kind
        if not issubclass(options["queue_class"], Queue):
            log.warning("worker: %s is no queue class of Laneway; its jobs are plain RQ's", kind)
        self._leases: list[Delivery] = []
        listed = queues if isinstance(queues, (list, tuple)) else [queues]
        super().__init__([_leased(each) for each in listed], *args, **options)

    def subscribe(self) -> None:
        """Subscribe to RQ's commands, and to the notifications of pushed ids."""
        super().subscribe()  # type: ignore[no-untyped-call]
        assert self.pubsub is not None
        self.pubsub.subscribe(**{CHANNEL: self._notified})

    def _notified(self, message: dict[str, Any]) -> None:
        name = message["data"].decode()
        for each in self.queues:
            if isinstance(each, Queue) and each.matches(name):
                each.of_key(f"{each.redis_queue_namespace_prefix}{name}").publish_once()

    def dequeue_job_and_maintain_ttl(self, *args: Any, **options: Any) -> Any:
        """Dequeue a job, and keep its lease."""
        token = leases.set(self._leases)
        try:
            return super().dequeue_job_and_maintain_ttl(*args, **options)
        finally:
            leases.reset(token)

    def execute_job(self, job: Job, queue: rq.Queue) -> Any:
        """Run a job under its lease."""
        self._extend(job)
        answer = super().execute_job(job, queue)
        self._settle()
        if isinstance(queue, Queue):
            queue.publish_pushed()  # what RQ has enqueued again
        return answer

    def maintain_heartbeats(self, job: Job, *args: Any) -> None:
        """Send RQ's heartbeats, and extend the lease."""
        super().maintain_heartbeats(job, *args)
        self._extend(job)

    def clean_registries(self) -> None:
        """Maintain RQ's registries, including those of the queues that a pattern matches."""
        named, every = self.queues, Queue.all(self.connection, self.job_class, self.serializer)
        patterns = [each for each in named if isinstance(each, Queue) and each.name[-1:] == "*"]
        self.queues = [each for each in named if each not in patterns] + [
            each for each in every if any(pattern.matches(each.name) for pattern in patterns)
        ]
        super().clean_registries()  # type: ignore[no-untyped-call]
        self.queues = named

    def reorder_queues(self, reference_queue: rq.Queue) -> None:
        """Reorder as RQ does; the queues of a pattern have Laneway's order."""
        if reference_queue in self.queues:
            super().reorder_queues(reference_queue)

    def _extend(self, job: Job) -> None:
        for each in self._leases:
            try:
                each.extend(self.get_heartbeat_ttl(job))
            except LeaseLost:
                log.warning("job %s: its lease was lost while it ran; it may run twice", job.id)
                self._leases.remove(each)

    def _settle(self) -> None:
        while self._leases:
            try:
                self._leases.pop().ack()
            except LeaseLost as error:
                log.warning("job: %s", error)


def _leased(queue: Any) -> Any:
    """A queue of RQ as one of Laneway."""
    if type(queue) is not rq.Queue:
        return queue
    return Queue(
        queue.name,
        queue.connection,
        queue._default_timeout,  # noqa: SLF001
        queue.is_async,
        queue.job_class,
        queue.serializer,
        queue.death_penalty_class,
    )


class Worker(LeasingWorker, rq.Worker):
    """RQ's worker: a child process for each job."""


class SimpleWorker(LeasingWorker, rq.SimpleWorker):
    """RQ's worker that runs jobs in its own process."""


class RoundRobinWorker(LeasingWorker, rq.worker.RoundRobinWorker):
    """RQ's worker that takes from its queues in turn."""


class RandomWorker(LeasingWorker, rq.worker.RandomWorker):
    """RQ's worker that takes from its queues in random order."""


class SpawnWorker(LeasingWorker, rq.SpawnWorker):
    """RQ's worker that starts a new interpreter for each job."""
