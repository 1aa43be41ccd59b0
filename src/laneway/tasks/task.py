"""
`@app.task`: a function that can be called in the background: the call is published, a worker makes
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import string
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from laneway import arguments, codec, config, signals, units
from laneway import headers as control
from laneway.engines.base import RESULT_TTL_HEADER, TASK_HEADER
from laneway.engines.shared.refusals import brief, result_ttls_us, retries_used_up
from laneway.errors import (
    BadMessage,
    DependencyFailed,
    DestinationUnavailable,
    EngineUnavailable,
    Reject,
    Retry,
    UsageError,
)
from laneway.message import Lease, Message, Receipt
from laneway.policy import Backoff, PolicyOptions
from laneway.tasks import flow, outcomes, serializers, tagged
from laneway.tasks.binding import Binding
from laneway.tasks.job import Job, report_progress
from laneway.tasks.request import (
    ETA_HEADER,
    RETRIES_HEADER,
    Request,
    current_request,
    lineage,
    request_of,
)
from laneway.tasks.serializers import SERIALIZER_HEADER, Serializer
from laneway.working.error_details import WorkerLost, describe, error_text, text_of
from laneway.working.handler import (
    CURRENT,
    SOFT_TIME_LIMIT_HEADER,
    TIME_LIMIT_HEADER,
    Handler,
    Isolation,
)
from laneway.working.outcome import Portable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence

    from laneway.message import Draft, Settlement
    from laneway.producing.publish_options import PublishOptions
    from laneway.tasks.canvas import Group, Signature
    from laneway.tasks.host import Host
    from laneway.units import Duration

log = logging.getLogger("laneway.task")

P = ParamSpec("P")
R = TypeVar("R")


class CallOptions(TypedDict, total=False):
    """
    What `using` can say of one call.

    `delay` (a duration) or `at` (an aware datetime or Unix seconds): when it is due. `ttl`: how
    long it may wait. `priority`: -100 … 100, larger first. `key`: instead of the task's. `id`: your
    own. `topic`: instead of the task's. `headers`: short text by name. `at_front`: before all
    others of its priority. `retries`: how often it may be tried again, at most what the topic's
    policy says. `ignore_result`, `result_ttl`, `failure_ttl`, `time_limit`, `soft_time_limit`:
    instead of the task's. `link`: calls that follow with its result; `link_error`: calls made when
    it fails for good, with its id, its error and the traceback.
    """

    delay: Duration | None
    at: datetime | float | None
    ttl: Duration | None
    priority: int
    key: str | None
    id: str | None
    topic: str | None
    headers: dict[str, str] | None
    at_front: bool
    retries: int | None
    ignore_result: bool
    result_ttl: Duration | None
    failure_ttl: Duration | None
    time_limit: Duration | None
    soft_time_limit: Duration | None
    link: Signature[Any] | Sequence[Signature[Any]] | None
    link_error: Signature[Any] | Sequence[Signature[Any]] | None


CALL_OPTIONS = frozenset(CallOptions.__annotations__)
_OF_MESSAGES = frozenset({"delay", "at", "ttl", "priority", "key", "id", "at_front"})
_KEEPING = ("ignore_result", "result_ttl", "failure_ttl")

HOOKS = ("before_start", "on_success", "on_retry", "on_failure", "after_return")
"""What a task class of one's own may say."""


class TaskOptions(msgspec.Struct, kw_only=True):
    """What `app.task` says of one task, less the fields of its topic's policy."""

    topic: str | None = None
    name: str | None = None
    key: str | None = None
    id: str | None = None
    bind: bool = False
    serializer: Serializer = "json"
    autoretry_for: tuple[type[BaseException], ...] | None = None
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    isolation: Isolation | None = None
    time_limit: Duration | None = None
    soft_time_limit: Duration | None = None
    ignore_result: bool = False
    result_ttl: Duration | None = None
    failure_ttl: Duration | None = None


class TaskKeywords(PolicyOptions, total=False):
    """
    The options of `@app.task` for type checkers: those of `TaskOptions`, of the policy, and
    Celery's names of some.
    """

    topic: str | None
    name: str | None
    key: str | None
    id: str | None
    base: type[Task[Any, Any]] | None
    serializer: Serializer
    autoretry_for: tuple[type[BaseException], ...] | None
    dont_autoretry_for: tuple[type[BaseException], ...]
    isolation: Isolation | None
    time_limit: Duration | None
    soft_time_limit: Duration | None
    ignore_result: bool
    result_ttl: Duration | None
    failure_ttl: Duration | None
    max_retries: int | None
    default_retry_delay: Duration | None
    retry_backoff: bool | int
    retry_backoff_max: Duration | None
    retry_jitter: bool


RETRY_OPTIONS = (
    "max_retries",
    "default_retry_delay",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
)
"""Celery's names for the policy's `retries` and `backoff`."""


class _Later:
    """
    Stands for an argument that only the result before a task gives: nothing can be made of it yet.
    """

    def __format__(self, spec: str) -> str:
        raise BadMessage(
            "a topic, key or id cannot name the argument that the result before it gives; say it"
            " with the call: .set(topic=…, key=…)"
        )


LATER = _Later()


class Template:
    """Text that may name arguments of the call: `"mail.{customer}"`."""

    def __init__(self, task: str, what: str, text: str, signature: inspect.Signature) -> None:
        self.text = text
        self._task = task
        self._what = what
        try:
            self.fields = [
                name for _, name, _, _ in string.Formatter().parse(text) if name is not None
            ]
        except ValueError as error:
            raise UsageError(
                f'task "{task}": the {what} {text!r} is no template ({error})'
            ) from error
        for name in self.fields:
            if name not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise UsageError(
                    f'task "{task}": the {what} {text!r} names "{name}", which is no argument of'
                    f" the function; there are: {known}"
                )

    def fill(self, arguments: dict[str, Any]) -> str:
        """The text of one call. Raises BadMessage where an argument that it names is empty."""
        if not self.fields:
            return self.text
        for name in self.fields:
            if arguments[name] is None or arguments[name] == "":
                raise BadMessage(
                    f'task "{self._task}": the {self._what} {self.text!r} needs "{name}", which is'
                    f" {arguments[name]!r}"
                )
        return self.text.format_map(arguments)

    def pattern(self) -> str:
        """Of a topic: the policy pattern that covers it. Raises UsageError where none does."""
        stem, brace, _ = self.text.partition("{")
        if not brace:
            return self.text
        if not stem.endswith("."):
            raise UsageError(
                f'task "{self._task}": policy fields need a topic like "mail.{{customer}}", got'
                f" {self.text!r}; use app.policy"
            )
        return stem + "*"


class _TaskHandler(Handler):
    """Calls the task's function with the arguments in the message's body."""

    task: Task[Any, Any]

    own_address: str | None = None

    @property
    def address(self) -> str:
        if self.own_address is not None:
            return self.own_address
        return f"{self.task.function.__module__}:{self.task.function.__qualname__}.perform_apart"

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        request = self.task.request_for(lease)
        if self.own_address is not None:
            request = msgspec.structs.replace(
                request, store=(self.task.app.url, self.task.app.namespace)
            )
        if self.task.asks_for_limit:  # here, since a child process has no engine
            request = msgspec.structs.replace(
                request, retries_limit=self.task.retries_limit(request), is_limited=True
            )
        return (request,), {}

    def refusal(self, lease: Lease, losses: int) -> Exception | None:
        limit = self.task.lost_limit(lease)
        lost = losses if self.asks_for_losses else lease.attempt - 1
        if limit is None or lost <= limit:
            return None
        error = WorkerLost(f"task {self.task.name}: its worker ended while it ran")
        refused = final(error)
        refused.__cause__ = error
        return refused

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> Sequence[Draft]:
        """What is kept of a run with its end, and who is told of it."""
        if settlement.action == "retry" and error is not None and self.task.is_final(error):
            settlement.action, settlement.reason = (
                "dead",
                (settlement.error or "failed").partition("\n")[0],
            )
        times, around = result_ttls_us(lease.headers), flow.of(lease.body, lease.headers)
        if settlement.action == "retry":
            self._look_at_retries(lease, settlement, is_in_flow=around is not None)
        if times is None and around is None:
            return super().concluded(lease, returned, error, settlement)
        origin: outcomes.Origin = {"topic": lease.topic, "published_us": lease.published_us}
        if isinstance(returned, outcomes.Said):
            origin["said"], returned = returned.state, returned.about
        if error is None and self.task.tags:
            origin["tagged"], returned = (
                True,
                returned if isinstance(returned, Portable) else self.task.tagged_result(returned),
            )
        if error is None:
            kept = (
                returned
                if issubclass(type(returned), Portable)
                else outcomes.success(self.task.name, self.task.serializer, returned, **origin)
            )
        elif settlement.action in ("retry", "dead"):
            kept = outcomes.failure(describe(error), **origin)
        else:
            return ()
        never_began = issubclass(type(error), DependencyFailed)
        if never_began:
            settlement.action = "ack"  # nobody is to try again what never began
        if settlement.action == "retry" and around is not None:
            # were it dead after all, since its policy has just changed, then the engine tells of it
            return ()
        if times is not None:
            settlement.id, settlement.outcome, settlement.outcome_ttl_us = (
                lease.id,
                kept,
                times[error is not None],
            )
        if around is None or not (around.then or around.errors):
            return ()
        return flow.following(lease.id, around, outcomes.read(kept), is_own_failure=not never_began)

    def _look_at_retries(self, lease: Lease, settlement: Settlement, *, is_in_flow: bool) -> None:
        """
        A failure is final where its call allows no more retries; in a flow also where the policy
        does not: what follows is told with it.
        """
        said = control.retries(lease.headers)
        limit = said if said is not None else sys.maxsize
        if is_in_flow:
            with contextlib.suppress(
                EngineUnavailable
            ):  # the engine tells what follows of its end then
                limit = min(limit, self.task.app.engine.policy_of(lease.topic).retries)
        if lease.attempt > limit:
            settlement.action, settlement.reason = (
                "dead",
                retries_used_up(lease.attempt, settlement.error, settlement.reason),
            )


class Task(Generic[P, R]):
    """
    A function that can be called in the background. Called, it is the function.

    `delay(…)` publishes the call; a worker makes it. Arguments travel as JSON and arrive as what
    the function's annotations say (dataclasses, msgspec, attrs and pydantic models, datetime, UUID,
    Decimal, Enum …); a wrong call fails here, not in the worker.

    A class of your own (`@app.task(base=…)`) may say what is done around each run: `before_start`,
    `on_success`, `on_retry`, `on_failure`, `after_return`. They run where the function does; those
    of a coroutine may be coroutines.
    """

    def __init__(self, app: Host, function: Callable[..., Any], options: TaskOptions) -> None:
        self.app = app
        self.name = (
            function.__qualname__
            if options.name is None
            else arguments.name("task", "name", options.name)
        )
        self.function = function
        serializers.check(self.name, options.serializer)
        self.binding = Binding(self.name, function, skips=options.bind)
        self._options = options
        self.template = self._template(
            "topic", f"task.{self.name}" if options.topic is None else options.topic
        )
        self._key = None if options.key is None else self._template("key", options.key)
        self._id = None if options.id is None else self._template("id", options.id)
        self._has_hooks = any(
            getattr(type(self), name) is not getattr(Task, name) for name in HOOKS
        )
        self.asks_for_limit = self._has_hooks or options.bind
        functools.update_wrapper(self, function)
        perform = self.aperform if inspect.iscoroutinefunction(function) else self.perform
        run = {
            "isolation": options.isolation,
            "time_limit": options.time_limit,
            "soft_time_limit": options.soft_time_limit,
        }
        self.handler = _TaskHandler(perform, self.template.text, name=self.name, **run)  # type: ignore[arg-type]
        self.handler.task = self
        self.serializer = options.serializer
        self.returns = self.binding.returns
        self._headers = {TASK_HEADER: self.name}
        if options.serializer != "json":
            self._headers[SERIALIZER_HEADER] = options.serializer
        if not options.ignore_result:
            self._headers[RESULT_TTL_HEADER] = self._keeps({})

    def _keeps(self, said: Mapping[str, Any]) -> str:
        """For how long what comes of a call is kept."""
        own, app = self._options, self.app
        found = [
            next(
                value for value in (said.get(name), getattr(own, name), usual) if value is not None
            )
            for name, usual in (("result_ttl", app.result_ttl), ("failure_ttl", app.failure_ttl))
        ]
        where = f'task "{self.name}"'
        result, failure = (
            outcomes.whole_seconds(units.microseconds(arguments.seconds(where, name, value)))
            for name, value in zip(("result_ttl", "failure_ttl"), found, strict=True)
        )
        return outcomes.keeps_header(result, failure)

    def _template(self, what: str, text: str) -> Template:
        return Template(self.name, what, arguments.name("task", what, text), self.binding.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        called: R = (
            self.function(self, *args, **kwargs)
            if self._options.bind
            else self.function(*args, **kwargs)
        )
        return called

    # Calling it in the background

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """
        Publish the call. Raises BadMessage where the arguments do not fit the function or JSON, and
        what `publish` raises.
        """
        return cast("Job[R]", self.publish(args, kwargs, {}))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `delay`, awaited."""
        return cast("Job[R]", await self.apublish(args, kwargs, {}))

    # In a flow

    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """
        The call as a part of a flow: in a chain, behind a group, or as a `link` it gets the result
        before it as its first argument.
        """
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """As `s`, but what comes before it gives no argument."""
        return self.signature(args, kwargs, immutable=True)

    def signature(
        self,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[CallOptions],
    ) -> Signature[R]:
        """As `s`, with something said of the call."""
        from laneway.tasks.canvas import Signature  # noqa: PLC0415  # it stands upon tasks

        return Signature(self, tuple(args), kwargs or {}, {}, immutable=immutable).set(**options)

    def chunks(self, items: Iterable[Sequence[Any]], size: int) -> Group[list[R]]:
        """
        Calls for many items, each of which holds arguments, `size` of them in one message: a group
        whose results are lists of as many.
        """
        from laneway.tasks.canvas import chunks  # noqa: PLC0415

        return chunks(self, items, arguments.whole(f'task "{self.name}"', "size", size))

    def using(self, **options: Unpack[CallOptions]) -> Call[P, R]:
        """
        The task, with something said of the call: `task.using(delay="10m", priority=5).enqueue(…)`.

        Raises UsageError where an option is unknown; what it says is checked with the call.
        """
        self._check(options)
        return Call(self, options)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        countdown: Duration | None = None,
        eta: datetime | float | None = None,
        expires: Duration | datetime | None = None,
        task_id: str | None = None,
        queue: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Job[R]:
        """
        Celery's names for what `using` says: `countdown` is `delay`, `eta` is `at`, `expires` (also
        a moment) is `ttl`, `task_id` is `id`, `queue` is `topic`. Raises what `delay` raises.
        """
        self._check(options, "countdown", "eta", "expires", "task_id", "queue")
        said = {
            "delay": countdown,
            "at": eta,
            "ttl": _ttl(self.name, expires),
            "id": task_id,
            "topic": queue,
        }
        meant: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        for name in meant.keys() & options.keys():
            raise UsageError(
                f'task {self.name}: "{name}" is said twice, also by its name in Celery; say it once'
            )
        return cast("Job[R]", self.publish(tuple(args), kwargs or {}, {**options, **meant}))

    def map(self, items: Iterable[Any], **options: Unpack[CallOptions]) -> list[Job[R]]:
        """One call for each item, which is its only argument; published in batches."""
        return self.starmap(((item,) for item in items), **options)

    def starmap(
        self, items: Iterable[Sequence[Any]], **options: Unpack[CallOptions]
    ) -> list[Job[R]]:
        """One call for each item, which holds its arguments; published in batches."""
        self._check(options)
        if self.app.eager or _links(options):
            return [self.publish(tuple(each), {}, options) for each in items]
        receipts = self.app.publish_many(
            (self.message(tuple(each), {}, options) for each in items), progress=False
        )
        is_kept = self._is_kept(options)
        return [self.given(self._job(receipt, is_kept=is_kept)) for receipt in receipts]

    def _check(self, options: Mapping[str, Any], *more: str) -> None:
        config.refuse_unknown(
            f"task {self.name}", options.keys() - CALL_OPTIONS, (*CALL_OPTIONS, *more)
        )

    def publish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Publish a call of which something may be said."""
        if _links(options):
            return self._linked(args, kwargs, options).enqueue()
        topic, body, said = self._call_of(args, kwargs, options)
        if self.app.eager:
            return self.given(self._here_and_now(topic, body, said))
        with _Publishing(self, topic, body, said) as publishing:
            publishing.receipt = self.app.publish(topic, body, **said)
        return self.given(self._job(publishing.receipt, is_kept=self._is_kept(options)))

    async def apublish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """As `publish`, awaited."""
        if _links(options):
            return await self._linked(args, kwargs, options).aenqueue()
        topic, body, said = self._call_of(args, kwargs, options)
        if self.app.eager:
            request, receipt = self._run_for(topic, body, said)
            return self.given(
                self._local_job(receipt, await _awaited(self.handler.function(request)))
            )
        with _Publishing(self, topic, body, said) as publishing:
            publishing.receipt = await self.app.apublish(topic, body, **said)
        return self.given(self._job(publishing.receipt, is_kept=self._is_kept(options)))

    def given(self, job: Any) -> Any:
        """
        What the caller gets of a job (or of a group of them); a class of your own may make
        something else of it.
        """
        return job

    def _linked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Signature[Any]:
        """A call with others behind it."""
        made: Signature[Any] = self.signature(
            args,
            kwargs,
            **{name: value for name, value in options.items() if not name.startswith("link")},
        )
        for name, add in (("link", made.link), ("link_error", made.link_error)):
            for each in _listed(options.get(name)):
                add(each)
        return made

    def _is_kept(self, options: Mapping[str, Any]) -> bool:
        return not options.get("ignore_result", self._options.ignore_result)

    def _job(self, receipt: Receipt, *, is_kept: bool = True) -> Job[Any]:
        job_id = receipt.joined if receipt.joined is not None else receipt.id
        return Job(self.app, job_id, receipt.topic, task=self, receipt=receipt, is_kept=is_kept)

    def _local_job(self, receipt: Receipt, returned: Any) -> Job[Any]:
        ended = outcomes.read(outcomes.success(self.name, self.serializer, returned))
        return Job(self.app, receipt.id, receipt.topic, task=self, receipt=receipt, local=ended)

    def _local_job_of(self, returned: Any) -> Job[Any]:
        return self._local_job(Receipt(f"eager-{uuid.uuid4().hex}", self.template.text), returned)

    def _here_and_now(self, topic: str, body: Any, said: PublishOptions) -> Job[Any]:
        """Eager: run the call instead of publishing it. Raises what it raises."""
        request, receipt = self._run_for(topic, body, said)
        if self.handler.kind == "async":
            with ThreadPoolExecutor(1) as thread:  # the caller may be on a loop of its own
                return self._local_job(
                    receipt, thread.submit(asyncio.run, self.aperform(request)).result()
                )
        return self._local_job(receipt, self.perform(request))

    def _run_for(self, topic: str, body: Any, said: PublishOptions) -> tuple[Request, Receipt]:
        """
        The run that a worker would make of a call, its arguments decoded as they would be there.
        """
        draft = codec.draft(Message(topic, body, **said))
        made = draft.id if draft.id is not None else f"eager-{uuid.uuid4().hex}"
        sent = Lease(
            0,
            0,
            made,
            topic,
            draft.body,
            0,
            key=draft.key,
            priority=draft.priority,
            headers=draft.headers,
        )
        sent.published_us = time.time_ns() // 1000
        return self.request_for(sent), Receipt(made, topic)

    def message(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Message:
        """A call as the message that it is."""
        topic, body, said = self._call_of(args, kwargs, options)
        return Message(topic, body, **said)

    def request_for(self, lease: Lease) -> Request:
        """The run that a lease asks for. Raises Reject where its body is no call of this task."""
        body = serializers.decode(self.name, self.serializer, lease)
        if self.tags and isinstance(body, dict) and self.serializer == "json":
            body |= {name: tagged.untag(body[name]) for name in ("args", "kwargs") if name in body}
        around, before = flow.of(lease.body, lease.headers), flow.signals_of(lease)
        first = (
            flow.results_of(around, before, self._result_before)
            if around is not None and (before or around.takes)
            else ()
        )
        each = isinstance(body, dict) and body.get("each") is True
        if each:
            args, kwargs = (*first, *body["args"]), dict[str, Any]()
        else:
            is_errback = self.errors_of_each and isinstance(body, dict) and body.get("errback") == 3
            args, kwargs = self.binding.decode(
                body, first, converts=self.serializer != "pickle" and not is_errback
            )
            if is_errback:
                args = self.errback_args(args, body.get("error"))
        return request_of(self.name, lease, args, kwargs, before=before, each=each)

    def _result_before(self, signal: flow.Signal) -> Any:
        ended = outcomes.Outcome(
            status=signal.status, result=signal.result, pickled=signal.pickled, tagged=signal.tagged
        )
        return (
            outcomes.value(ended, None, self.serializer)
            if signal.status == outcomes.SUCCESS
            else None
        )

    def _call_of(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Mapping[str, Any],
        *,
        first: tuple[Any, ...] = (),
        more: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        each: bool = False,
    ) -> tuple[str, Any, PublishOptions]:
        """
        Topic, body and options of the message. Raises BadMessage.

        `first`: what stands for arguments that come only later. `more`, `headers`: what goes with
        it. `each`: the arguments are those of many calls.
        """
        bound = self.binding.bind((*first, *args), kwargs) if not each else {}
        said: PublishOptions = {"headers": self._headers}
        if self._key is not None:
            said["key"] = self._key.fill(bound)
        if self._id is not None:
            said["id"] = self._id.fill(bound)
        topic = options.get("topic") or self.template.fill(bound)
        if options or headers or current_request() is not None:
            own = self._headers_of(options) | lineage()
            told = {**(options.get("headers") or {}), **self._headers, **own, **(headers or {})}
            if options.get("ignore_result"):
                told.pop(RESULT_TTL_HEADER, None)
            said["headers"] = told
            said |= {
                name: value
                for name, value in options.items()
                if name in _OF_MESSAGES and value is not None
            }  # type: ignore[typeddict-item]
        if self.tags and self.serializer == "json":
            args, kwargs = self._tagged(args, kwargs)
        return topic, serializers.encode(self.name, self.serializer, args, kwargs, more), said

    tags: str | None = None
    """
    Whether the types of values that JSON does not know go with them: "json": of those of Celery's,
    "strict": or the call is refused.
    """

    def _tagged(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with their types; those that are annotated get theirs by that."""
        places, by_name = self.binding.annotated()
        strict = self.tags == "strict"
        made = tuple(
            each if place in places else tagged.tag(each, strict=strict)
            for place, each in enumerate(args)
        )
        return made, {
            name: each if name in by_name else tagged.tag(each, strict=strict)
            for name, each in kwargs.items()
        }

    def tagged_result(self, returned: Any) -> Any:
        """What is kept of a result."""
        return (
            tagged.tag(returned)
            if self.tags and self.serializer == "json" and self.returns is None
            else returned
        )

    def _headers_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        """What the run is to know of its call."""
        found: dict[str, str] = {}
        for name, header in (
            ("time_limit", TIME_LIMIT_HEADER),
            ("soft_time_limit", SOFT_TIME_LIMIT_HEADER),
        ):
            if options.get(name) is not None:
                found[header] = f"{arguments.seconds(f'task {self.name}', name, options[name]):g}"
        at, delay, retries = options.get("at"), options.get("delay"), options.get("retries")
        is_own = (
            any(options.get(name) is not None for name in _KEEPING)
            or RESULT_TTL_HEADER not in self._headers
        )
        if is_own and self._is_kept(options):
            found[RESULT_TTL_HEADER] = self._keeps(options)
        if retries is not None:
            found[RETRIES_HEADER] = str(
                arguments.whole(f"task {self.name}", "retries", retries, least=0)
            )
        try:
            if at is not None:
                found[ETA_HEADER] = datetime.fromtimestamp(
                    units.moment(at) / units.SECOND, UTC
                ).isoformat()
            elif delay is not None:
                found[ETA_HEADER] = (
                    datetime.now(UTC) + timedelta(seconds=units.seconds(delay))
                ).isoformat()
        except (ValueError, OverflowError, OSError) as error:
            raise BadMessage(f"task {self.name}: {error}") from error
        return found

    # Inside a run

    @property
    def request(self) -> Request:
        """The run that the caller is part of. Raises UsageError outside of one."""
        found = current_request()
        if found is None:
            raise UsageError(
                f'task "{self.name}": there is a request only while a worker runs the task; called'
                " as a function it has none"
            )
        return found

    def retry(
        self,
        *,
        countdown: Duration | None = None,
        eta: datetime | float | None = None,
        exc: BaseException | None = None,
        max_retries: int | None = None,
    ) -> NoReturn:
        """
        Give up this attempt and try again, after `countdown` or at `eta` (default: the policy's
        backoff): `raise self.retry(countdown=10)`.

        `exc`: why; by itself what is being handled. After `max_retries` (at most the policy's) it
        is a dead letter with that reason. Raises Retry, or Reject where there are no more retries.
        """
        request = self.request
        limit = (
            self.retries_limit(request)
            if max_retries is None
            else min(max_retries, self.retries_limit(request))
        )
        cause = exc if exc is not None else sys.exception()
        if request.retries >= limit:
            raise used_up(request.attempt, cause) from cause
        delay = countdown
        if eta is not None:
            delay = max(0.0, units.moment(eta) / units.SECOND - self.app.handlers.now())
        raise Retry(str(cause) if cause is not None else "", delay=delay) from cause

    def retries_limit(self, request: Request) -> int:
        """
        How often a run may be tried again: what its call said, at most what the topic's policy
        says.
        """
        if request.is_limited:
            return cast("int", request.retries_limit)
        policy = sys.maxsize if self.app.eager else self.app.engine.policy_of(request.topic).retries
        return policy if request.retries_limit is None else min(request.retries_limit, policy)

    def update_state(self, state: str = "PROGRESS", meta: Any = None) -> None:
        """
        Say how far this run is: `job.status` and `job.progress` tell it, whoever watches the job
        sees it.

        `meta`: anything that JSON can hold; with `current` and `total` it becomes a bar. In a
        coroutine it is on its way when this returns.
        """
        report_progress(self.app, self.request, state, meta)

    # What a class of your own may say

    def before_start(self, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called before each run; what it raises is the run's failure."""

    def on_success(
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Called when it has returned."""

    def on_retry(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> Any:
        """Called when it failed and will be tried again. `einfo`: the traceback as text."""

    def on_failure(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> Any:
        """Called when it failed for good."""

    def after_return(
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str | None,
    ) -> Any:
        """
        Called after each run: `status` is "SUCCESS", "RETRY" or "FAILURE", `retval` what it
        returned or raised.
        """

    # What a worker calls

    def perform(self, request: Request) -> Any:
        """Run the function. Raises what it raised, or what that means for the message."""
        token = CURRENT.set(request)
        try:
            try:
                if signals.task_prerun.receivers:
                    signals.task_prerun.send(
                        self,
                        task_id=request.id,
                        task=self,
                        args=request.args,
                        kwargs=request.kwargs,
                    )
                if self._has_hooks:
                    self.before_start(request.id, request.args, request.kwargs)
                returned = self._run(request)
            except Exception as error:
                verdict = self._verdict(request, error)
                for hook in self._hooks_of_failure(request, error, verdict):
                    with _Told(self.name):
                        hook()
                if verdict is error:
                    raise
                raise verdict from error
            for hook in self._hooks_of_success(request, returned):
                with _Told(self.name):
                    hook()
            return returned
        finally:
            CURRENT.reset(token)

    def perform_apart(self, request: Request) -> Portable | None:
        """As `perform`, in a child process: what it returned, as it is kept."""
        returned = self.perform(request)
        if not request.is_kept:
            return None
        published_us = round(request.published_at * units.SECOND)
        outcome = outcomes.success(
            self.name, self.serializer, returned, topic=request.topic, published_us=published_us
        )
        return Portable(outcome)

    async def aperform(self, request: Request) -> Any:
        """As `perform`, of a coroutine."""
        token = CURRENT.set(request)
        try:
            try:
                if signals.task_prerun.receivers:
                    signals.task_prerun.send(
                        self,
                        task_id=request.id,
                        task=self,
                        args=request.args,
                        kwargs=request.kwargs,
                    )
                if self._has_hooks:
                    await _awaited(self.before_start(request.id, request.args, request.kwargs))
                returned = await self._run(request)
            except Exception as error:
                verdict = self._verdict(request, error)
                for hook in self._hooks_of_failure(request, error, verdict):
                    with _Told(self.name):
                        await _awaited(hook())
                if verdict is error:
                    raise
                raise verdict from error
            for hook in self._hooks_of_success(request, returned):
                with _Told(self.name):
                    await _awaited(hook())
            return returned
        finally:
            CURRENT.reset(token)

    def _run(self, request: Request) -> Any:
        if request.each:
            return self._run_each(request)
        args, kwargs = (
            self.binding.complete(request)
            if self.binding.injected
            else (request.args, request.kwargs)
        )
        return self._invoke(args, kwargs)

    def _invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return (
            self.function(self, *args, **kwargs)
            if self._options.bind
            else self.function(*args, **kwargs)
        )

    def _run_each(self, request: Request) -> Any:
        """One call after the other, of `chunks`."""
        if self.handler.kind == "async":
            return self._arun_each(request)
        return [self._run(one) for one in self._single_runs(request)]

    async def _arun_each(self, request: Request) -> list[Any]:
        return [await self._run(one) for one in self._single_runs(request)]

    def _single_runs(self, request: Request) -> Iterator[Request]:
        for each in request.args:
            args, kwargs = self.binding.decode(
                {"args": each, "kwargs": {}}, converts=self.serializer != "pickle"
            )
            yield msgspec.structs.replace(request, args=args, kwargs=kwargs, each=False)

    errors_of_each = False
    """
    As Celery: an error handler of a group is called for each of its members that fails, and gets
    (request, error, traceback), or the id alone.
    """

    def errback_takes(self, own: int) -> int:
        """
        How many arguments about a failure it takes as an error handler, before so many of its own.
        """
        del own
        return 3

    def errback_args(self, args: tuple[Any, ...], error: Any) -> tuple[Any, ...]:
        """Its arguments as an error handler; `error`: what is known of the error."""
        del error
        return args

    retries_eagerly = False
    """Whether a call that runs where it is made is tried again there."""

    def lost_limit(self, lease: Lease) -> int | None:
        """
        How often a run may lose its worker, and be tried again alone, since another's run may have
        ended it; None: as the policy says.
        """
        said = control.retries(lease.headers)
        return None if said is None else max(1, said)

    def is_final(self, error: BaseException) -> bool:
        """Whether what ended a run from outside, like its time limit, is never tried again."""
        del error
        return False

    def _verdict(self, request: Request, error: Exception) -> Exception:
        """
        What a failure means: itself (the policy decides), or Reject where the call or the task says
        that it is final.
        """
        if isinstance(error, (Reject, DestinationUnavailable)):
            return error
        options = self._options
        if not isinstance(error, Retry):
            retried = options.autoretry_for is None or isinstance(error, options.autoretry_for)
            if not retried or isinstance(error, options.dont_autoretry_for):
                return final(error)
        if request.retries_limit is not None and request.retries >= request.retries_limit:
            return used_up(request.attempt, error)
        return error

    def _hooks_of_success(self, request: Request, returned: Any) -> Iterator[Callable[[], Any]]:
        if self._has_hooks:
            about = (request.id, request.args, request.kwargs)
            yield functools.partial(self.on_success, returned, *about)
            yield functools.partial(self.after_return, "SUCCESS", returned, *about, None)
        if signals.of_runs():
            yield functools.partial(signals.task_success.send, self, result=returned)
            yield functools.partial(
                signals.task_postrun.send,
                self,
                **_told_of(request),
                retval=returned,
                state="SUCCESS",
            )

    def _hooks_of_failure(
        self, request: Request, error: Exception, verdict: Exception
    ) -> Iterator[Callable[[], Any]]:
        if self._has_hooks or signals.of_runs():
            is_final = isinstance(verdict, Reject) or (self.app.eager and not self.retries_eagerly)
            why = (
                error.__cause__
                if isinstance(error, (Retry, Reject)) and error.__cause__ is not None
                else error
            )
            einfo, state = text_of(why), "FAILURE" if is_final else "RETRY"
            about = (request.id, request.args, request.kwargs, einfo)
            if self._has_hooks:
                yield functools.partial(self.on_failure if is_final else self.on_retry, why, *about)
                yield functools.partial(self.after_return, state, why, *about)
            if is_final:
                told = {
                    **_told_of(request),
                    "exception": why,
                    "traceback": why.__traceback__,
                    "einfo": einfo,
                }
                yield functools.partial(signals.task_failure.send, self, **told)
            else:
                yield functools.partial(
                    signals.task_retry.send, self, request=request, reason=why, einfo=einfo
                )
            yield functools.partial(
                signals.task_postrun.send, self, **_told_of(request), retval=why, state=state
            )

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.template.text}>"


if TYPE_CHECKING:

    class AsyncTask(Task[P, R]):
        """A task of a coroutine: called, it gives one to await."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...  # type: ignore[override]


class _Publishing:
    """Tells signals of a call that is published."""

    def __init__(
        self, task: Task[Any, Any], topic: str, body: Any, said: Mapping[str, Any]
    ) -> None:
        self._task = task
        self._told = {
            "body": body,
            "headers": {**(said.get("headers") or {}), "task": task.name},
            "routing_key": topic,
            "exchange": "",
        }
        self.receipt: Any = None

    def __enter__(self) -> _Publishing:
        if signals.before_task_publish.receivers:
            signals.before_task_publish.send(self._task.name, **self._told)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None and signals.after_task_publish.receivers:
            self._told["headers"]["id"] = self.receipt.id
            signals.after_task_publish.send(self._task.name, **self._told)


class _Told:
    """A hook's own failure is logged: the run is over, and its outcome stands."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, Exception):
            log.error('task "%s": a hook failed', self._task, exc_info=error)
            return True
        return False


def _told_of(request: Request) -> dict[str, Any]:
    return {"task_id": request.id, "args": request.args, "kwargs": request.kwargs}


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def final(cause: BaseException) -> Reject:
    """A failure that is not tried again: its first line is the reason, all of it is kept."""
    text = error_text(cause)
    return Reject(brief(text), error=text)


def used_up(attempts: int, cause: BaseException | None) -> Reject:
    """A failure after which the call allows no more retries."""
    text = error_text(cause) if cause is not None else "the task asked for one more"
    return Reject(retries_used_up(attempts, text), error=text if cause is not None else None)


def _links(options: Mapping[str, Any]) -> bool:
    """Whether other calls go with it."""
    return options.get("link") is not None or options.get("link_error") is not None


def _listed(said: Any) -> list[Any]:
    return [] if said is None else list(said) if isinstance(said, (list, tuple)) else [said]


def _ttl(task: str, expires: Duration | datetime | None) -> Duration | None:
    """For how long a call may wait that expires then."""
    if not isinstance(expires, datetime):
        return expires
    left = units.moment(expires) / units.SECOND - datetime.now(UTC).timestamp()
    if left <= 0:
        raise BadMessage(
            f"task {task}: the call would expire at {expires}, which is past; give it a later"
            " moment"
        )
    return left


class Call(Generic[P, R]):
    """A task with something said of its next calls: what `using` gives."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Publish a call. Raises what `delay` raises."""
        return cast("Job[R]", self._task.publish(args, kwargs, self._options))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """As `enqueue`, awaited."""
        return cast("Job[R]", await self._task.apublish(args, kwargs, self._options))

    def __repr__(self) -> str:
        return f"<Call of {self._task.name} using {self._options}>"


class TaskDecorator:
    """
    What `app.task(…)` returns: makes a function a `Task`, registers it and sets its topic's policy.
    """

    def __init__(
        self,
        app: Host,
        base: type[Task[Any, Any]] | None,
        options: TaskOptions,
        policy: dict[str, Any],
    ) -> None:
        self._app = app
        self._base = _base(base)
        self._options = options
        self._policy = _with_retries(policy)

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...

    def __call__(self, function: Callable[P, Any]) -> Any:
        """Make the function a task. Raises UsageError, BadPolicy."""
        task = self._base(self._app, function, self._options)
        self._app.handlers.add_task(task.handler)
        if self._policy:
            self._app.policy(task.template.pattern(), **self._policy)
        return task


class BoundTaskDecorator(TaskDecorator):
    """With `bind=True`: the function's first argument is the task itself."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R]) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Make the function a task. Raises UsageError, BadPolicy."""
        return super().__call__(function)


def _base(base: object) -> type[Task[Any, Any]]:
    if base is None:
        return Task
    if not isinstance(base, type) or not issubclass(base, Task):
        raise UsageError(
            f"task: expected base to be a class made of laneway.Task, got {base!r:.80}"
        )
    return base


def _with_retries(policy: dict[str, Any]) -> dict[str, Any]:
    """Fields of a policy, with Celery's names of the retries' as ours."""
    said = {name: policy[name] for name in RETRY_OPTIONS if policy.get(name) is not None}
    made = {name: value for name, value in policy.items() if name not in RETRY_OPTIONS}
    for ours, theirs in (("retries", {"max_retries"}), ("backoff", {*RETRY_OPTIONS[1:]})):
        if ours in made and (twice := theirs & said.keys()):
            raise UsageError(f'task: "{ours}" and "{min(twice)}" say the same; give one of them')
    if "max_retries" in said:
        made["retries"] = said["max_retries"]
    backoff = said.get("retry_backoff", False)
    if backoff is not False:
        base = 1.0 if backoff is True else arguments.seconds("task", "retry_backoff", backoff)
        cap = arguments.seconds("task", "retry_backoff_max", said.get("retry_backoff_max", 600))
        made["backoff"] = Backoff(
            base=base, cap=max(cap, base), jitter=bool(said.get("retry_jitter", True))
        )
    elif "default_retry_delay" in said:
        made["backoff"] = said["default_retry_delay"]
    return made
