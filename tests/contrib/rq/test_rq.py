"""RQ with Laneway's queue and worker: RQ's jobs and registries, and Laneway's order and limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import rq
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from laneway.contrib.rq import Queue, SimpleWorker, Worker
from laneway.testing.servers import Server
from tests.contrib.rq import rq_jobs

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as started:
        yield started


@pytest.fixture
def connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    monkeypatch.delenv("LANEWAY_URL", raising=False)
    rq_jobs.RAN.clear()
    with redis.Redis(port=server.port) as client:
        client.flushdb()
        yield client


class QuickWorker(SimpleWorker):
    """A worker without commands: it ends a second sooner."""

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass


def work(connection: redis.Redis, *names: str, **options: Any) -> None:
    QuickWorker(list(names), connection=connection).work(burst=True, **options)


def test_what_waits_is_a_message(connection: redis.Redis) -> None:
    """Workers move the ids of jobs from RQ's list to Laneway's topic, and no job runs twice."""
    queue = Queue("low", connection=connection)
    job = queue.enqueue(rq_jobs.record, "a")
    assert (queue.count, queue.job_ids, connection.llen(queue.key)) == (1, [job.id], 1)
    queue.publish_pushed()
    assert [each.id for each in queue.laneway.topic("low").peek()] == [job.id]
    assert connection.llen(queue.key) == 0
    assert (queue.count, queue.job_ids, queue.get_job_position(job)) == (1, [job.id], 0)
    connection.rpush(queue.key, job.id)  # as if the worker was lost before it removed it
    work(connection, "low")
    assert (rq_jobs.RAN, queue.count) == (["a"], 0)


def test_rq_keeps_results_and_registries(connection: redis.Redis) -> None:
    """A worker with a child process for each job stores results and failures where RQ does."""
    queue = Queue("low", connection=connection)
    good, bad = queue.enqueue(rq_jobs.record, "a"), queue.enqueue(rq_jobs.fail)
    Worker([queue], connection=connection).work(burst=True)
    assert (good.return_value(), good.get_status()) == ("a", JobStatus.FINISHED)
    assert FailedJobRegistry("low", connection).get_job_ids() == [bad.id]
    stats = queue.laneway.topic("low").stats()
    assert (queue.count, stats.leased, stats.dead) == (0, 0, 0)


def test_queues_are_served_in_their_order(connection: redis.Redis) -> None:
    """As in RQ, a worker takes the jobs of the first queue first."""
    for name in ("low", "high"):
        Queue(name, connection=connection).enqueue_many(
            [Queue.prepare_data(rq_jobs.record, (f"{name} {each}",)) for each in range(2)]
        )
    work(connection, "high", "low")
    assert rq_jobs.RAN == ["high 0", "high 1", "low 0", "low 1"]


def test_a_pattern_serves_its_queues_in_fair_order(connection: redis.Redis) -> None:
    """`customer.*` needs no names, and a customer with many jobs does not delay the others."""
    for name, count in (("customer.a", 20), ("customer.b", 2), ("other", 1)):
        for _ in range(count):
            Queue(name, connection=connection).enqueue(rq_jobs.record, name)
    work(connection, "customer.*")
    assert rq_jobs.RAN.count("customer.a") == 20
    assert "other" not in rq_jobs.RAN
    assert rq_jobs.RAN[:8].count("customer.b") == 2


def test_the_registries_of_a_pattern(connection: redis.Redis) -> None:
    """The worker of a pattern maintains the registries of its queues."""
    queue = Queue("customer.a", connection=connection)
    queue.enqueue(rq_jobs.record, "a", result_ttl=500)
    work(connection, "customer.*")
    connection.zadd(queue.finished_job_registry.key, {"old": 1})
    connection.delete(queue.registry_cleaning_key)
    worker = QuickWorker(["customer.*"], connection=connection)
    worker.clean_registries()
    assert worker.queue_names() == ["customer.*"]
    assert connection.zscore(queue.finished_job_registry.key, "old") is None


def test_rate_of_a_queue(connection: redis.Redis) -> None:
    """A policy's rate holds: a burst worker ends when no job may run now."""
    queue = Queue("low", connection=connection)
    queue.laneway.policy("low", rate="1/h", burst=2)
    for each in "abc":
        queue.enqueue(rq_jobs.record, each)
    work(connection, "low")
    assert (rq_jobs.RAN, queue.count) == (["a", "b"], 1)


def test_the_lease_is_held_while_a_job_runs(connection: redis.Redis) -> None:
    """A running job counts for the concurrency of its queue."""
    queue = Queue("low", connection=connection)
    job = queue.enqueue(rq_jobs.leased_now, "low")
    work(connection, "low")
    assert job.return_value() == 1


def test_plain_rq_may_enqueue(connection: redis.Redis) -> None:
    """Jobs of a program that uses RQ's own queue class are published by the workers."""
    rq.Queue("low", connection=connection).enqueue(rq_jobs.record, "plain")
    queue = Queue("low", connection=connection)
    assert (queue.count, len(queue.jobs)) == (1, 1)
    work(connection, "low")
    assert rq_jobs.RAN == ["plain"]


def test_dependents_and_jobs_of_jobs(connection: redis.Redis) -> None:
    """Jobs that RQ enqueues while another one ends, and those that a job enqueues, run."""
    queue = Queue("low", connection=connection)
    first = queue.enqueue(rq_jobs.enqueue_another, "low")
    queue.enqueue(rq_jobs.record, "after", depends_on=first)
    Worker([queue], connection=connection).work(burst=True)
    another = Job.fetch(str(first.return_value()), connection=connection)
    assert (another.get_status(), queue.finished_job_registry.count) == (JobStatus.FINISHED, 3)


def test_a_retry_goes_to_the_front_if_it_says_so(connection: redis.Redis) -> None:
    """A job that RQ enqueues again while its message is leased is not lost as a duplicate."""
    queue = Queue("low", connection=connection)
    retried = queue.enqueue(rq_jobs.fail_once, retry=rq.Retry(max=1, enqueue_at_front=True))
    queue.enqueue(rq_jobs.record, "next")
    work(connection, "low")
    assert rq_jobs.RAN == ["fails", "fails", "next"]
    assert retried.get_status() == JobStatus.FINISHED


def test_at_front(connection: redis.Redis) -> None:
    """A job at the front runs before the jobs that wait, in Laneway and in RQ's list."""
    queue = Queue("low", connection=connection)
    queue.enqueue(rq_jobs.record, "c")
    queue.publish_pushed()
    queue.enqueue(rq_jobs.record, "d")
    for each in "ba":
        queue.enqueue(rq_jobs.record, each, at_front=True)
        queue.publish_pushed()
    work(connection, "low")
    assert rq_jobs.RAN == ["a", "b", "c", "d"]


def test_options_of_messages(connection: redis.Redis) -> None:
    """`meta["laneway"]` has options of the message, such as its priority."""
    queue = Queue("low", connection=connection)
    queue.enqueue(rq_jobs.record, "b")
    queue.enqueue(rq_jobs.record, "a", meta={"laneway": {"priority": 5}})
    work(connection, "low")
    assert rq_jobs.RAN == ["a", "b"]


BAD_OPTIONS = [{"priority": "high"}, {"key": "a\0b"}, {"cost": 10**9}, {"ttl": "soon"}, 5]
"""Values of `meta["laneway"]` that no message may have."""


def test_wrong_options_are_ignored(connection: redis.Redis) -> None:
    """A job whose options are wrong runs without them, and those after it run too."""
    queue = rq.Queue("low", connection=connection)
    for options in BAD_OPTIONS:
        queue.enqueue(rq_jobs.record, str(options), meta={"laneway": options})
    queue.enqueue(rq_jobs.record, "after")
    work(connection, "low")
    ran = [*map(str, BAD_OPTIONS), "after"]
    assert list(rq_jobs.RAN) == ran


def test_queues_that_are_no_topics(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A queue whose name no topic may have stops no other; its name cannot forge a log line, and is
    not logged at each look into the list.
    """
    for name in ("mail.a#b", "mail.a\nb", "mail.ok"):
        rq.Queue(name, connection=connection).enqueue(rq_jobs.record, name)
    work(connection, "mail.*")
    assert list(rq_jobs.RAN) == ["mail.ok"]
    for _ in range(3):
        Queue("mail.a#b", connection=connection).publish_pushed()
    lines = [each.getMessage() for each in caplog.records if each.name == "laneway.contrib.rq"]
    assert len(lines) == 2
    assert not any("\n" in each for each in lines)


def test_jobs_that_cannot_be_read(connection: redis.Redis) -> None:
    """Whatever is in RQ's list and hashes, the jobs after it run."""
    queue = rq.Queue("low", connection=connection)
    ids = [b"", b"a\0b", b"\xff", b"x" * 999]
    connection.rpush(queue.key, *ids, "pickled", "dated", "text")
    connection.hset("rq:job:pickled", "meta", b"laneway, no pickle")
    connection.hset("rq:job:dated", mapping={"created_at": "today", "data": "x"})
    connection.set("rq:job:text", "no hash")
    queue.enqueue(rq_jobs.record, "after")
    work(connection, "low")
    assert rq_jobs.RAN == ["after"]
    assert connection.lrange(queue.key, 0, -1) == ids
    dead = Queue("low", connection=connection).laneway.dead_letters.list("low")
    assert sorted(str(each.message.id) for each in dead) == ["\\xff", "dated", "text"]


def test_a_lost_connection_is_no_fault_of_the_job(
    connection: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Redis cannot be reached when a job is fetched, the job waits for the next try."""
    queue = Queue("low", connection=connection)
    queue.enqueue(rq_jobs.record, "a")

    def fail(*_: object, **__: object) -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(Job, "fetch", fail)
    with pytest.raises(redis.ConnectionError):
        Queue.dequeue_any([queue], None, connection)
    assert queue.laneway.topic("low").stats().ready == 1


def test_canceled_and_deleted_jobs(connection: redis.Redis) -> None:
    """Jobs that plain RQ code cancels or deletes neither run nor are listed."""
    queue = Queue("low", connection=connection)
    canceled, deleted = (queue.enqueue(rq_jobs.record, each) for each in "ab")
    kept = queue.enqueue(rq_jobs.record, "c")
    queue.publish_pushed()
    Job.fetch(canceled.id, connection=connection).cancel()
    deleted.delete()
    work(connection, "low")
    assert rq_jobs.RAN == ["c"]
    last = queue.enqueue(rq_jobs.record, "d")
    queue.publish_pushed()
    last.cancel()
    assert queue.job_ids == []
    assert kept.is_finished


def test_a_worker_that_is_lost_before_the_job_starts(connection: redis.Redis) -> None:
    """A job whose worker was lost between taking and starting it is delivered again."""
    queue = Queue("low", connection=connection)
    job = queue.enqueue(rq_jobs.record, "a")
    queue.publish_pushed()
    [lost] = queue.laneway.lease(topics=["low"])
    assert Queue.dequeue_any([queue], None, connection) is None
    queue.laneway.topic("low").release(lost.id)
    work(connection, "low")
    assert job.is_finished


def test_a_worker_that_is_lost_while_the_job_runs(connection: redis.Redis) -> None:
    """RQ decides about a job that had started: without retries it has failed, and runs once."""
    queue = Queue("low", connection=connection)
    job = queue.enqueue(rq_jobs.record, "a")
    queue.publish_pushed()
    [lost] = queue.laneway.lease(topics=["low"])
    worker = SimpleWorker([queue], connection=connection)
    execution = worker.prepare_execution(job)
    worker.prepare_job_execution(job)
    registry = queue.started_job_registry
    connection.zadd(registry.key, {execution.composite_key: 1})  # its heartbeats ended
    queue.laneway.topic("low").release(lost.id)
    work(connection, "low")
    assert (rq_jobs.RAN, job.get_status(refresh=True)) == ([], JobStatus.FAILED)
    assert (registry.count, queue.count) == (0, 0)


def test_a_full_backlog(connection: redis.Redis) -> None:
    """Jobs that the topic's backlog refuses wait in RQ's list, and run later."""
    queue = Queue("low", connection=connection)
    queue.laneway.policy("low", max_backlog=1)
    for each in "ab":
        queue.enqueue(rq_jobs.record, each)
    assert queue.publish_pushed() == 1
    assert (queue.laneway.topic("low").stats().waiting, queue.count) == (1, 2)
    work(connection, "low")
    assert rq_jobs.RAN == ["a", "b"]


def test_removing_and_emptying(connection: redis.Redis) -> None:
    """`remove`, `empty`, `pop_job_id` and `delete` act on the jobs that wait in Laneway."""
    queue = Queue("low", connection=connection)
    first, second, third = (queue.enqueue(rq_jobs.record, each) for each in "abc")
    queue.publish_pushed()
    assert (queue.remove(second), queue.remove("unknown")) == (1, 0)
    assert queue.pop_job_id() == first.id
    assert (queue.empty(), queue.count) == (1, 0)
    assert not Job.exists(third.id, connection)
    kept = queue.enqueue(rq_jobs.record, "d")
    queue.publish_pushed()
    queue.delete(delete_jobs=False)
    assert (queue.count, Job.exists(kept.id, connection)) == (0, True)


def test_returning_to_rq(connection: redis.Redis) -> None:
    """The jobs that wait in Laneway return to RQ's list, in order and before later ones."""
    queue = Queue("low", connection=connection)
    first = [queue.enqueue(rq_jobs.record, each).id for each in "ab"]
    queue.publish_pushed()
    last = queue.enqueue(rq_jobs.record, "c").id
    assert queue.return_to_rq() == 2
    assert rq.Queue("low", connection=connection).job_ids == [*first, last]
    assert queue.laneway.topic("low").stats().waiting == 0


def test_a_worker_is_notified(connection: redis.Redis) -> None:
    """A worker with its subscription publishes the ids that are pushed while it waits or works."""
    queue = Queue("low", connection=connection)
    worker = SimpleWorker([queue], connection=connection)
    worker.subscribe()
    job = queue.enqueue(rq_jobs.record, "a")
    assert queue.laneway.lease(topics=["low"], wait=20)[0].id == job.id
    worker.queues = [Queue("lo*", connection=connection)]
    unique = queue.enqueue(rq_jobs.record, "b", job_id="b", unique=True)
    assert queue.laneway.lease(topics=["low"], wait=20)[0].id == unique.id
    worker.unsubscribe()


def test_other_queue_classes_stay(
    connection: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with a queue class of the program's own leaves it alone, with a warning."""

    class Own(rq.Queue):
        pass

    own = Own("low", connection=connection)
    worker = SimpleWorker([own], connection=connection, queue_class=Own)
    assert worker.queues[0] is own
    assert worker.queue_class is Own
    assert "no queue class of Laneway" in caplog.text
    named = SimpleWorker(["low"], connection=connection, queue_class="rq.Queue")
    assert named.queue_class is Queue


def test_the_command_of_rq(connection: redis.Redis, server: Server, tmp_path: Path) -> None:
    """`rq worker` with the worker class alone runs jobs, with LANEWAY_URL in another store."""
    environment = os.environ | {
        "LANEWAY_URL": f"sqlite:///{tmp_path}/jobs.db",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    command = [
        sys.executable,
        "-m",
        "rq.cli",
        "worker",
        "--url",
        f"redis://localhost:{server.port}",
        "--burst",
        "--quiet",
    ]
    command += ["--worker-class", "laneway.contrib.rq.Worker", "low"]
    job = rq.Queue("low", connection=connection).enqueue(
        rq_jobs.append, str(tmp_path / "lines"), "ran"
    )
    subprocess.run(command, env=environment, check=True, timeout=30)
    assert (tmp_path / "lines").read_text() == "ran\n"
    assert job.is_finished
    assert (tmp_path / "jobs.db").exists()
