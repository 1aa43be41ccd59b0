"""
What handles which message: registration, its checks, and the choice of the most specific pattern.
"""

from __future__ import annotations

import inspect
import logging
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from laneway import arguments, codec, headers, units
from laneway.engines.base import TASK_HEADER
from laneway.errors import BadPolicy, Reject, UnknownHandler, UsageError
from laneway.policy import check_pattern
from laneway.working.middleware import HandlingMiddlewares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laneway.message import Draft, Lease, Message, Settlement
    from laneway.units import Duration

log = logging.getLogger("laneway.worker")

TIME_LIMIT_HEADER, SOFT_TIME_LIMIT_HEADER = headers.TIME_LIMIT, headers.SOFT_TIME_LIMIT
"""Limits of one call instead of its handler's: seconds."""

CURRENT: ContextVar[Any] = ContextVar("laneway_run")
"""The run of a task that this code is part of: a `laneway.Request`."""

DELIVERY: ContextVar[Any] = ContextVar("laneway_delivery", default=None)
"""
What the running handler was given: a lease, a message, or of a batch what its log lines are to say.
"""

KNOWN_TOPICS = 100_000
"""Topics whose handler is remembered; beyond it the memory begins anew."""

Isolation = Literal["thread", "process"]


class Handler:
    """
    One function that handles messages, and how it is run.

    `kind`: `"async"` on the event loop, `"thread"`, or `"process"`: a child that can be killed.
    `batch`: how many messages it takes at once, None: one by one.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        pattern: str,
        *,
        name: str | None = None,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
        batch: int | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
    ) -> None:
        self.function = function
        self.pattern = pattern
        self.name = name or str(getattr(function, "__qualname__", function))
        self.adds_nothing = type(self).concluded is Handler.concluded
        """Nothing but an ack comes of a run that returned."""
        where = f"handler {self.name}"
        self.kind = _kind(where, function, isolation)
        self.concurrency = _count(where, "concurrency", concurrency)
        self.batch = _count(where, "batch", batch)
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
        """`module:attribute` of the function, by which a child process finds it."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is called with. Raises Reject where the body cannot be that."""
        try:
            return (codec.message_of(lease),), {}
        except ValueError as error:
            raise Reject(str(error)) from error

    asks_for_losses = False
    """
    Whether `refusal` is to be told how often a message has lost its worker: that is one more
    question to the engine.
    """

    def refusal(self, lease: Lease, losses: int) -> Exception | None:
        """
        What a message ends with that has lost its worker `losses` times in a row, the starts of
        suspects counted; None: it is tried once more.
        """
        del lease, losses
        return None

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> Sequence[Draft]:
        """
        The handler has ended, and this is how its lease will: what is kept of that may be added.
        Returns what is to be published with it.

        Raises Reject where what was returned cannot be kept; it is asked again then.
        """
        if returned is not None and error is None:
            log.debug("handler %s returned %.200r, which is not used", self.name, returned)
        del lease, settlement
        return ()


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
    if isolation == "process" and (
        "<" in getattr(function, "__qualname__", "<") or not getattr(function, "__module__", None)
    ):
        raise UsageError(
            f'{where}: isolation="process" needs a function at the top of a module, so that the'
            " child can import it"
        )
    return isolation or "thread"


def check_parameters(handler: Handler) -> None:
    """
    A handler gets the message and nothing else. Raises UsageError where its function cannot be
    called so.
    """
    try:
        signature = inspect.signature(handler.function)
    except (TypeError, ValueError):  # some written in C do not tell
        return
    try:
        signature.bind(None)
    except TypeError as error:
        what = "messages" if handler.batch is not None else "message"
        raise UsageError(
            f"handler {handler.name}: it is called with the {what} as its one argument, and takes"
            f" {signature} ({error}); write def {handler.name.rpartition('.')[2]}({what}), or use"
            " @app.task for other arguments"
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
    What the code that runs here is about: message, topic, attempt, and of a task its name; empty
    outside of handlers.
    """
    run = CURRENT.get(None)
    if run is not None:
        return {"task": run.task, "message": run.id, "topic": run.topic, "attempt": run.attempt}
    delivery = DELIVERY.get()
    if delivery is None or isinstance(delivery, dict):
        return dict(delivery or {})
    return {"message": delivery.id, "topic": delivery.topic, "attempt": delivery.attempt}


def kind_of(message: Message | Lease) -> str:
    """
    What a message is one of, among few: the task that it names, else the pattern one above its
    topic.
    """
    task = (message.headers or {}).get(TASK_HEADER)
    if task is not None:
        return task
    stem, dot, _ = message.topic.rpartition(".")
    return f"{stem}.*" if dot else message.topic


class Handlers:
    """
    All handlers of an application, by pattern, and tasks by name; and what surrounds them all.
    """

    def __init__(self) -> None:
        self._by_pattern: dict[str, Handler] = {}
        self._by_task: dict[str, Handler] = {}
        self._own: dict[str, Handler] = {}
        self.queues: dict[str, Any] = {}
        """Topics where functions are called by their names."""
        self.find_named: Callable[[str, str], Handler | None] | None = None
        """Finds who handles the call of a function by its name in a topic."""
        self._by_topic = _ByTopic(self._by_pattern)
        self.middlewares = HandlingMiddlewares()
        self._ahead_us = 0

    def store_time(self, now_us: int) -> None:
        """What time it is at the store, as it has just said."""
        self._ahead_us = now_us - time.time_ns() // 1000

    def now(self) -> float:
        """
        Unix seconds by the store's clock, as far as a worker has read it; else by this machine's.
        """
        return time.time() + self._ahead_us / units.SECOND

    def add(self, handler: Handler) -> None:
        """
        Register for the handler's pattern. Raises UsageError where the pattern has one already.
        """
        try:
            check_pattern(handler.pattern)
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
        self._by_pattern[handler.pattern] = handler
        self._by_topic.clear()

    def add_task(self, handler: Handler, *, replaces: bool = False) -> None:
        """
        Register a task by its name. Raises UsageError where the name is taken, unless it `replaces`
        that.
        """
        if handler.name in self._by_task and not replaces:
            raise UsageError(
                f'task "{handler.name}": there is a task of that name already; give one of them'
                " another name="
            )
        self._by_task[handler.name] = handler

    def add_own(self, handler: Handler) -> None:
        """Register one of Laneway's own tasks, which is not counted."""
        self._own[handler.name] = handler

    def coverage(self) -> list[str] | None:
        """
        Patterns that cover the topics of all handlers, tasks and queues; None: it may be any topic.
        """
        texts = [
            handler.pattern
            for handler in (
                *self._by_pattern.values(),
                *self._by_task.values(),
                *self._own.values(),
            )
        ]
        found = {_covering(text) for text in texts} | set(self.queues)
        return None if "*" in found else sorted(found)

    def by_pattern(self) -> list[Handler]:
        """Those that were registered for a pattern, in the order of these."""
        return [self._by_pattern[pattern] for pattern in sorted(self._by_pattern)]

    def task_names(self) -> list[str]:
        """The names of all tasks, in their order."""
        return sorted(self._by_task)

    def tasks(self) -> list[Any]:
        """All tasks."""
        return [getattr(handler, "task", None) for handler in self._by_task.values()]

    def __iter__(self) -> Iterator[Handler]:
        return iter([*self._by_pattern.values(), *self._by_task.values()])

    def has_pattern(self, pattern: str) -> bool:
        """Whether exactly this pattern is handled."""
        return pattern in self._by_pattern

    def __len__(self) -> int:
        return len(self._by_pattern) + len(self._by_task) + len(self.queues)

    def task(self, name: str) -> Handler:
        """The task of a name. Raises UnknownHandler."""
        if name not in self._by_task:
            raise UnknownHandler(
                f'task "{name}": there is none of that name; there are:'
                f" {', '.join(sorted(self._by_task)) or 'none'}"
            )
        return self._by_task[name]

    def find(self, lease: Lease) -> Handler | None:
        """
        Who handles a delivery: the task it names, else the handler with the most specific pattern.
        """
        if lease.headers is not None and (task := lease.headers.get(TASK_HEADER)) is not None:
            found = self._by_task.get(task) or self._own.get(task)
            return (
                self.find_named(task, lease.topic)
                if found is None and self.find_named is not None
                else found
            )
        return self._by_topic[lease.topic]


class _ByTopic(dict[str, "Handler | None"]):
    """
    Who handles a topic, by the most specific pattern; whoever asks for one that is not there finds
    it.
    """

    def __init__(self, by_pattern: Mapping[str, Handler]) -> None:
        super().__init__()
        self._by_pattern = by_pattern

    def __missing__(self, topic: str) -> Handler | None:
        if len(self) >= KNOWN_TOPICS:
            self.clear()
        by_pattern = self._by_pattern
        found = by_pattern.get(topic)
        end = len(topic)
        while (
            found is None and (end := topic.rfind(".", 0, end)) >= 0
        ):  # as `policy.prefixes`, without the list: this may be every message
            found = by_pattern.get(topic[: end + 1] + "*")
        self[topic] = found = found if found is not None else by_pattern.get("*")
        return found
