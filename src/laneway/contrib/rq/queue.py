"""`Queue`: an RQ queue whose waiting jobs are messages of a Laneway topic."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import rq
from redis import Redis
from redis.exceptions import ConnectionError, TimeoutError  # noqa: A004
from rq.exceptions import DequeueTimeout, NoSuchJobError
from rq.job import Job, JobStatus
from rq.utils import as_text

from laneway.app import Laneway
from laneway.contrib.rq.store import application
from laneway.delivery import Delivery
from laneway.errors import BadMessage, LanewayError, Refused
from laneway.message import Message
from laneway.printable import escaped

log = logging.getLogger("laneway.contrib.rq")

REPEAT_SECONDS = 60.0
"""How soon to log the same line again: workers look at RQ's list several times a second."""

_logged: dict[str, float] = {}
"""By line: when it was logged (monotonic seconds)."""


def _is_new(record: logging.LogRecord) -> bool:
    """Whether a line was not logged in the last minute."""
    line, now = record.getMessage(), time.monotonic()
    while _logged and now - next(iter(_logged.values())) >= REPEAT_SECONDS:
        _logged.pop(next(iter(_logged)), None)
    return _logged.setdefault(line, now) == now


log.addFilter(_is_new)

BATCH = 500
"""How many ids are moved at a time."""

LOOK_SECONDS = 0.25
"""How often a worker that waits looks for ids that plain RQ pushed: it notifies nobody."""

PATTERN_LOOK_SECONDS = 2.0
"""The same for a worker of a pattern: it reads the names of all queues."""

MOVING_MS = 2_000
"""How long a notified worker keeps others from publishing the same ids."""

CHANNEL = "rq:laneway:pushed"
"""The pub/sub channel of names of queues whose lists were empty, and got an id."""

PUSH = """
local front = ARGV[2] == '1'
local length = redis.call(front and 'LPUSH' or 'RPUSH', KEYS[1], ARGV[1])
if front then redis.call('SADD', KEYS[2], ARGV[1]) end
if length == 1 then redis.call('PUBLISH', ARGV[3], ARGV[4]) end
return length
"""
"""Push an id, remember whether to the front, and notify the workers if the list was empty."""

OPTIONS = ("priority", "key", "cost", "ttl")
"""Options of a message that a job may have in `meta["laneway"]`."""

FRONT = ("enqueue_at_front", "enqueue_at_front_on_retry", "ended_at")
"""The fields of a stored job that say whether plain RQ pushes it to the front."""

NO_FIELDS = (None,) * (1 + len(FRONT))
"""What a job has that cannot be read."""

ENDED = (JobStatus.CANCELED, JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED)
"""The states of jobs that are not run, although their ids wait."""

CLASSES = ("job_class", "serializer", "death_penalty_class")
"""The last arguments of RQ's `dequeue_any`."""

leases: ContextVar[list[Delivery] | None] = ContextVar("leases", default=None)
"""Where `dequeue_any` puts a job's lease, or None if nobody settles it, so it acks the message."""


class Queue(rq.Queue):
    """
    An RQ queue whose workers move the ids of waiting jobs to the Laneway topic of the same name.

    RQ pushes an id to its list in the transaction that stores the job. The list is the inbox of
    the topic: workers publish its ids as soon as they are pushed, and then remove them from it.
    Programs that enqueue may also use RQ's own class, and RQ's workers may serve the same queue.
    """

    laneway_namespace = "default"
    """The namespace of the topics."""

    @property
    def laneway(self) -> Laneway:
        """The Laneway application: that of `LANEWAY_URL`, else of the same Redis database."""
        return application(self.connection, self.laneway_namespace)

    # Enqueue

    @property
    def _front_key(self) -> str:
        return f"{self.key}:front"

    def push_job_id(self, job_id: str, pipeline: Any = None, at_front: bool = False) -> None:
        """Push an id to RQ's list, and notify the workers if it was empty."""
        connection = self.connection if pipeline is None else pipeline
        keys, front = (self.key, self._front_key), "1" if at_front else "0"
        connection.eval(PUSH, 2, *keys, job_id, front, CHANNEL, self.name)

    def _enqueue_async_job(
        self, job: Job, pipeline: Any = None, at_front: bool = False, unique: bool = False
    ) -> Job:
        job = super()._enqueue_async_job(job, pipeline, at_front, unique)
        if unique:  # pushed by a script of RQ
            self.connection.publish(CHANNEL, self.name)
        return job

    def pushed_to(self) -> list[Queue]:
        """The queue if its list has ids; for a pattern, those queues of RQ that it matches."""
        keys = [self.key]
        if self.name.endswith("*"):
            known = map(as_text, self.connection.smembers(self.redis_queues_keys))
            keys = [each for each in known if each.startswith(self.key[:-1])]
        with self.connection.pipeline(transaction=False) as pipeline:
            for each in keys:
                pipeline.exists(each)
            exist = pipeline.execute()
        return [self.of_key(key) for key, exists in zip(keys, exist, strict=True) if exists]

    def of_key(self, key: str) -> Queue:
        """The queue of a key, with this one's classes."""
        found = type(self).from_queue_key(key, self.connection, self.job_class, self.serializer)
        assert isinstance(found, Queue)
        return found

    def matches(self, name: str) -> bool:
        """Whether it is the queue of this name, or a pattern that matches the name."""
        return name == self.name or (self.name[-1:] == "*" and name.startswith(self.name[:-1]))

    def publish_once(self) -> None:
        """Publish the ids in RQ's list, unless another worker does."""
        lock = f"{self.key}:moving"
        while self.connection.exists(self.key) and self.connection.set(
            lock, 1, nx=True, px=MOVING_MS
        ):
            published = self.publish_pushed()
            self.connection.delete(lock)
            if not published:
                return

    def publish_pushed(self) -> int:
        """Publish the ids in RQ's list. Returns how many were published."""
        count = left = 0
        while messages := self._pushed(left, left + BATCH - 1):
            published = self._publish(messages)
            count, left = count + published, left + len(messages) - published
        return count

    def _pushed(self, start: int = 0, end: int = -1) -> list[Message]:
        """The ids in RQ's list as messages."""
        listed = self.connection.lrange(self.key, start, end)
        ids = [
            each.decode(errors="backslashreplace") if isinstance(each, bytes) else each
            for each in listed
        ]
        with self.connection.pipeline(transaction=False) as pipeline:
            for each in ids:
                pipeline.sismember(self._front_key, each)
                pipeline.hmget(self.job_class.key_for(each), "meta", *FRONT)
            stored = iter(pipeline.execute(raise_on_error=False))
        fields = zip(stored, stored, strict=True)
        return [
            self._message(each, front, *(more if isinstance(more, list) else NO_FIELDS))
            for each, (front, more) in zip(ids, fields, strict=True)
        ]

    def _message(
        self, job_id: str, front: int, meta: bytes | None, *fields: bytes | None
    ) -> Message:
        at_front, on_retry, ended = fields
        options = self._options(job_id, meta) if meta and b"laneway" in meta else {}
        return Message(
            self.name,
            None,
            id=job_id,
            at_front=bool(front) or at_front == b"1" or (on_retry == b"1" and bool(ended)),
            **{name: options[name] for name in OPTIONS if name in options},
        )

    def _options(self, job_id: str, meta: bytes) -> dict[str, Any]:
        """What a job has in `meta["laneway"]`."""
        try:
            options = self.serializer.loads(meta).get("laneway") or {}
        except Exception as error:  # noqa: BLE001  # a serializer raises any class
            log.warning("job %s: its meta cannot be read: %.200r", escaped(job_id), error)
            return {}
        return options if isinstance(options, dict) else {}

    def _publish(self, messages: Sequence[Message]) -> int:
        """
        Publish messages, and remove their ids from RQ's list. Returns how many.

        An id that is known is left there: its job has been enqueued again while it ran, or waits.
        One that is not valid is left, too, and does not stop the others.
        """
        try:
            receipts = self.laneway.publish_many(messages, progress=False)
        except BadMessage as error:
            if len(messages) > 1:
                half = len(messages) // 2
                return self._publish(messages[:half]) + self._publish(messages[half:])
            message = messages[0]
            plain = Message(self.name, None, id=message.id, at_front=message.at_front)
            if message != plain:
                job_id = escaped(message.id or "")
                log.warning('job %s: its meta["laneway"] is ignored: %s', job_id, error)
                return self._publish([plain])
            log.warning("queue %s: a job stays in RQ's list: %s", escaped(self.name), error)
            return 0
        except LanewayError as error:
            log.warning(
                "queue %s: %d jobs stay in RQ's list until the store accepts them: %s",
                escaped(self.name),
                len(messages),
                error,
            )
            return 0
        published = [each.id for each in receipts if each.outcome not in ("refused", "duplicate")]
        with self.connection.pipeline(transaction=False) as pipeline:
            for job_id in published:
                pipeline.lrem(self.key, 1, job_id)
                pipeline.srem(self._front_key, job_id)
            pipeline.execute()
        return len(published)

    # Inspect and change

    @property
    def count(self) -> int:
        """The number of waiting jobs."""
        stats = self.laneway.topic(self.name).stats()
        return stats.waiting + int(super().count)

    def get_job_ids(self, offset: int = 0, length: int = -1) -> list[str]:
        """The ids of the waiting jobs, in order."""
        topic = self.laneway.topic(self.name)
        waiting = topic.stats().waiting
        ids = [str(each.id) for each in topic.peek(waiting)] if waiting else []
        with self.connection.pipeline(transaction=False) as pipeline:
            for each in ids:
                pipeline.hmget(self.job_class.key_for(each), "status", "created_at")
            stored = pipeline.execute()
        for job_id, (status, created) in zip(list(ids), stored, strict=True):
            if created is None or (status or b"").decode() in ENDED:  # plain RQ code removed it
                ids.remove(job_id)
                self.remove(job_id)
        pushed = self._pushed()
        first = [each.id for each in pushed if each.at_front]
        last = [each.id for each in pushed if not each.at_front]
        return [*first, *ids, *last][offset : None if length < 0 else offset + length]

    def get_job_position(self, job_or_id: Job | str) -> int | None:
        """How many jobs precede it; None if it does not wait."""
        job_id = _id_of(job_or_id)
        ids = self.get_job_ids()
        return ids.index(job_id) if job_id in ids else None

    def remove(self, job_or_id: Job | str, pipeline: Any = None) -> int:
        """Remove a job from the queue; also in a pipeline, its message is removed immediately."""
        removed: int = super().remove(_id_of(job_or_id), pipeline)
        try:
            self.laneway.topic(self.name).drop(_id_of(job_or_id))
        except Refused:
            return removed
        return 1 if pipeline is None else removed

    def empty(self) -> int:
        """Remove all waiting jobs and delete them. Returns how many."""
        waiting = set(self.get_job_ids()) - {each.id for each in self._pushed()}
        self.laneway.topic(self.name).purge()
        if waiting:
            self.connection.rpush(self.key, *waiting)
        count: int = super().empty()  # type: ignore[no-untyped-call]
        return count

    def delete(self, delete_jobs: bool = True) -> None:
        """Delete the queue, and its waiting jobs unless `delete_jobs` is False."""
        super().delete(delete_jobs)
        self.laneway.topic(self.name).purge()

    def compact(self) -> None:
        """Remove ids whose jobs no longer exist."""
        for each in self.get_job_ids():
            if not self.job_class.exists(each, self.connection):
                self.remove(each)

    def return_to_rq(self) -> int:
        """
        Push the waiting jobs back to RQ's list, in order, for workers that are RQ's own. Returns
        how many. The workers of Laneway have to be stopped, else they publish them again.
        """
        topic = self.laneway.topic(self.name)
        pushed = {each.id for each in self._pushed()}
        ids = [each for each in self.get_job_ids() if each not in pushed]
        for each in reversed(ids):
            self.connection.lpush(self.key, each)
            topic.drop(each)
        return len(ids)

    # Dequeue

    def pop_job_id(self) -> str | None:
        """Take the id of the next job."""
        taken = _take([self], 0.0)
        if taken is None:
            return None
        taken.ack()
        return taken.id

    @classmethod
    def dequeue_any(
        cls,
        queues: Iterable[rq.Queue],
        timeout: int | None,
        connection: Redis,
        *classes: Any,
        **more: Any,
    ) -> tuple[Job, rq.Queue] | None:
        """
        The next job and its queue; strictly in the order of the queues, or in fair order if one
        is a pattern such as `customer.*`.

        `timeout`: seconds to wait; then it raises DequeueTimeout. With None it returns immediately.
        `classes`, `more`: the classes of jobs, serializers and death penalties, as in RQ.
        """
        if timeout == 0:
            raise ValueError("RQ does not support indefinite timeouts; use a timeout above 0")
        named = [
            each if isinstance(each, cls) else cls(each.name, connection=connection)
            for each in queues
        ]
        options = {**dict(zip(CLASSES, classes, strict=False)), **more}
        deadline = time.monotonic() + (timeout or 0)
        while True:
            delivery = _take(named, max(0.0, deadline - time.monotonic()))
            if delivery is None and timeout is None:
                return None
            if delivery is None:
                raise DequeueTimeout(timeout, [each.key for each in named])
            queue = cls(
                delivery.topic,
                connection=connection,
                **options,
            )
            job = queue._leased(delivery)
            if job is not None:
                return job, queue

    def _leased(self, delivery: Delivery) -> Job | None:
        """The job of a message; None if there is nothing to run."""
        try:
            job = self.job_class.fetch(
                delivery.id, connection=self.connection, serializer=self.serializer
            )
        except NoSuchJobError:
            delivery.ack()
            return None
        except (ConnectionError, TimeoutError):
            with contextlib.suppress(LanewayError):
                delivery.release()
            raise
        except Exception as error:
            log.exception("job %s: it cannot be read", delivery.id)
            delivery.dead(f"its job cannot be read: {error!r:.200}")
            return None
        status = job.get_status(refresh=False)
        if status == JobStatus.STARTED:  # its worker was lost: RQ retries it, or it has failed
            self.started_job_registry.cleanup()
        elif status not in ENDED:
            kept = leases.get()
            if kept is None:
                delivery.ack()
            else:
                kept.append(delivery)
            return job
        delivery.ack()
        return None


def _take(queues: Sequence[Queue], wait: float) -> Delivery | None:
    """
    Lease a message of these queues, in order, or in fair order if one is a pattern; wait for one,
    and for ids that RQ pushes.
    """
    deadline, look_at = time.monotonic() + wait, 0.0
    laneway, names = queues[0].laneway, [each.name for each in queues]
    is_fair = any(each.endswith("*") for each in names)
    while True:
        if time.monotonic() >= look_at:
            for each in queues:
                for pushed in each.pushed_to():
                    pushed.publish_pushed()
            look_at = time.monotonic() + (PATTERN_LOOK_SECONDS if is_fair else 0)
        left = deadline - time.monotonic()
        pause = min(max(left, 0.0), LOOK_SECONDS)
        leased = laneway.lease(
            topics=None if is_fair else names, only=names if is_fair else None, wait=pause
        )
        if leased:
            return leased[0]
        if left <= 0:
            return None


def _id_of(job_or_id: Job | str) -> str:
    return job_or_id if isinstance(job_or_id, str) else job_or_id.id
