"""
Handlers: their options and checks, registration, and the choice of the handler for a message.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeVar

from laneway import arguments, codec, headers, subscriptions, units
from laneway.engines.base import TASK_HEADER, FullEngine
from laneway.errors import BadPolicy, Reject, UnknownHandler, UsageError
from laneway.history.alarms import Alarms
from laneway.message import Draft, Lease, Message, Settlement
from laneway.policy import check_pattern, handling_patterns
from laneway.subscriptions import SEPARATOR
from laneway.units import Duration
from laneway.working.lifespan import Lifespans, asks_for_state
from laneway.working.middleware import HandlingMiddlewares
from laneway.working.options import Options, Summary

log = logging.getLogger("laneway.worker")

TIME_LIMIT_HEADER, SOFT_TIME_LIMIT_HEADER = headers.TIME_LIMIT, headers.SOFT_TIME_LIMIT
"""Headers with the time limits of one call, in seconds, instead of its handler's."""

CURRENT: ContextVar[Any] = ContextVar("laneway_current", default=None)
"""
What runs here: a `laneway.Request`, a message, the fields of log lines (a dict), or a worker's
delivery, which has it as `current`. Read it by `current`. None if nothing runs.
"""


def current() -> Any:
    """What runs here: a Request, a lease, a message, fields of log lines, or None for nothing."""
    holder = CURRENT.get()
    return getattr(holder, "current", holder)


MAX_CACHED_TOPICS = 10_000
"""
How many topics' handlers are cached; the cache is emptied when it is full. As many as other caches
of a worker have: a larger one keeps topics that no longer exist, for minutes and megabytes.
"""


class SideWorkers(Protocol):
    """What a worker needs of the workers that run along with it, on its event loop."""

    @property
    def summary(self) -> Summary:
        """What they have handled, once they have ended."""

    def start(self) -> None:
        """Start them. On the event loop."""

    def stop(self) -> None:
        """Stop them in order; a second call stops them immediately. Does not wait."""

    async def end(self) -> None:
        """Wait for their end: after `stop`, or with `burst` until nothing is left to run now."""


Isolation = Literal["thread", "process"]
F = TypeVar("F")


class Handler:
    """
    A function that handles messages, and how it runs.

    `function`: called with a Message, or with a list of them if `batch` is set.
    `pattern`: the topics that it handles. `subscription`: it handles their copies for this
    subscription instead; the attribute `pattern` is then like `orders.*#audit`.
    `name`: for logs and errors; default: the function's qualified name.
    `concurrency`: how many calls run concurrently in one worker, or None for no limit of its own.
    `isolation`: "thread" or "process" for a plain function; a coroutine function has none.
    `batch`: how many messages one call takes at most, or None if a call takes one message.
    `batch_wait`: how long a call waits for a full batch, from its first message (None: no wait).
    `time_limit`: after which it is stopped. `soft_time_limit`: after which `SoftTimeLimit` is
    raised inside it. Seconds, `timedelta` or text such as "10m".

    Raises UsageError, which names the handler, the option and what was expected.
    `kind` is "async" (event loop), "thread" or "process" (a child process that can be killed).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        pattern: str,
        *,
        subscription: str | None = None,
        name: str | None = None,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
        batch: int | None = None,
        batch_wait: Duration | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
    ) -> None:
        self.function = function
        self.function_of_current: Callable[..., Any] | None = None
        """
        As `function`, but leaves it to the caller to make its argument current, or None if the
        lease is current while the function runs.
        """
        self.name = name or str(getattr(function, "__qualname__", function))
        where = f"handler {self.name}"
        self.pattern = _pattern_of(where, pattern, subscription)
        self.covering = _covering(self.pattern) if isinstance(pattern, str) else ""
        """A pattern that covers its topics, for the template of a task, too."""
        self.kind = _kind(where, function, isolation)
        self.concurrency = _count(where, "concurrency", concurrency)
        self.batch = _count(where, "batch", batch)
        self.batch_wait = _limit(where, "batch_wait", batch_wait)
        if self.batch_wait is not None and self.batch is None:
            raise UsageError(
                f"{where}: batch_wait is how long a batch waits to be full; give batch=, too"
            )
        self.time_limit = _limit(where, "time_limit", time_limit)
        self.soft_time_limit = _limit(where, "soft_time_limit", soft_time_limit)
        self.has_time_limit = self.time_limit is not None or self.soft_time_limit is not None
        if (
            self.time_limit is not None
            and self.soft_time_limit is not None
            and self.soft_time_limit >= self.time_limit
        ):
            raise UsageError(
                f"{where}: soft_time_limit must be below time_limit, got {soft_time_limit!r} and"
                f" {time_limit!r}"
            )

    @property
    def address(self) -> str:
        """`module:attribute` of the function, by which a child process imports it."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The function's arguments. Raises Reject if the body cannot be decoded to them."""
        try:
            return (codec.message_of(lease),), {}
        except ValueError as error:
            raise Reject(str(error)) from error

    adding_headers: frozenset[str] | None = frozenset()
    """
    The headers with which a call that returned None leads to more than a plain ack, or None if
    `concluded` is asked about each.
    """

    child_setup: str | None = None
    """A module that a child process imports before the function's module, or None."""

    asks_for_losses = False
    """
    Whether `refusal` needs the number of lost workers, which costs one more call of the engine.
    """

    def refusal(self, lease: Lease, losses: int) -> Exception | None:
        """
        The error that ends a message which lost its worker `losses` times in a row, or None if it
        runs again. A loss is counted if the start was recorded, as it is for suspects.
        """
        del lease, losses
        return None

    def key_names(self) -> list[str] | None:
        """The names of its worker's keys for secrets in the store, or None if it needs none."""
        return None

    def problem(self, engine: FullEngine) -> str | None:
        """Why this process, as far as it knows, can handle none of its messages, or None."""
        del engine
        return None

    make_executor: Callable[..., Any] | None = None
    """
    A `MakeExecutor`, which creates the executor of this kind of handlers on the event loop of a
    worker, or None for an executor that every worker has. Messages of a topic that `is_full` wait
    while other topics' messages can begin.
    """

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> Sequence[Draft]:
        """
        Called when the handler has ended, before its lease does; may add to the settlement.

        `returned`, `error`: what the function returned or raised.
        `settlement`: how the lease will end; its fields for results may be set.
        Returns messages to publish together with the settlement.
        Raises Reject if the returned value cannot be stored; it is called again with that error.
        """
        if returned is not None and error is None:
            log.debug("handler %s returned %.200r; the value is ignored", self.name, returned)
        del lease, settlement
        return ()


def _pattern_of(where: str, pattern: str, subscription: str | None) -> str:
    if not isinstance(pattern, str):
        return pattern  # `Handlers.add` refuses it
    if SEPARATOR in pattern:
        base, name = subscriptions.split(pattern)
        raise UsageError(
            f'{where}: "#" is not allowed in a handler\'s pattern; write'
            f' @app.handler("{base}", subscription="{name}")'
        )
    if subscription is None:
        return pattern
    try:
        return subscriptions.topic_of(pattern, subscriptions.check_name(subscription))
    except BadPolicy as error:
        raise UsageError(f"{where}: {error}") from error


def _kind(where: str, function: Callable[..., Any], isolation: Isolation | None) -> str:
    if not callable(function):
        raise UsageError(f"{where}: expected a function, got {function!r}")
    if isolation not in (None, "thread", "process"):
        raise UsageError(
            f'{where}: expected isolation to be "thread" or "process", got {isolation!r}'
        )
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    ):  # an object
        if isolation is not None:
            raise UsageError(
                f'{where}: an async function runs on the event loop; write it as "def" for'
                f' isolation="{isolation}"'
            )
        return "async"
    if isolation == "process":
        check_importable(where, function)
    if isolation == "process" and asks_for_state(function):
        raise UsageError(
            f"{where}: a child process has no state of its worker; leave out"
            ' isolation="process", or the parameters that a lifespan provides'
        )
    return isolation or "thread"


def check_importable(where: str, function: Callable[..., Any]) -> None:
    """Raise UsageError if a child process cannot import the function by its name."""
    if "<" in getattr(function, "__qualname__", "<") or not getattr(function, "__module__", None):
        raise UsageError(
            f'{where}: isolation="process" needs a function at the top of a module, so that the'
            " child can import it"
        )


def refuse_generator(where: str, function: Callable[..., Any]) -> None:
    """Raise UsageError for a generator function: a call of it runs nothing of its body."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f'{where}: a function with "yield" does nothing when it is called; remove the yield'
        )


def _check_parameters(handler: Handler) -> None:
    """
    Raise UsageError if the handler's function cannot be called with one argument, the message, or
    if such a call does nothing.
    """
    refuse_generator(f"handler {handler.name}", handler.function)
    try:
        signature = inspect.signature(handler.function)
    except (TypeError, ValueError):  # a function in C without a signature
        return
    try:
        signature.bind(None)
    except TypeError as error:
        what = "messages" if handler.batch is not None else "message"
        raise UsageError(
            f"handler {handler.name}: it is called with the {what} as its one argument, and takes"
            f" {signature} ({error}); write def {handler.name.rpartition('.')[2]}({what}), or use"
            " @app.task for other arguments (for state of the worker, @app.lifespan above it)"
        ) from None


def _count(where: str, option: str, value: object) -> int | None:
    return None if value is None else arguments.whole(where, option, value)


def _limit(where: str, option: str, value: Duration | None) -> float | None:
    if value is None:
        return None
    limit = arguments.seconds(where, option, value)
    if limit == 0:
        raise UsageError(f"{where}: expected {option} to be above 0, got {value!r}")
    return limit


def _covering(text: str) -> str:
    """The pattern that covers a pattern, a topic, or a template like `mail.{customer}`."""
    constant, field, _ = text.partition("{")
    if not field:
        return text
    stem, dot, _ = constant.rpartition(".")
    return f"{stem}.*" if dot else "*"


def fields() -> dict[str, Any]:
    """
    Fields for log lines of the running handler: message, topic, attempt, and a task's name.

    Empty outside of handlers.
    """
    run = current()
    if run is None or isinstance(run, dict):
        return dict(run or {})
    fields = {"message": run.id, "topic": run.topic, "attempt": run.attempt}
    task = getattr(run, "task", None)
    return fields if task is None else {"task": task, **fields}


def kind_of(message: Message | Lease) -> str:
    """
    A label with few values for logs, metrics and traces: the message's task, else the pattern one
    level above its topic.
    """
    task = (message.headers or {}).get(TASK_HEADER)
    if task is not None:
        return task
    stem, dot, _ = message.topic.rpartition(".")
    return f"{stem}.*" if dot else message.topic


class Handlers:
    """
    All handlers of an application: by pattern, and tasks by name; also the middlewares around them.
    """

    def __init__(self) -> None:
        self._by_pattern: dict[str, Handler] = {}
        self._by_task: dict[str, Handler] = {}
        self._own: dict[str, Handler] = {}
        self.queues: dict[str, Any] = {}
        """By topic: queues whose messages name the function to call."""
        self.served: Callable[[], list[str]] | None = None
        """The topics that a worker serves if its options name none, or None for all of its pool."""
        self.find_named: Callable[[str, str], Handler | None] | None = None
        """Finds the handler for a function's name and a topic, or None without a look-up."""
        self.make_side_workers: (
            Callable[[FullEngine, Handlers, Options, Callable[[BaseException], None]], SideWorkers]
            | None
        ) = None
        """
        Makes the workers of exclusive and failover subscriptions that run along with a worker; the
        function that it gets ends that worker with an error.
        """
        self._by_topic = _ByTopic(self._by_pattern)
        self.middlewares = HandlingMiddlewares()
        self.lifespans = Lifespans()
        self.alarms = Alarms()
        self.child_setup: str | None = None
        """The `child_setup` of handlers that are added from now on."""
        self.program = ""
        """The name of the application's program."""
        self.version: str | None = None
        """Its version, if the program names one."""
        self._ahead_us = 0

    def topics_for(self, options: Options) -> list[str] | None:
        """The topics that a worker with these options serves, in order; None for all of a pool."""
        if options.topics is None and self.served is not None:
            return self.served()
        return options.topics

    def set_store_time(self, now_us: int) -> None:
        """Set the store's clock (µs since 1970), as read just now."""
        self._ahead_us = now_us - time.time_ns() // 1000

    def now(self) -> float:
        """
        Unix seconds by the store's clock; by this machine's until a worker has leased.
        """
        return time.time() + self._ahead_us / units.SECOND

    def add(self, handler: Handler) -> None:
        """
        Register a handler for its pattern. Raises UsageError if the pattern has a handler.
        """
        try:
            check_pattern(subscriptions.base_of(handler.pattern))
        except BadPolicy as error:
            raise UsageError(
                f"handler {handler.name}: {str(error).removeprefix('policy ')}"
            ) from error
        taken = self._by_pattern.get(handler.pattern)
        if taken is not None:
            raise UsageError(
                f'handler {handler.name}: "{handler.pattern}" is handled by {taken.name} already;'
                " give one of them another pattern"
            )
        handler.child_setup = self.child_setup
        self._by_pattern[handler.pattern] = handler
        self._by_topic.clear()

    def decorator(self, pattern: str, **options: Any) -> Callable[[F], F]:
        """The decorator `@app.handler(pattern, …)`. Raises UsageError."""
        if not isinstance(pattern, str):
            raise UsageError(
                f"handler: expected a topic or a pattern, got {pattern!r}; write"
                ' @app.handler("push.*") above the function'
            )

        def register(function: F) -> F:
            name = getattr(function, "__qualname__", function)
            injected = self.lifespans.inject(f"handler {name}", function)  # type: ignore[arg-type]
            handler = Handler(injected, pattern, **options)
            _check_parameters(handler)
            self.add(handler)
            return function

        return register

    def add_task(self, handler: Handler, *, replaces: bool = False) -> None:
        """
        Register a task by its name.

        Raises UsageError if there is a task of that name, unless `replaces` is True.
        """
        if handler.name in self._by_task and not replaces:
            raise UsageError(
                f'task "{handler.name}": a task of that name already exists; give one of them'
                " another name="
            )
        handler.child_setup = self.child_setup
        self._by_task[handler.name] = handler

    def add_own(self, handler: Handler) -> None:
        """Register one of Laneway's own tasks, which `len` and `iter` leave out."""
        self._own[handler.name] = handler

    def handled_patterns(self) -> list[str] | None:
        """
        Patterns that cover the topics of all handlers, tasks and queues, or None for any topic, but
        no subscription.
        """
        covering = self.covering_patterns() | {handler.covering for handler in self._own.values()}
        covers_all = "*" in covering and not any(map(subscriptions.is_copy, covering))
        return None if covers_all else sorted(covering)

    def key_names(self) -> list[str] | None:
        """The names of this process's keys for secrets in the store, or None if it needs none."""
        return next((found for each in self if (found := each.key_names()) is not None), None)

    def problem(self, engine: FullEngine) -> str | None:
        """Why a kind of handlers can do nothing in this process, or None if no reason is known."""
        of_each_kind = {each.kind: each for each in self}.values()
        return next((found for each in of_each_kind if (found := each.problem(engine))), None)

    def covering_patterns(self) -> set[str]:
        """Patterns that cover the topics of all handlers, tasks and queues, without Laneway's."""
        return {handler.covering for handler in self} | set(self.queues)

    def by_pattern(self) -> list[Handler]:
        """The handlers that have a pattern, sorted by it."""
        return [self._by_pattern[pattern] for pattern in sorted(self._by_pattern)]

    def has_subscriptions(self) -> bool:
        """Whether a handler is for a subscription."""
        return any(map(subscriptions.is_copy, self._by_pattern))

    def task_names(self) -> list[str]:
        """The names of all tasks, sorted."""
        return sorted(self._by_task)

    def tasks(self) -> list[Any]:
        """All tasks."""
        return [getattr(handler, "task", None) for handler in self._by_task.values()]

    def __iter__(self) -> Iterator[Handler]:
        return iter([*self._by_pattern.values(), *self._by_task.values()])

    def has_pattern(self, pattern: str) -> bool:
        """Whether a handler is registered for exactly this pattern."""
        return pattern in self._by_pattern

    def __len__(self) -> int:
        return len(self._by_pattern) + len(self._by_task) + len(self.queues)

    def task(self, name: str) -> Handler:
        """The task with this name. Raises UnknownHandler."""
        if name not in self._by_task:
            raise UnknownHandler(
                f'task "{name}": there is no task of that name; available:'
                f" {', '.join(sorted(self._by_task)) or 'none'}"
            )
        return self._by_task[name]

    def find(self, lease: Lease) -> Handler | None:
        """
        The handler of a message: the task that it names, else the handler with the most specific
        pattern. A subscription's copy of a task's call is a message like others. None if it
        has no handler.
        """
        if (
            lease.headers is not None
            and (task := lease.headers.get(TASK_HEADER)) is not None
            and SEPARATOR not in lease.topic
        ):
            handler = self._by_task.get(task) or self._own.get(task)
            if handler is None and self.find_named is not None:
                return self.find_named(task, lease.topic)
            return handler
        return self._by_topic[lease.topic]


class _ByTopic(dict[str, "Handler | None"]):
    """
    A cache: the handler of each topic by the most specific pattern. A missing topic is looked up.
    """

    def __init__(self, by_pattern: Mapping[str, Handler]) -> None:
        super().__init__()
        self._by_pattern = by_pattern

    def __missing__(self, topic: str) -> Handler | None:
        if len(self) >= MAX_CACHED_TOPICS:
            self.clear()
        by_pattern = self._by_pattern
        handler = by_pattern.get(topic)
        if SEPARATOR in topic:
            found = map(by_pattern.get, handling_patterns(topic))
            self[topic] = handler = next(filter(None, found), None)
            return handler
        end = len(topic)
        # As `policy.prefixes`, without the list: each message may have a topic of its own.
        while handler is None and (end := topic.rfind(".", 0, end)) >= 0:
            handler = by_pattern.get(topic[: end + 1] + "*")
        self[topic] = handler = handler if handler is not None else by_pattern.get("*")
        return handler
