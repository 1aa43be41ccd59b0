"""`Runtime`: an application's state in a process; `Laneway` is its public interface."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from laneway import codec
from laneway.engine_holder import EngineHolder
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared import forking
from laneway.errors import UsageError
from laneway.message import Receipt
from laneway.producing.buffer import Buffer, MessageBuffer
from laneway.producing.outbox import JoinedProducer
from laneway.producing.outbox_source import OutboxForwarding, OutboxSource
from laneway.producing.producer import Producer, QueuedProducer
from laneway.producing.publish_options import PublishOptions, message_from
from laneway.producing.reports import UnsentReports
from laneway.producing.spool import MessageSpool, Spool
from laneway.runtime.result_waiter import ResultWaiter
from laneway.units import Duration
from laneway.working.election_threads import Candidacy
from laneway.working.handler import Handlers
from laneway.working.worker_registry import WorkerRegistry

if TYPE_CHECKING:
    from laneway.working.host import Schedules


# Forks: an application opens no engine during a fork, and has no open engine in the child.

_runtimes: WeakSet[Runtime] = WeakSet()
_held: list[Any] = []
_of_parents: list[object] = []
"""
A parent's objects, which are kept alive in its forked child: finalizing them there could close the
parent's files and connections.
"""


def _before_fork() -> None:
    locks = [each.holder.lock for each in list(_runtimes)]
    _held[:] = [lock for lock in locks if lock.acquire(timeout=forking.FORK_SECONDS)]
    forking.pause()


def _after_fork_in_parent() -> None:
    forking.resume_in_parent()
    for lock in _held:
        lock.release()
    _held.clear()


def _after_fork_in_child() -> None:
    _held.clear()
    forking.begin_in_child()
    for each in list(_runtimes):
        each.begin_in_child()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


THREADS = 64
"""The maximum number of concurrent blocking calls of coroutines; more calls wait for a thread."""


class Runtime:
    """
    The engine, the producer, the threads, the handlers and the running workers of one application.

    `url`: the store that the code names, or None. `program` and `version` own the policies and
    gates that are declared before the store is opened. `result_ttl`, `failure_ttl`: seconds for
    which results and failures of tasks are stored, unless a task or call sets another time.
    """

    schedules: Schedules
    """The program's schedules; the application sets them."""

    def __init__(
        self,
        app: object,
        url: str | None,
        settings: Settings,
        *,
        program: str,
        version: str | None,
        result_ttl: float,
        failure_ttl: float,
        buffer: Buffer | bool,
        spool: Spool | str | os.PathLike[str] | None,
        outbox: str | None,
    ) -> None:
        self.app: Any = app
        """The application, which a task has as its attribute `app`."""
        self.address: str | None = None
        """`module:name` by which another process imports it, or None to search for it."""
        self.holder = EngineHolder(url, settings, program, version)
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="laneway")
        """Run the blocking calls of coroutines."""
        self.progress_thread = ThreadPoolExecutor(1, thread_name_prefix="laneway-progress")
        """Writes the progress of coroutines, in the order of their reports."""
        self.unsent = UnsentReports()
        self.producer = producer_of(
            self.holder, self.threads, self.unsent, buffer=buffer, spool=spool
        )
        self.result_waiter = ResultWaiter(lambda: self.engine)
        """Notifies of changes of jobs."""
        self.workers = WorkerRegistry()
        """The workers and elections that run in this process."""
        self.elections_in_workers: list[Candidacy] = []
        """The elections in which the application's workers are candidates."""
        if outbox is not None:
            self.elections_in_workers.append(
                OutboxForwarding(
                    lambda: OutboxSource(outbox, self.namespace), self.holder, self.unsent
                )
            )
        self.handlers = Handlers()
        self.handlers.program, self.handlers.version = program, version
        self.named_tasks: dict[str, Any] = {}
        """Cache of the tasks that belong to functions called by name, by their task header."""
        self.result_ttl = result_ttl
        self.failure_ttl = failure_ttl
        self.eager = False
        """For tests: tasks run where they are called; see `laneway.testing.eager`."""
        _runtimes.add(self)

    def begin_in_child(self) -> None:
        """
        Reset the state in a forked child: the parent's threads do not exist here, and its engine
        stays open for the parent.
        """
        _of_parents.extend((self.holder.opened, *self.producer.parts(), self.result_waiter))
        for threads, most, name in (
            (self.threads, THREADS, "laneway"),
            (self.progress_thread, 1, "laneway-progress"),
        ):
            # in place, since deliveries hold a reference to it
            ThreadPoolExecutor.__init__(threads, most, thread_name_prefix=name)
        self.holder.begin()
        self.producer.begin()
        self.result_waiter = ResultWaiter(lambda: self.engine)
        self.workers = WorkerRegistry()

    # The engine

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use; a forked child opens its own."""
        return self.holder.engine

    @property
    def url(self) -> str:
        """The engine's URL, with its password if it has one."""
        return self.holder.url

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self.holder.namespace

    @property
    def max_backlog(self) -> int | None:
        """The maximum number of messages that wait in the namespace, or None for any number."""
        return self.holder.settings.max_backlog

    @property
    def store_options(self) -> tuple[str | None, str | None]:
        """The arguments of `use_store`; the processes of a worker use the same."""
        return self.holder.options

    def use_store(self, url: str | None = None, namespace: str | None = None) -> None:
        """
        Use another store or namespace than the code's, as `laneway worker --url … --namespace …`
        does. None keeps the code's. Raises UsageError.
        """
        if (url, namespace) == (None, None):
            return
        self.close()  # importing the code may have used it
        self.holder.use(url, namespace)

    @contextlib.contextmanager
    def replaced_engine(self, make: Callable[[Settings], FullEngine]) -> Iterator[FullEngine]:
        """
        Use another engine inside the block, for tests. `make` opens it; the end of the block closes
        it.
        """
        engine: FullEngine | None = None
        try:
            with self.holder.replaced(make) as engine:
                yield engine
        finally:
            if engine is not None:
                self.result_waiter.close()
                engine.close()

    def close(self) -> None:
        """See `Laneway.close`."""
        self.workers.end_all("close")
        self.producer.close()
        self.result_waiter.close()
        self.holder.close()

    # Publishing

    def producer_in(self, connection: Any) -> Producer | JoinedProducer:
        """The producer for a connection's transaction, or the application's producer for None."""
        if connection is None:
            return self.producer
        return JoinedProducer(self.namespace, self.producer.middlewares, connection)

    def publish(
        self,
        topic: str,
        body: Any,
        options: PublishOptions,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> Receipt:
        """See `Laneway.publish`."""
        if connection is not None:
            message = message_from("publish", topic, body, options)
            return self.producer_in(connection).publish(message, timeout)
        if not (options or self.producer.middlewares.all):
            return self.producer.publish_draft(codec.draft_of(topic, body), timeout)
        return self.producer.publish(message_from("publish", topic, body, options), timeout)

    async def apublish(
        self,
        topic: str,
        body: Any,
        options: PublishOptions,
        timeout: Duration | None = None,  # noqa: ASYNC109  # how long a full backlog may block it
        connection: Any = None,
    ) -> Receipt:
        """See `Laneway.apublish`."""
        if connection is not None:
            message = message_from("apublish", topic, body, options)
            return await self.producer_in(connection).apublish(message, timeout)
        producer = self.producer
        if options or producer.middlewares.all:
            message = message_from("apublish", topic, body, options)
            return await producer.apublish(message, timeout)
        return await producer.apublish_draft(codec.draft_of(topic, body), timeout)


class Application(Protocol):
    """An object with a runtime, such as `Laneway`."""

    @property
    def runtime(self) -> Runtime:
        """The application's state in this process."""


def producer_of(
    holder: EngineHolder,
    threads: Executor,
    unsent: UnsentReports,
    *,
    buffer: Buffer | bool,
    spool: Spool | str | os.PathLike[str] | None,
) -> Producer:
    """The producer that `Laneway(buffer=…)` or `Laneway(spool=…)` asks for. Raises UsageError."""
    if spool is not None:
        if buffer is not False:
            raise UsageError(
                "Laneway: buffer and spool contradict each other; give one of them (a spool does"
                " not wait for the store either)"
            )
        options = spool if isinstance(spool, Spool) else Spool(spool)
        return QueuedProducer(holder, threads, lambda _: MessageSpool(options, holder, unsent))
    if buffer is False:
        return Producer(holder, threads)
    if buffer is True:
        buffer = Buffer()
    if not isinstance(buffer, Buffer):
        raise UsageError(
            f"Laneway: expected buffer to be True or a Buffer(…) with its bounds, got"
            f" {buffer!r:.80}"
        )
    return QueuedProducer(holder, threads, lambda put: MessageBuffer(buffer, put, unsent))


class Noun:
    """
    An attribute of `Laneway` such as `app.schedules`, or a handle such as `Topic`, with its
    methods.
    """

    __slots__ = ("_runtime",)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self._runtime.threads
