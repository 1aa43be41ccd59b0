"""`Laneway`: the one object that a program makes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import AsyncIterable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakSet

import msgspec

from laneway import arguments, codec, config, namespaces, programs, units, versions
from laneway.awaitable import async_variant
from laneway.delivery import Delivery, lease_lost
from laneway.engines import open_engine
from laneway.engines.shared import forking
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.listing import ORDERS
from laneway.errors import BacklogFull, BadMessage, UsageError
from laneway.message import Message, Settlement
from laneway.policy import FIELDS, Gate, check_changes, check_fields, check_pattern, check_topic
from laneway.producing.bulk import BATCH, put_all, wait_for_room
from laneway.producing.middleware import Middlewares
from laneway.producing.publish_options import batches_of, message_from
from laneway.producing.publisher import Publisher
from laneway.safetext import redacted
from laneway.schedules import store as schedule_store
from laneway.schedules import times
from laneway.tasks import carrying, outcomes
from laneway.tasks.flow import EndedHandler, OpenHandler
from laneway.tasks.job import Job
from laneway.tasks.queue import NamedTask, Queue, find, named_task
from laneway.tasks.task import RETRY_OPTIONS, BoundTaskDecorator, Task, TaskDecorator, TaskOptions
from laneway.tasks.waiter import ResultWaiter
from laneway.tiers import check_tiers
from laneway.topic import REDRIVE_AT_ONCE, Stats, Topic, dead_letter_of, spacing_us, stats_of
from laneway.working.handler import Handler, Handlers, check_parameters
from laneway.working.options import EmbeddedOptions, Options
from laneway.working.worker_registry import WorkerRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
    from contextvars import ContextVar

    from laneway.engines.base import (
        Durability,
        Explanation,
        FullEngine,
        IdState,
        Settings,
        TopicOrder,
    )
    from laneway.message import Draft, Receipt
    from laneway.policy import OnFull, PolicyOptions
    from laneway.producing.publish_options import PublishOptions
    from laneway.schedules.store import Planned, Schedule
    from laneway.tasks.request import Request
    from laneway.tasks.task import AsyncTask, TaskKeywords
    from laneway.tiers import Tier
    from laneway.topic import DeadLetter
    from laneway.units import Duration
    from laneway.working.embedded_worker import EmbeddedWorker
    from laneway.working.handler import Isolation
    from laneway.working.options import Summary, WorkerOptions
    from laneway.working.outcome import Portable

F = TypeVar("F")
M = TypeVar("M", bound="Callable[[Message], Generator[Message, Receipt, None]]")
H = TypeVar("H", bound="Callable[[Any], Generator[None, None, None]]")
OnSuccess = TypeVar("OnSuccess", bound="Callable[[Message], object]")
OnError = TypeVar("OnError", bound="Callable[[Message, BaseException], object]")
P = ParamSpec("P")
R = TypeVar("R")

THREADS = 64
"""Most blocking calls of coroutines at once; the others wait for a thread."""

HANDLER_OPTIONS = ("concurrency", "isolation", "batch", "time_limit", "soft_time_limit")
TASK_OPTIONS = (*TaskOptions.__struct_fields__, "base", *RETRY_OPTIONS)


def calling_module() -> str:
    """
    The module outside of this package that makes an application: the default name of its program.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # there is no other way to it that is quick
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] == "laneway"
    ):
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__":
        spec = frame.f_globals.get("__spec__")
        name = (
            spec.name.removesuffix(".__main__")
            if spec is not None
            else Path(str(frame.f_globals.get("__file__", ""))).stem
        )
    try:
        return programs.check_name(name)
    except UsageError:
        return "default"


class Laneway:
    """
    An application's messages: publish them, handle them, and see what holds them.

    `url` names the engine; default: `$LANEWAY_URL`, `[tool.laneway] url` in ./pyproject.toml,
    `sqlite:///laneway.db`. `namespace` is a whole separate world. `tiers` are the service classes
    with their shares, `default_tier` is that of topics whose policy names none. `durability`,
    `max_backlog` and `on_full` hold for the namespace. `result_ttl` and `failure_ttl`: how long
    what tasks return or raise is kept. Nothing is opened before it is used; then policies and gates
    that were given before are set.

    `program` and `version` say whose those are: a newer version replaces its program's policies and
    gates as a whole, so what was deleted from the code goes; an older one changes nothing; the same
    version, or none, replaces too. Programs do not overwrite each other. Default: the module that
    makes the application, and no version.

    Every method that touches the engine has an async twin with an `a` in front.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        tiers: Mapping[str, Tier | float | str] | None = None,
        default_tier: str | None = None,
        durability: Durability | None = None,
        max_backlog: int | str | None = None,
        on_full: OnFull = "refuse",
        create: bool = True,
        result_ttl: Duration = outcomes.RESULT_TTL,
        failure_ttl: Duration = outcomes.FAILURE_TTL,
        program: str | None = None,
        version: str | int | None = None,
        **unknown: Never,
    ) -> None:
        known = (
            "namespace",
            "tiers",
            "default_tier",
            "durability",
            "max_backlog",
            "on_full",
            "create",
            "result_ttl",
            "failure_ttl",
            "program",
            "version",
        )
        config.refuse_unknown("Laneway", unknown, ("url", *known))
        self._settings = config.settings(
            namespace=namespace,
            tiers=tiers,
            default_tier=default_tier,
            durability=durability,
            max_backlog=max_backlog,
            on_full=on_full,
            create=create,
        )
        self._url = None if url is None else arguments.name("Laneway", "url", url)
        self._chosen_url: str | None = None
        self._options_of_store: tuple[str | None, str | None] = (None, None)
        self.program = programs.check_name(program) if program is not None else calling_module()
        """Whose the policies and gates are that were given before the store was opened."""
        self.version = versions.check(version)
        self._gates: dict[str, Gate] = {}
        self._policies: dict[str, dict[str, Any]] = {}
        self._later: tuple[dict[str, dict[str, Any]], dict[str, Gate]] = ({}, {})
        """Policies and gates given while the store was open."""
        self._declared_to: set[tuple[str, str]] = set()
        """Stores that have been opened: URL and namespace."""
        self._tier_changes: dict[str, Tier | None] = {}
        self._tiers_to_set: dict[str, Tier | None] = {}
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="laneway")
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="laneway-notes")
        self._begin()
        self.handlers = Handlers()
        self.handlers.add_own(EndedHandler())
        self.handlers.add_own(OpenHandler())
        self.handlers.find_named = functools.partial(find, self)
        self.queues: dict[str, Queue] = self.handlers.queues
        """Queues of functions by their names that the program has."""
        self._named: dict[str, NamedTask] = {}
        self._middlewares = Middlewares()
        self._schedules: dict[str, Schedule] = {}
        self.result_ttl = arguments.seconds("Laneway", "result_ttl", result_ttl)
        self.failure_ttl = arguments.seconds("Laneway", "failure_ttl", failure_ttl)
        self.eager = False
        """For tests: tasks run where they are called; see `laneway.testing.eager`."""
        _applications.add(self)

    def _begin(self) -> None:
        """What belongs to one process: a forked child has its own."""
        self.opening = threading.RLock()
        self._engine: FullEngine | None = None
        self._pid = 0
        self._publisher = Publisher(self._put, self.threads)
        self.result_waiter = ResultWaiter(self._opened)
        """Hears of jobs."""
        self._workers = WorkerRegistry()

    def begin_in_child(self) -> None:
        """
        After a fork: the parent's threads are not here, and its engine is the parent's. Nothing of
        it is closed, since the parent uses it.
        """
        _left.append((self._engine, self._publisher, self.result_waiter))
        for threads, most, name in (
            (self.threads, THREADS, "laneway"),
            (self._notes, 1, "laneway-notes"),
        ):
            ThreadPoolExecutor.__init__(
                threads, most, thread_name_prefix=name
            )  # in its place: deliveries have it too
        self._begin()

    # The engine

    @property
    def url(self) -> str:
        """The engine's URL, with its password if it has one."""
        if self._chosen_url is None:
            self._chosen_url = self._options_of_store[0] or self._url or config.default_url()
        return self._chosen_url

    @property
    def store(self) -> config.StoreChoice:
        """The store that is used, what named it, and what was passed over for it."""
        return config.choose_store(self._options_of_store[0], self._url)

    @property
    def is_open(self) -> bool:
        """Whether this process has its engine open."""
        return self._engine is not None and self._pid == os.getpid()

    def name_store(self, url: str | None) -> None:
        """Say late what the constructor's `url` says: before it is used."""
        self._url = None if url is None else arguments.name("Laneway", "url", url)
        self._chosen_url = None

    def use_store(self, url: str | None = None, namespace: str | None = None) -> None:
        """
        Use another store or namespace than the code names, as `laneway worker --url … --namespace
        …` does. None leaves it.
        """
        if (url, namespace) == (None, None):
            return
        self.close()  # importing the code may have used it
        if url is not None:
            arguments.name("use_store", "url", url)
        if namespace is not None:
            self._settings = msgspec.structs.replace(
                self._settings, namespace=config.check_namespace(namespace)
            )
        self._options_of_store, self._chosen_url = (url, namespace), None

    @property
    def store_options(self) -> tuple[str | None, str | None]:
        """What `use_store` was given; the processes of a worker use the same."""
        return self._options_of_store

    @property
    def namespace(self) -> str:
        """The world this application lives in."""
        return self._settings.namespace

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use; a forked child opens its own."""
        if self._engine is not None and self._pid == os.getpid():
            return self._engine
        with self.opening:
            if self._engine is None or self._pid != os.getpid():
                self._engine = self._open()
                self._pid = os.getpid()
            return self._engine

    def _opened(self) -> FullEngine:
        return self.engine

    def _open(self) -> FullEngine:
        engine = open_engine(self.url, self._settings)
        if (
            self.url,
            self.namespace,
        ) not in self._declared_to or not engine.capabilities.persistent:
            self._declare_later()
        engine = self._with_settings(engine, self._tiers_to_set)
        self._declared_to.add((self.url, self.namespace))
        self._tiers_to_set = {}
        return engine

    def _declare_later(self) -> None:
        """Another store: what was set in the one before was given before this one is opened."""
        policies, gates = self._later
        for pattern, fields in policies.items():
            self._policies[pattern] = {**self._policies.get(pattern, {}), **fields}
        self._gates |= gates
        self._later = ({}, {})

    @contextlib.contextmanager
    def lent(self, make: Callable[[Settings], FullEngine]) -> Iterator[FullEngine]:
        """
        For tests: all that this application does in the block, it does on another engine, which is
        closed at its end.
        """
        with self.opening:
            self._declare_later()
            own, self._engine, self._pid = (
                (self._engine, self._pid),
                self._with_settings(make(self._settings), self._tier_changes),
                os.getpid(),
            )
            lent = self._engine
        try:
            yield lent
        finally:
            with self.opening:
                self._engine, self._pid = own
            self.result_waiter.close()
            lent.close()

    def _with_settings(self, engine: FullEngine, tiers: Mapping[str, Tier | None]) -> FullEngine:
        """The engine, told of the gates and policies that were given before it was opened."""
        try:
            if tiers:
                engine.tier_set("code", tiers)
            programs.declare(engine, self.program, self.version, self._policies, self._gates)
        except BaseException:
            engine.close()
            raise
        return engine

    def close(self) -> None:
        """
        End this application's workers, then let go of the engine; the next use opens it again.
        Calls that wait end.
        """
        self._workers.end_all("close")
        self.result_waiter.close()
        with self.opening:
            engine, self._engine = self._engine, None
        if engine is not None and self._pid == os.getpid():
            engine.close()

    def __enter__(self) -> Laneway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Settings

    def tiers(
        self,
        changes: Mapping[str, Tier | float | str | None] | None = None,
        /,
        **shares: Tier | float | str | None,
    ) -> None:
        """
        Add and change tiers, by name as in `Laneway(tiers=…)`; None removes one: `app.tiers(gold=3,
        low=None)`.

        Every process obeys at its next lease. The code's layer: an operator's setting (`laneway
        tier set`) stands above it. It stays until a program opens the store that declares other
        tiers than the one before. Given before the store is opened, it is set when that is. Raises
        BadPolicy, also where a tier is to go that is the default or that a policy names.
        """
        checked = check_tiers({**(changes or {}), **shares})
        with self.opening:
            self._tier_changes |= checked
            if self._engine is None:
                self._tiers_to_set |= checked
            elif checked:
                self._engine.tier_set("code", checked)

    def policy(self, pattern: str, /, **fields: Unpack[PolicyOptions]) -> None:
        """
        Set fields of the policy of a topic or of all topics under a dotted prefix (`"push.*"`);
        None removes one.

        The code's layer: an operator's setting stands above it. Given before the store is opened,
        it belongs to the program and its version (see `Laneway`); later, it stays until it is
        reset, and goes before what programs declare. Raises BadPolicy, which says what was
        expected, also where another program declares another value.
        """
        checked = check_fields(pattern, fields)
        with self.opening:
            given = self._policies if self._engine is None else self._later[0]
            given[pattern] = {**given.get(pattern, {}), **checked}
            if self._engine is not None:
                self._engine.policy_set("code", pattern, checked)

    def policy_many(self, policies: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        """
        Set the policies of many topics (or patterns): pairs of a name and its fields, streamed in
        batches; returns how many.

        What one costs does not depend on how many topics have a policy. Raises BadPolicy, which
        names the topic; its notes say how many were set before.
        """
        with self.opening:
            if self._engine is None:
                return self._declare_many(policies)
        engine, count = self.engine, 0
        for batch in namespaces.batches(iter(policies)):
            try:
                engine.policy_set_many("code", batch)
            except Exception as error:
                error.add_note(f"policy_many: {count:,} policies of earlier batches had been set")
                raise
            count += len(batch)
        return count

    apolicy_many = async_variant(policy_many)

    def _declare_many(self, policies: Iterable[tuple[str, Mapping[str, Any]]]) -> int:
        count = 0
        for pattern, checked in check_changes(policies):
            before = self._policies.get(pattern)
            self._policies[pattern] = (
                checked if before is None else {**before, **checked}
            )  # equal ones are shared
            count += 1
        return count

    def gate(
        self,
        name: str,
        *,
        rate: float | str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """A limit that many topics share, by `gate=` in their policies. Raises BadPolicy."""
        gate = Gate.of(name, rate, burst, concurrency)
        with self.opening:
            given = self._gates if self._engine is None else self._later[1]
            given[name] = gate
            if self._engine is not None:
                self._engine.gate_set(name, gate, layer="code")

    def copy_policies(self, to: Laneway) -> int:
        """
        Set all policies and gates of this namespace in another one too; returns how many policies.
        """
        return namespaces.copy(self.engine, _application("copy_policies", to).engine)

    def compare_policies(self, other: Laneway) -> list[namespaces.Difference]:
        """
        Where another namespace's policies and gates differ: (layer, pattern, field, here, there),
        sorted.
        """
        return namespaces.compare(self.engine, _application("compare_policies", other).engine)

    # Publishing

    def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration | None = None,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """
        Publish one message; once it returns, the message is as durable as the engine's durability
        says.

        Options: `key`, `priority`, `delay` or `at`, `ttl`, `id`, `headers`, `at_front`; what each
        means is said at `Message`. Calls from many threads at once share one transaction. With
        `on_full="block"` it waits for room, at most `timeout`. Raises BadMessage, BacklogFull,
        EngineUnavailable.
        """
        message = message_from("publish", topic, body, options)
        if not self._middlewares:
            return self._publish(message, timeout)
        with self._middlewares.around(message) as passing:
            passing.receipt = self._publish(passing.message, timeout)
        return passing.receipt

    async def apublish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: (Duration | None) = None,  # noqa: ASYNC109  # how long a full backlog may hold it up, as in publish
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """As `publish`, awaited; what coroutines publish at once shares one transaction."""
        message = message_from("apublish", topic, body, options)
        if not self._middlewares:
            return await self._apublish(message, timeout)
        with self._middlewares.around(message) as passing:
            passing.receipt = await self._apublish(passing.message, timeout)
        return passing.receipt

    def publish_many(
        self,
        messages: Iterable[Message],
        *,
        progress: bool | None = None,
        timeout: Duration | None = None,
    ) -> list[Receipt]:
        """
        Publish any number of messages, streamed in batches of about 1,000; answers per message, in
        their order.

        A message over a backlog limit is answered `"refused"`, with `on_full="block"` after waiting
        `timeout` for room. Each batch is atomic; an error's notes say how many messages were
        accepted before it. `progress`: show it on standard error; by default where that is a
        terminal.
        """
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise BadMessage(
                f"publish_many: expected messages one after the other, got {messages!r:.80};"
                " publish takes a single one"
            )
        shown = sys.stderr.isatty() if progress is None else progress
        patience = arguments.seconds_or_none("publish_many", "timeout", timeout)
        if not self._middlewares:
            return put_all(
                messages, self._publisher.put, self._has_to_wait, timeout=patience, progress=shown
            )
        with self._middlewares.around_many(messages, self._publisher.put) as stream:
            return put_all(stream, stream.put, self._has_to_wait, timeout=patience, progress=shown)

    async def apublish_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        progress: bool | None = None,
        timeout: (Duration | None) = None,  # noqa: ASYNC109  # how long a full backlog may hold it up, as in publish_many
    ) -> list[Receipt]:
        """
        As `publish_many`, awaited; also of an async iterable (without progress). A plain one is
        read in a thread.
        """
        if isinstance(messages, Iterable):
            return await self._publish_many_in_thread(messages, progress=progress, timeout=timeout)
        if not isinstance(messages, AsyncIterable):
            raise BadMessage(
                f"apublish_many: expected messages one after the other, got {messages!r:.80};"
                " apublish takes a single one"
            )
        receipts: list[Receipt] = []
        async for batch in batches_of(messages):
            try:
                receipts += await self._publish_many_in_thread(
                    batch, progress=False, timeout=timeout
                )
            except Exception as error:
                error.add_note(
                    f"apublish_many: {len(receipts):,} messages of earlier batches had been"
                    " answered"
                )
                raise
        return receipts

    def _publish(self, message: Message, patience: Duration | None) -> Receipt:
        draft = codec.draft(message)
        receipt = self._publisher.put([draft])[0]
        return (
            receipt
            if receipt.outcome != "refused"
            else self._wait_for_room(draft, receipt, patience)
        )

    async def _apublish(self, message: Message, patience: Duration | None) -> Receipt:
        draft = codec.draft(message)
        receipt = (await self._publisher.aput([draft]))[0]
        return (
            receipt
            if receipt.outcome != "refused"
            else await self._await_for_room(draft, receipt, patience)
        )

    _publish_many_in_thread = async_variant(publish_many)

    def _put(self, drafts: list[Draft]) -> list[Receipt]:
        return self.engine.put(drafts)

    def publish_flow(self, messages: Sequence[Message], *, sticky: bool = False) -> list[Receipt]:
        """
        Publish a flow's messages, apart from what others publish now; up to 1,000 are one call of
        the engine.
        """

        def put(drafts: list[Draft]) -> list[Receipt]:
            for draft in drafts:
                draft.sticky = draft.sticky or sticky
            return self._publisher.put_alone(drafts)

        is_one = len(messages) <= BATCH
        if not self._middlewares:
            return put_all(
                messages, put, self._has_to_wait, timeout=None, progress=False, is_one=is_one
            )
        with self._middlewares.around_many(messages, put) as stream:
            return put_all(
                stream, stream.put, self._has_to_wait, timeout=None, progress=False, is_one=is_one
            )

    @property
    def limits_backlog(self) -> bool:
        """Whether the namespace as a whole limits how much may wait."""
        return self._settings.max_backlog is not None

    def _has_to_wait(self, topic: str) -> bool:
        return "block" in (self._settings.on_full, self.engine.policy_of(topic).on_full)

    def _wait_for_room(
        self,
        draft: Draft,
        receipt: Receipt,
        patience: Duration | None,
        given_up: threading.Event | None = None,
    ) -> Receipt:
        receipts, seconds = [receipt], arguments.seconds_or_none("publish", "timeout", patience)
        wait_for_room([draft], receipts, self._publisher.put, self._has_to_wait, seconds, given_up)
        if receipts[0].outcome == "refused":
            raise BacklogFull(
                f"topic {draft.topic}: {receipt.reason}; publish less, or raise max_backlog",
                [*receipts],
            )
        return receipts[0]

    async def _await_for_room(
        self, draft: Draft, receipt: Receipt, patience: Duration | None
    ) -> Receipt:
        given_up = threading.Event()
        call = functools.partial(self._wait_for_room, draft, receipt, patience, given_up)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, call)
        finally:
            # where the caller was cancelled, the thread ends too, and nothing is published after
            # all
            given_up.set()

    # Consuming by hand

    def lease(
        self,
        n: int = 1,
        *,
        wait: Duration = 0.0,
        pool: str = "default",
        topics: Sequence[str] | None = None,
    ) -> list[Delivery]:
        """
        Take up to `n` messages, fairly; waits at most `wait` for the first. Each has to be settled.

        `topics` restricts it to these, served strictly in the order named. Raises UsageError,
        EngineUnavailable.
        """
        arguments.whole("lease", "n", n)
        arguments.pool("lease", pool)
        topics = arguments.topics("lease", topics)
        return self._lease(n, wait, pool, topics, Interrupt())

    def _lease(
        self, n: int, wait: Duration, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> list[Delivery]:
        deadline = time.monotonic() + arguments.seconds("lease", "wait", wait)
        engine = self.engine
        while not interrupt.is_set:
            batch = engine.lease(n, pool=pool, topics=topics, record_start=True)
            left = deadline - time.monotonic()
            if batch.leases or left <= 0:
                return [Delivery(engine, lease, self.threads) for lease in batch.leases]
            if batch.next_wake_us is not None:
                left = min(left, max(0.0, (batch.next_wake_us - batch.now_us) / units.SECOND))
            engine.wait(left, pool=pool, topics=topics, interrupt=interrupt)
        return []

    async def alease(
        self,
        n: int = 1,
        *,
        wait: Duration = 0.0,
        pool: str = "default",
        topics: Sequence[str] | None = None,
    ) -> list[Delivery]:
        """
        As `lease`, awaited; what arrives after the caller was cancelled is given back at once.
        """
        arguments.whole("lease", "n", n)
        arguments.pool("lease", pool)
        interrupt = Interrupt()
        call = functools.partial(
            self._lease_or_give_back, n, wait, pool, arguments.topics("lease", topics), interrupt
        )
        leasing = asyncio.get_running_loop().run_in_executor(self.threads, call)
        try:
            return await asyncio.shield(leasing)
        except asyncio.CancelledError:
            interrupt.set()
            leasing.add_done_callback(self._give_back)
            raise

    def _lease_or_give_back(
        self, n: int, wait: Duration, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> list[Delivery]:
        """In a thread; the loop of a caller who was cancelled may have ended."""
        found = self._lease(n, wait, pool, topics, interrupt)
        if interrupt.is_set and found:
            self.engine.settle(
                [
                    Settlement(one.lease.handle, one.lease.fence, "release", begun=False)
                    for one in found
                ]
            )
            return []
        return found

    def _give_back(self, leasing: asyncio.Future[list[Delivery]]) -> None:
        if not leasing.cancelled() and leasing.exception() is None:
            leases = [delivery.lease for delivery in leasing.result()]
            if not leases:
                return
            self.engine.settle(
                [Settlement(lease.handle, lease.fence, "release", begun=False) for lease in leases]
            )

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """
        Finish many in one transaction. Raises LeaseLost if some leases had ended; the others are
        finished then.
        """
        held = list(deliveries)
        answers = self.engine.settle(
            [Settlement(one.lease.handle, one.lease.fence) for one in held]
        )
        lost = [
            (one.lease, answer)
            for one, answer in zip(held, answers, strict=True)
            if answer in ("lost", "gone")
        ]
        if lost:
            error = lease_lost(*lost[0])
            if len(lost) > 1:
                error.add_note(
                    f"{len(lost)} of {len(held)} leases were lost:"
                    f" {', '.join(lease.id for lease, _ in lost)}"
                )
            raise error

    # Topics

    def topic(self, name: str) -> Topic:
        """A handle on one topic. Raises BadMessage where the name cannot be one."""
        return Topic(self, check_topic(name))

    def topics(
        self,
        *,
        order: TopicOrder = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
    ) -> list[Stats]:
        """
        Topics by `"name"` (paged by `after`), or the top by `"backlog"`, `"age"`, `"rate"` or
        `"throttled"`.
        """
        if order not in ORDERS:
            raise UsageError(
                f"topics: expected order to be one of {', '.join(ORDERS)}, got {order!r}"
            )
        arguments.whole("topics", "limit", limit)
        after = None if after is None else arguments.name("topics", "after", after)
        found = self.engine.topic_list(
            order=order, pattern=check_pattern(pattern), limit=limit, after=after
        )
        now_us = self.engine.time_us()
        return [stats_of(one, now_us) for one in found]

    def explain(self, message_id: str, topic: str | None = None) -> Explanation:
        """
        What a message waits for, and when it will likely start; ids of your own need their topic.
        """
        return self.engine.explain(arguments.name("explain", "the id", message_id), _topic(topic))

    def lookup(self, topic: str, ids: Iterable[str]) -> dict[str, IdState]:
        """`"unknown"`, `"waiting"`, `"leased"`, `"finished"` or `"dead"` for each id."""
        return self.engine.lookup(check_topic(topic), arguments.texts("lookup", "ids", ids))

    def dead_letters(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[DeadLetter]:
        """Dead letters of a topic or of all, oldest first; `after` (a letter's number) pages on."""
        arguments.whole("dead_letters", "limit", limit)
        arguments.whole("dead_letters", "after", after, least=0)
        return [
            dead_letter_of(number, view)
            for number, view in self.engine.dead_list(_topic(topic), limit=limit, after=after)
        ]

    def redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        rate: float | str | None = None,
        limit: int | None = None,
    ) -> int:
        """
        Put dead letters back, of a topic or all, at once or at a rate (`"10/s"`), the oldest first
        and at most `limit`; returns how many.
        """
        _topic(topic)
        spacing = spacing_us(rate)

        def page(some: Sequence[str] | None, number: int, before: int) -> int:
            return self.engine.dead_redrive(
                topic, some, limit=number, first_us=before * spacing, spacing_us=spacing
            )

        return _by_pages("redrive", ids, limit, page)

    def drop_dead_letters(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int | None = None,
    ) -> int:
        """
        Forget dead letters, of a topic or all, the oldest first and at most `limit`; returns how
        many.
        """
        _topic(topic)
        return _by_pages(
            "drop_dead_letters",
            ids,
            limit,
            lambda some, number, _: self.engine.dead_drop(topic, some, limit=number),
        )

    # Handling

    def handler(
        self,
        pattern: str,
        *,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
        batch: int | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
        **unknown: Never,
    ) -> Callable[[F], F]:
        """
        Register a function for the messages of a topic or of all under a dotted prefix; the most
        specific pattern wins.

        `async def` runs on the event loop, `def` in threads, with `isolation="process"` in child
        processes. `concurrency`: most at once in one worker. `batch=n`: it gets a list of up to n
        messages; what it raises holds for all of them, or it returns a list with None or an
        exception for each. At `soft_time_limit` SoftTimeLimit is raised in it, at `time_limit` it
        is stopped.
        """
        config.refuse_unknown("handler", unknown, HANDLER_OPTIONS)
        if not isinstance(pattern, str):
            raise UsageError(
                f"handler: expected a topic or a pattern, got {pattern!r}; write"
                ' @app.handler("push.*") above the function'
            )

        def register(function: F) -> F:
            options = {"concurrency": concurrency, "isolation": isolation, "batch": batch}
            made = Handler(
                function,  # type: ignore[arg-type]
                pattern,
                time_limit=time_limit,
                soft_time_limit=soft_time_limit,
                **options,  # type: ignore[arg-type]
            )
            check_parameters(made)
            self.handlers.add(made)
            return function

        return register

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, function: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
    ) -> BoundTaskDecorator: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        bind: Literal[False] = False,
        **options: Unpack[TaskKeywords],
    ) -> TaskDecorator: ...

    def task(
        self,
        function: Callable[P, Any] | None = None,
        /,
        *,
        base: type[Task[Any, Any]] | None = None,
        **options: Any,
    ) -> Any:
        """
        Make a function callable in the background: `function.delay(…)`. With or without
        parentheses.

        `topic` may name arguments (`"mail.{customer}"`); default `task.<name>`. So may `key`
        (serial processing, merging) and `id` (a repeat of the call is a duplicate). `bind=True`:
        the first argument is the task itself, with `self.request` and `self.retry`. An argument
        that is annotated `Request` gets the run. `base`: a class made of `Task`, with hooks.
        `autoretry_for`: only these failures are tried again, and never those of
        `dont_autoretry_for`. `isolation`, `time_limit` and `soft_time_limit` are as in `handler`.
        `serializer`: "json", "msgpack" or "pickle"; with the last, whoever may publish to the store
        can run code in its workers. `ignore_result`: nobody is to know what came of it;
        `result_ttl` and `failure_ttl`: how long that is kept (default: the application's).

        All other options are fields of the topic's policy (`rate`, `concurrency`, `retries`,
        `backoff` …), also by Celery's names (`max_retries`, `default_retry_delay`, `retry_backoff`,
        `retry_backoff_max`, `retry_jitter`). Raises UsageError, BadPolicy.
        """
        own = {name: options.pop(name) for name in TaskOptions.__struct_fields__ if name in options}
        config.refuse_unknown(
            "task", options.keys() - FIELDS.keys() - set(RETRY_OPTIONS), (*TASK_OPTIONS, *FIELDS)
        )
        kind = BoundTaskDecorator if own.get("bind") else TaskDecorator
        decorator = kind(self, base, TaskOptions(**own), options)
        if function is None:
            return decorator
        if not callable(function):
            raise UsageError(
                f"task: expected a function, got {function!r}; options go by name, like"
                f" @app.task(topic={function!r})"
            )
        return decorator(function)

    def run_worker(self, **options: Unpack[WorkerOptions]) -> Summary:
        """
        Handle messages until SIGTERM or SIGINT, or with `burst` until nothing is left to run now;
        returns what was handled.

        `concurrency`: most handlers at once. `pool`, `topics`: what to serve; named topics strictly
        in their order. `grace`: how long running handlers may go on at the end. `processes`: so
        many whole workers under a supervisor. `reload`: start again when a source file changes.
        `max_messages`: end after so many deliveries. Raises UsageError where an event loop runs in
        this thread (see `arun_worker`), and while a worker imports the module that calls it: put
        the call under `if __name__ == "__main__":`.
        """
        from laneway.working.run import (  # noqa: PLC0415
            run_worker,
        )  # a program that only publishes needs none of it

        return run_worker(self, Options.checked("run_worker", {**options}), self._workers)

    async def arun_worker(self, **options: Unpack[EmbeddedOptions]) -> Summary:
        """
        Handle messages on the running event loop until cancelled, until `aclose`, or with `burst`
        until nothing is left to run now.

        Cancelled, it stops in order within `grace`; cancelled again, at once. It never touches
        signals. Returns what was handled.
        """
        return await self._embedded("arun_worker", {**options}).arun()

    def worker(self, **options: Unpack[EmbeddedOptions]) -> EmbeddedWorker:
        """
        A worker inside a program that does other things too: `async with app.worker() as worker:`
        runs it during the block.

        `worker.stop()` ends it from any thread. In a thread of its own: `worker.run()`. It never
        touches signals.
        """
        return self._embedded("worker", {**options})

    def _embedded(self, call: str, options: dict[str, Any]) -> EmbeddedWorker:
        from laneway.working.embedded_worker import EmbeddedWorker  # noqa: PLC0415  # as in run_worker

        return EmbeddedWorker(
            self, Options.checked(call, options, EmbeddedOptions.__optional_keys__), self._workers
        )

    # Jobs

    def queue(
        self,
        name: str = "default",
        *,
        isolation: Isolation | None = None,
        default_timeout: Duration | None = None,
        **unknown: Never,
    ) -> Queue:
        """
        A topic for calls of any importable function: `app.queue("low").enqueue(function, 1,
        text="x")`.

        The worker's program has to name it too: only for such queues functions are imported by
        name. `isolation="process"`: each runs in a child process of its own that can be killed.
        `default_timeout`: how long each may run, where its call says nothing.
        """
        config.refuse_unknown("queue", unknown, ("isolation", "default_timeout"))
        made = Queue(
            self,
            arguments.name("queue", "name", name),
            isolation=isolation,
            default_timeout=default_timeout,
        )
        if isolation is None and default_timeout is None:
            return self.queues.setdefault(made.name, made)
        self.queues[made.name] = made
        return made

    def named_task(self, name: str) -> NamedTask:
        """
        The task of a function by its name, as `queue` publishes it. Raises UsageError where there
        is none.
        """
        found = self._named.get(name)
        if found is None:
            found = self._named[name] = named_task(self, name)
        return found

    def job(self, job_id: str, topic: str | None = None) -> Job[Any]:
        """
        The handle of a task's call, by its id, from any process.

        `topic` has to be said where the id is your own and the topic is made of arguments; else it
        is found.
        """
        name = arguments.name("job", "the id", job_id)
        tasks = {
            each.template.text: each for each in self.handlers.tasks() if isinstance(each, Task)
        }
        return Job(self, name, _topic(topic), task=tasks.get(topic) if topic is not None else None)

    def note(self, request: Request, state: str | None, about: Any) -> None:
        """What `update_state` does."""
        if self.eager:
            return
        call = functools.partial(
            Job(self, request.id, request.topic).note, state, about, request.handle, request.fence
        )
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            call()
        else:
            outcomes.noted(
                outcomes.Progress(state=state, about=about)
            )  # what cannot be kept is told here
            self._notes.submit(call)

    def known_topics(self) -> list[str]:
        """Topics that the program's tasks have, as far as they are not made of arguments."""
        return sorted(
            {*self.queues}
            | {
                each.template.text
                for each in self.handlers.tasks()
                if isinstance(each, Task) and not each.template.fields
            }
        )

    # Schedules

    def schedule(
        self, name: str, call: Message | Task[..., Any], **options: Unpack[schedule_store.Options]
    ) -> None:
        """
        Have something published again and again, from the program's code: workers put it into the
        store when they start.

        `call`: a message, or a task with `args` and `kwargs`. One of: `every` ("10m"; at its
        multiples since 1970), `cron` (five fields, or six with seconds first; also L, LW, 15W, 5L,
        1#2) on the clocks of `timezone`, `sun` (("sunrise", latitude, longitude); also dawn, noon,
        sunset, dusk), `at` (once). `missed`: what becomes of firings that came too late, since no
        worker ran: "one" makes up for the last of them, "all" for each, "skip" for none. `spread`:
        calls come so much later at most, each schedule by its own share, so that not all come at
        :00.

        Each firing is published once, with an id made of the name and the time, by however many
        workers. Raises UsageError, BadMessage.
        """
        made = _schedule("schedule", name, call, options)
        with self.opening:
            self._schedules[name] = made
            if self._engine is not None:
                schedule_store.put(self._engine, made)

    def add_schedule(
        self, name: str, call: Message | Task[..., Any], **options: Unpack[schedule_store.Options]
    ) -> bool:
        """
        As `schedule`, but at run time: it is put into the store now. False: it stands there like
        that, or never fires again.
        """
        return schedule_store.put(self.engine, _schedule("add_schedule", name, call, options))

    def schedules(self, *, limit: int = 1000, after: str | None = None) -> list[Planned]:
        """
        Schedules of the store by name, at most `limit`, from behind `after` on: when they fire,
        when next, whether they are paused.
        """
        after = None if after is None else arguments.name("schedules", "after", after)
        return schedule_store.planned(
            self.engine, arguments.whole("schedules", "limit", limit), after
        )

    def remove_schedule(self, name: str) -> bool:
        """
        It fires no more; False: there is none. One of the code comes back with the next worker:
        remove it there too.
        """
        return schedule_store.remove(
            self.engine, arguments.name("remove_schedule", "the name", name)
        )

    def pause_schedule(self, name: str) -> None:
        """It fires when it is resumed, as its `missed` says."""
        schedule_store.set_paused(
            self.engine, arguments.name("pause_schedule", "the name", name), paused=True
        )

    def resume_schedule(self, name: str) -> None:
        """It goes on."""
        schedule_store.set_paused(
            self.engine, arguments.name("resume_schedule", "the name", name), paused=None
        )

    def install_schedules(self) -> None:
        """What a worker does when it starts: see `schedule`."""
        if len(self.handlers) or self._schedules:
            schedule_store.install(self.handlers, lambda: self.engine, self._schedules.values())

    # Around publishing and handling

    def around_publish(self, middleware: M) -> M:
        """
        Register a middleware of publishing, for every message of `publish`, `publish_many` and
        `delay`; the first is the outermost.

        A function that yields once: the message, or a changed one (`msgspec.structs.replace`), and
        gets the receipt for it. What is raised before the yield refuses the message; what
        publishing raises is raised at the yield.
        """
        self._middlewares.add(middleware)
        return middleware

    def around_handling(self, middleware: H) -> H:
        """
        Register a middleware of handling, around every call of a handler; the first is the
        outermost. It must not block.

        A function of the message (of a batch handler: of the list) that yields once: there the
        handler runs, and there is raised what the handler raises. What comes out of the middleware
        is the outcome: it may turn one error into another, or into Reject.
        """
        self.handlers.middlewares.add_middleware(middleware)
        return middleware

    def carry(self, variable: ContextVar[Any], name: str | None = None) -> None:
        """
        Have a context variable go with what is published: its value (anything that JSON can hold)
        is there again while the message is handled.

        `name`: of the header that holds it (default: the variable's). Not in batch handlers, nor in
        child processes.
        """
        carrying.carry(self, variable, name)

    def on_success(self, hook: OnSuccess) -> OnSuccess:
        """
        Register a hook: called with each message that a worker of this program has finished.

        Hooks run one after the other in a thread of their own, once the engine has taken the
        outcome; what one raises is logged. What ends without a handler (expired, purged, its worker
        killed) is not told.
        """
        self.handlers.middlewares.add_hook("success", hook)
        return hook

    def on_failure(self, hook: OnError) -> OnError:
        """
        Register a hook for each attempt that failed: the handler raised, took too long, or its
        process died. See `on_success`.
        """
        self.handlers.middlewares.add_hook("failure", hook)
        return hook

    def on_retry(self, hook: OnError) -> OnError:
        """
        Register a hook for each message that will be tried again, after a failure or by `Retry`.
        See `on_success`.
        """
        self.handlers.middlewares.add_hook("retry", hook)
        return hook

    def on_dead(self, hook: OnError) -> OnError:
        """
        Register a hook for each message that became a dead letter: its retries are used up, or
        `Reject`. See `on_success`.
        """
        self.handlers.middlewares.add_hook("dead", hook)
        return hook

    aclose = async_variant(close)
    aschedule = async_variant(schedule)
    aadd_schedule = async_variant(add_schedule)
    aschedules = async_variant(schedules)
    aremove_schedule = async_variant(remove_schedule)
    apause_schedule = async_variant(pause_schedule)
    aresume_schedule = async_variant(resume_schedule)
    apolicy = async_variant(policy)
    atiers = async_variant(tiers)
    agate = async_variant(gate)
    acopy_policies = async_variant(copy_policies)
    acompare_policies = async_variant(compare_policies)
    aack_many = async_variant(ack_many)
    atopics = async_variant(topics)
    aexplain = async_variant(explain)
    alookup = async_variant(lookup)
    adead_letters = async_variant(dead_letters)
    aredrive = async_variant(redrive)
    adrop_dead_letters = async_variant(drop_dead_letters)

    def __repr__(self) -> str:
        return f"<Laneway {redacted(self.url)} namespace {self.namespace}>"


_applications: WeakSet[Laneway] = WeakSet()
_left: list[object] = []
"""
What a forked child has of its parent's: never finalized here, since that could close what the
parent has open.
"""


FORK_SECONDS = 5.0
"""
How long a fork waits for applications that are being opened: a child could not go on with what
another thread had half done.
"""

_held: list[Any] = []


def _before_fork() -> None:
    _held[:] = [
        each.opening for each in list(_applications) if each.opening.acquire(timeout=FORK_SECONDS)
    ]
    for before in list(forking.BEFORE):
        before()


def _after_fork_in_parent() -> None:
    for after in list(forking.AFTER_IN_PARENT):
        after()
    for lock in _held:
        lock.release()
    _held.clear()


def _after_fork_in_child() -> None:
    _held.clear()
    for after in list(forking.AFTER_IN_CHILD):
        after()
    for each in list(_applications):
        each.begin_in_child()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


def _application(call: str, other: object) -> Laneway:
    if not isinstance(other, Laneway):
        raise UsageError(
            f"{call}: expected a Laneway application of the other namespace, got {other!r:.80}"
        )
    return other


def _schedule(where: str, name: str, call: object, options: schedule_store.Options) -> Schedule:
    """Check what is said of a schedule. Raises UsageError, BadMessage."""
    config.refuse_unknown(where, options.keys() - schedule_store.KNOWN, schedule_store.KNOWN)
    args, kwargs = tuple(options.get("args", ())), dict(options.get("kwargs") or {})
    if isinstance(call, Task):
        message = call.message(args, kwargs, {})
    elif not isinstance(call, Message):
        raise UsageError(f"schedule {name}: expected a Message or a task, got {call!r:.80}")
    elif args or kwargs:
        raise UsageError(f"schedule {name}: args and kwargs are a task's; a message has a body")
    else:
        message = call
    when = times.chosen(
        name,
        options.get("every"),
        options.get("cron"),
        options.get("sun"),
        options.get("at"),
        options.get("timezone", "UTC"),
    )
    spread = arguments.seconds(f"schedule {name}", "spread", options.get("spread", 0))
    return schedule_store.made(
        name,
        when,
        message,
        missed=options.get("missed", "one"),
        spread_us=units.microseconds(spread),
    )


def _topic(name: str | None) -> str | None:
    """A topic's name, or None for all."""
    return None if name is None else check_topic(name)


def _by_pages(
    call: str,
    ids: Sequence[str] | None,
    limit: int | None,
    page: Callable[[Sequence[str] | None, int, int], int],
) -> int:
    """
    Do page after page, of the ids or of all, each a transaction of its own and told how many came
    before; returns how many in all.
    """
    most = sys.maxsize if limit is None else arguments.whole(call, "limit", limit, least=0)
    total = 0
    if ids is not None:
        ids = arguments.texts(call, "ids", ids)
        for first in range(0, len(ids), REDRIVE_AT_ONCE):
            total += page(
                ids[first : first + REDRIVE_AT_ONCE], min(REDRIVE_AT_ONCE, most - total), total
            )
        return total
    while (asked := min(REDRIVE_AT_ONCE, most - total)) > 0:
        got = page(None, asked, total)
        total += got
        if got < asked:
            break
    return total


@functools.lru_cache(maxsize=1024)
def _task_apart(name: str) -> NamedTask:
    return named_task(Laneway("sqlite://"), name)  # nothing is opened


def perform_apart(request: Request) -> Portable | None:
    """What a child process does with a function by its name."""
    return _task_apart(request.task).perform_apart(request)
