"""`Queue`: calls of any importable function, as in RQ: `app.queue("low").enqueue(function, …)`."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from datetime import datetime
from typing import Any, TypedDict, Unpack, cast

import msgspec

from laneway import arguments, config, headers as control, storable
from laneway.awaitable import async_variant
from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER
from laneway.errors import BadMessage, HandlerSignal, LanewayError, Retry, UsageError
from laneway.message import Message, Receipt
from laneway.policy import check_publish_topic
from laneway.producing.publish_options import PublishOptions
from laneway.runtime.runtime import Runtime
from laneway.tasks import flow, outcomes, tagged_values
from laneway.tasks.flow import Flow, Target
from laneway.tasks.job import Job
from laneway.tasks.options import TaskOptions
from laneway.tasks.request import Request, current_request
from laneway.tasks.task import Task
from laneway.units import Duration
from laneway.working.handler import Handler, Isolation
from laneway.working.user_imports import importing

log = logging.getLogger("laneway.task")

PREFIX, PREFIX_APART = "call:", "call!"
"""
The prefixes of the task header of a function by its name; the second one runs it in a child
process.
"""

ON_SUCCESS, ON_FAILURE, DESCRIPTION, RETRY_DELAY = (
    "on-success",
    "on-failure",
    "description",
    control.RETRY_DELAY,
)
"""Headers of such a call."""

MISSING_SECONDS, MOST_MISSING = 1.0, 1_000
_MISSING: dict[str, float] = {}
"""
Functions that could not be imported, and when to try again: thousands of their calls may arrive
together.
"""

CHILD_ADDRESS = "laneway.child:perform_named"
"""How a child process finds the function that performs a call by name."""

LISTED = 1_000
"""The maximum number of a queue's jobs that are listed."""


class Dependency(msgspec.Struct, frozen=True):
    """
    Jobs (or their ids) that a job waits for. `allow_failure`: it also runs if one of them failed.
    """

    jobs: Any
    allow_failure: bool = False


class EnqueueOptions(TypedDict, total=False):
    """
    The options of `enqueue`, besides the function's arguments.

    `job_timeout`: how long it may run. `result_ttl`, `failure_ttl`: how long its result or error is
    stored. `ttl`: how long it may wait. `depends_on`: a job, an id, several, or a `Dependency`.
    `job_id`: an id of your own. `at_front`: before all others. `description`: for people.
    `on_success`, `on_failure`: functions that the worker calls after it, with (job, None, result)
    and (job, None, class, error, traceback). `retry`: the maximum retries; `retry_delay`: the time
    before each (several: one after the other, the last one repeatedly). `meta`: the first value of
    `job.meta`. `delay`, `at`: when it is due. `priority`: an integer up to ±(2**52 - 1). `cost`:
    how many permits of the queue's rates it uses.
    """

    job_timeout: Duration | None
    result_ttl: Duration | None
    failure_ttl: Duration | None
    ttl: Duration | None
    depends_on: Any
    job_id: str | None
    at_front: bool
    description: str | None
    on_success: Callable[..., Any] | str | None
    on_failure: Callable[..., Any] | str | None
    retry: int | None
    retry_delay: Duration | Sequence[Duration] | None
    meta: dict[str, Any] | None
    delay: Duration | None
    at: datetime | float | None
    priority: int
    cost: int


OPTIONS = frozenset(EnqueueOptions.__annotations__)


class Call(msgspec.Struct, frozen=True):
    """A call for `enqueue_many`: the result of `Queue.prepare`."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


class Queue:
    """
    A topic whose messages are calls of functions by their names: the result of `app.queue(name)`.

    A worker imports and runs functions by name only for queues that its program has named with
    `app.queue`: anyone who can publish to these can have any importable function called there.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        *,
        isolation: Isolation | None = None,
        default_timeout: Duration | None = None,
    ) -> None:
        self.runtime = runtime
        self.name = check_publish_topic(name)
        self.prefix = PREFIX_APART if isolation == "process" else PREFIX
        self._timeout = default_timeout
        self.tags = "json"

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self.runtime.threads

    # Publishing

    def enqueue(self, function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """
        Publish a call of a function at the top of a module, or of its name
        ("package.module.function").

        Options (see `EnqueueOptions`) are among its keyword arguments; if the function has an
        argument of the same name, use `enqueue_call`. Raises UsageError, BadMessage if the
        arguments do not fit, and the errors of `publish`.
        """
        return self._enqueue(self._prepared(function, args, kwargs))

    aenqueue = async_variant(enqueue)

    def enqueue_call(
        self,
        function: Callable[..., Any] | str,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        timeout: Duration | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> Job[Any]:
        """
        As `enqueue`, with the function's arguments separate from the options. `timeout`
        is `job_timeout`.
        """
        config.refuse_unknown("enqueue_call", options.keys() - OPTIONS, OPTIONS)
        if timeout is not None:
            options["job_timeout"] = timeout
        return self._enqueue(Call(function, tuple(args), dict(kwargs or {}), dict(options)))

    def enqueue_at(
        self, at: datetime | float, function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any
    ) -> Job[Any]:
        """As `enqueue`, due at a moment (an aware datetime or Unix seconds)."""
        return self.enqueue(function, *args, at=at, **kwargs)

    def enqueue_in(
        self, delay: Duration, function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any
    ) -> Job[Any]:
        """As `enqueue`, due after a duration (seconds, a timedelta or "10m")."""
        return self.enqueue(function, *args, delay=delay, **kwargs)

    def enqueue_many(self, calls: Iterable[Call]) -> list[Job[Any]]:
        """
        Publish several calls of `prepare` together. They may depend on each other by their
        `job_id`.
        """
        listed = list(calls)
        order = _sorted(
            [call.options.get("job_id") for call in listed],
            [_ids(call.options.get("depends_on")) for call in listed],
        )
        if any(call.options.get("depends_on") is not None for call in listed) or self.runtime.eager:
            jobs = {n: self._enqueue(listed[n]) for n in order}
            return [jobs[n] for n in range(len(listed))]
        tasks = [self._task(call.function) for call in listed]
        messages = [
            self._message(task, call, None) for task, call in zip(tasks, listed, strict=True)
        ]
        receipts = self.runtime.producer.publish_many(messages, progress=False)
        return [
            self._published(task, call, receipt)
            for task, call, receipt in zip(tasks, listed, receipts, strict=True)
        ]

    @staticmethod
    def prepare(function: Callable[..., Any] | str, /, *args: Any, **kwargs: Any) -> Call:
        """A call for `enqueue_many`, with the arguments of `enqueue`."""
        return Queue._prepared(function, args, kwargs)

    @staticmethod
    def _prepared(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        own = {name: value for name, value in kwargs.items() if name not in OPTIONS}
        return Call(
            function, args, own, {name: value for name, value in kwargs.items() if name in OPTIONS}
        )

    def _task(self, function: Any) -> NamedTask:
        name = self.prefix + name_of(function)
        if isinstance(function, str) and self.tags == "strict" and not self.runtime.eager:
            return _known_by_name(
                self.runtime, name, tags=self.tags
            )  # as in RQ: the publisher may not have it
        task = named_task(self.runtime, name)
        task.tags = self.tags
        return task

    def _enqueue(self, call: Call) -> Job[Any]:
        task = self._task(call.function)
        if self.runtime.eager:
            return self._performed(task, call)
        waits = _dependency(call.options.get("depends_on"))
        if waits is None:
            return self._published(task, call, self._publish(self._message(task, call, None)))
        job_id = call.options.get("job_id")
        before = _jobs(self.runtime, waits.jobs)
        if any(job.id == job_id and job.topic in (None, self.name) for job in before):
            raise UsageError(f"enqueue: job {job_id} depends on itself; leave it out of depends_on")
        for job in before:
            if job.status == "unknown":
                raise UsageError(
                    f"enqueue: depends_on names job {job.id}, which is unknown, or whose result"
                    " is no longer stored"
                )
        published = self._published(
            task, call, self._publish(self._message(task, call, waits, len(before)))
        )
        for number, job in enumerate(before, 1):
            target = Target(self.name, published.id, number, None, waits.allow_failure)
            ended = self.runtime.engine.on_end(job.id, job.topic, msgspec.json.encode(target))
            if ended is not None:
                self.runtime.engine.put([flow.signal(target, job.id, outcomes.read(ended))])
        published.before = tuple(before)
        return published

    def _performed(self, task: NamedTask, call: Call) -> Job[Any]:
        """Perform a call here instead of publishing it. Raises the errors of the run."""
        options = {
            "topic": self.name,
            "id": call.options.get("job_id"),
            "headers": _callbacks(call.options),
        }
        job = cast("Job[Any]", task.publish(call.args, call.kwargs, options))
        job.meta.update(call.options.get("meta") or {})
        return job

    def _publish(self, message: Message) -> Receipt:
        options: PublishOptions = {
            "id": message.id,
            "headers": message.headers,
            "delay": message.delay,
            "at": message.at,
            "ttl": message.ttl,
            "priority": message.priority,
            "at_front": message.at_front,
        }
        return self.runtime.publish(message.topic, message.body, options)

    def _message(
        self, task: NamedTask, call: Call, waits: Dependency | None, count: int = 0
    ) -> Message:
        given = call.options
        config.refuse_unknown("enqueue", given.keys() - OPTIONS, OPTIONS)
        headers = _callbacks(given)
        if given.get("retry_delay") is not None:
            delays = (
                given["retry_delay"]
                if isinstance(given["retry_delay"], (list, tuple))
                else [given["retry_delay"]]
            )
            headers[RETRY_DELAY] = ",".join(
                f"{arguments.seconds('enqueue', 'retry_delay', each):g}" for each in delays
            )
        if given.get("description") is not None:
            headers[DESCRIPTION] = str(given["description"])
        timeout = given["job_timeout"] if given.get("job_timeout") is not None else self._timeout
        options = {
            "topic": self.name,
            "headers": headers,
            "id": given.get("job_id"),
            "ttl": given.get("ttl"),
            "at_front": given.get("at_front", False),
            "result_ttl": given.get("result_ttl"),
            "failure_ttl": given.get("failure_ttl"),
            "delay": given.get("delay"),
            "at": given.get("at"),
            "priority": given.get("priority", 0),
            "cost": given.get("cost"),
            "retries": given.get("retry") or 0,
            "time_limit": timeout,
        }
        more, own = None, None
        if waits is not None:
            more = {"flow": msgspec.to_builtins(Flow(allows_failure=waits.allow_failure))}
            own = {FLOW_HEADER: "1", SIGNALS_HEADER: str(count)} if count else {FLOW_HEADER: "1"}
        return task.invocation(call.args, call.kwargs, options, more=more, headers=own).message()

    def _published(self, task: NamedTask, call: Call, receipt: Receipt) -> Job[Any]:
        job = task.job(receipt)
        if call.options.get("meta"):
            job.meta.update(call.options["meta"])
            job.save_meta()
        return job

    # Inspecting

    @property
    def count(self) -> int:
        """How many jobs are waiting."""
        return self.runtime.engine.topic_stats(self.name).waiting

    def __len__(self) -> int:
        return self.count

    @property
    def job_ids(self) -> list[str]:
        """The ids of waiting jobs, in their order, at most 1,000."""
        return [view.id for view in self.runtime.engine.topic_peek(self.name, limit=LISTED)]

    @property
    def jobs(self) -> list[Job[Any]]:
        """The waiting jobs, in their order, at most 1,000."""
        return [Job(self.runtime, job_id, self.name) for job_id in self.job_ids]

    def fetch_job(self, job_id: str) -> Job[Any] | None:
        """One of its jobs, or None if it is unknown."""
        job: Job[Any] = Job(self.runtime, arguments.name("fetch_job", "the id", job_id), self.name)
        return job if job.status != "unknown" else None

    def is_empty(self) -> bool:
        """Whether no job is waiting."""
        return self.count == 0

    def empty(self) -> int:
        """Remove all waiting jobs. Returns their number."""
        return self.runtime.engine.topic_purge(self.name)

    acount = async_variant(__len__)
    aempty = async_variant(empty)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"


class NamedTask(Task[..., Any]):
    """A function by its name, with the functions that are called after it."""

    tags: str | None = "json"

    def tagged_result(self, returned: Any) -> Any:
        """The result as it is stored; tuples and sets keep their types if all values can."""
        if self.returns is not None:
            return returned
        try:
            return tagged_values.tag(returned, strict=True)
        except BadMessage:
            return returned

    def on_success(
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function of `on_success`."""
        del args, kwargs
        name = _header(ON_SUCCESS)
        if name is not None:
            return function_of(name)(self._job_that_runs(task_id), None, retval)
        return None

    def on_failure(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> Any:
        """Call the function of `on_failure`."""
        del args, kwargs, einfo
        name = _header(ON_FAILURE)
        if name is not None:
            return function_of(name)(
                self._job_that_runs(task_id), None, type(exc), exc, exc.__traceback__
            )
        return None

    def _job_that_runs(self, task_id: str) -> Job[Any]:
        request = current_request()  # an id of the user's own is found in its topic only
        return Job(self.runtime, task_id, request.topic if request is not None else None)

    def _verdict(self, request: Request, error: Exception) -> Exception:
        """A failure is retried after the call's own delays."""
        verdict = super()._verdict(request, error)
        delays = control.retry_delays(request.headers)
        if verdict is not error or isinstance(error, HandlerSignal) or delays is None:
            return verdict
        return Retry(storable.of(error), delay=delays[min(request.retries, len(delays) - 1)])


def named_task(runtime: Runtime, name: str) -> NamedTask:
    """The task of a name with its prefix, cached. Raises UsageError if no such function exists."""
    task: NamedTask | None = runtime.named_tasks.get(name)
    if task is None:
        task = runtime.named_tasks[name] = _make_named_task(runtime, name)
    return task


def _make_named_task(runtime: Runtime, name: str) -> NamedTask:
    is_apart = name.startswith(PREFIX_APART)
    function = function_of(name[len(PREFIX) :])
    if isinstance(function, Task):
        function = function.function
    try:
        task = NamedTask(
            runtime,
            function,
            TaskOptions(name=name, topic="default", isolation="process" if is_apart else None),
        )
    except LanewayError:
        raise
    except Exception as error:  # a callable without a signature
        raise UsageError(
            f"{_shown(name[len(PREFIX) :])} cannot be called as a job: {storable.of(error, 200)}"
        ) from error
    task.handler.own_address = CHILD_ADDRESS
    return task


def _known_by_name(runtime: Runtime, name: str, tags: str) -> NamedTask:
    """A function that this program knows only by name: arguments are not checked here."""
    task = NamedTask(runtime, _any, TaskOptions(name=name, topic="default"))
    task.tags = tags
    return task


def _any(*args: Any, **kwargs: Any) -> None:
    """Accepts all arguments."""


def named(
    runtime: Runtime, name: str, isolation: Isolation | None, default_timeout: Duration | None
) -> Queue:
    """The queue of `Laneway.queue`; without options the one that the program has named before."""
    queues: dict[str, Queue] = runtime.handlers.queues
    functions = Queue(
        runtime,
        arguments.name("queue", "name", name),
        isolation=isolation,
        default_timeout=default_timeout,
    )
    if isolation is None and default_timeout is None:
        return queues.setdefault(functions.name, functions)
    queues[functions.name] = functions
    return functions


def find(runtime: Runtime, name: str, topic: str) -> Handler | None:
    """
    The handler of a function by its name in a topic; None unless the program has named that queue.
    """
    queue = runtime.handlers.queues.get(topic)
    if queue is None or not name.startswith((PREFIX, PREFIX_APART)):
        return None
    missing = _MISSING.get(name)
    if missing is not None and time.monotonic() < missing:
        return None
    try:
        return named_task(
            runtime, queue.prefix + name[len(PREFIX) :]
        ).handler  # where it runs is the worker's choice
    except BaseException as error:  # noqa: BLE001  # a module may raise KeyboardInterrupt, too
        log.warning("queue %s: %s", topic, storable.of(error, storable.MAX_REASON))
        if len(_MISSING) >= MOST_MISSING:
            _MISSING.clear()
        _MISSING[name] = time.monotonic() + MISSING_SECONDS
        return None


def name_of(function: Any) -> str:
    """`module:function`, by which a worker finds it. Raises UsageError."""
    if isinstance(function, str) and ("." in function or ":" in function):
        return function if ":" in function else ":".join(function.rpartition(".")[::2])
    if isinstance(function, Task):
        function = function.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or not isinstance(module, str) or not isinstance(name, str):
        raise UsageError(
            'enqueue: expected a function or its name, like "package.module.function", got'
            f" {function!r:.80}"
        )
    if module == "__main__":
        raise UsageError(
            f"enqueue: {name} is in the program that runs, where a worker cannot find it; put it"
            " into a module and import it from there"
        )
    if "<" in name:
        raise UsageError(
            f"enqueue: {name} is defined inside another function, where a worker cannot find it;"
            " put it at the top of a module"
        )
    return f"{module}:{name}"


def function_of(name: str) -> Any:
    """The function of a name. Raises UsageError."""
    module, _, path = name.partition(":")
    try:
        with importing(module):
            function: Any = importlib.import_module(module)
        for part in path.split("."):
            function = getattr(function, part)
    except (
        Exception,
        SystemExit,
    ) as error:  # the module's code runs here
        raise UsageError(
            f"there is no function {_shown(name)}: {storable.type_name(type(error))}:"
            f" {storable.of(error, 200)}"
        ) from error
    if not callable(function):
        raise UsageError(f"{_shown(name)} is no function")
    return function


def _shown(name: str) -> str:
    return f'"{storable.clean(name.replace(":", "."), 200)}"'


def _callbacks(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers that name the functions of `on_success` and `on_failure`."""
    named = ((ON_SUCCESS, "on_success"), (ON_FAILURE, "on_failure"))
    return {
        header: name_of(options[name]) for header, name in named if options.get(name) is not None
    }


def _header(name: str) -> str | None:
    request = current_request()
    return request.headers.get(name) if request is not None else None


def _dependency(value: Any) -> Dependency | None:
    if value is None or (isinstance(value, (list, tuple)) and not value):
        return None
    return value if isinstance(value, Dependency) else Dependency(value)


def _jobs(runtime: Runtime, value: Any) -> list[Job[Any]]:
    listed = value if isinstance(value, (list, tuple)) else [value]
    jobs: dict[tuple[str, str | None], Job[Any]] = {}
    for each in listed:
        job = (
            each
            if isinstance(each, Job)
            else Job(runtime, arguments.name("enqueue", "depends_on", each))
        )
        jobs.setdefault((job.id, job.topic), job)
    return list(jobs.values())


def _ids(value: Any) -> list[str]:
    waits = _dependency(value)
    listed = (
        []
        if waits is None
        else waits.jobs
        if isinstance(waits.jobs, (list, tuple))
        else [waits.jobs]
    )
    return [each.id if isinstance(each, Job) else str(each) for each in listed]


def _sorted(ids: list[str | None], before: list[list[str]]) -> list[int]:
    """
    Positions, each after those it depends on. Raises UsageError, which names the cycle, if there is
    one.
    """
    places = {job_id: n for n, job_id in enumerate(ids) if job_id is not None}
    order: list[int] = []
    state: dict[int, int] = {}  # 1: in progress, 2: done

    def visit(n: int, path: list[str]) -> None:
        if state.get(n) == 2:
            return
        if state.get(n) == 1:
            cycle = path[path.index(str(ids[n])) :] if str(ids[n]) in path else path
            raise UsageError(
                "enqueue_many: jobs depend on each other in a cycle:"
                f" {' → '.join([*cycle, str(ids[n])])}"
            )
        state[n] = 1
        for job_id in before[n]:
            if job_id in places:
                visit(places[job_id], [*path, str(ids[n])])
        state[n] = 2
        order.append(n)

    for n in range(len(ids)):
        visit(n, [])
    return order
