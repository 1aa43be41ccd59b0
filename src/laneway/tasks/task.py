"""`Task`: a function that can be called in the background. Its calls are messages."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    cast,
)

from laneway import arguments, codec, config, units
from laneway.engines.base import RESULT_TTL_HEADER, TASK_HEADER
from laneway.errors import BadMessage, Retry, UsageError
from laneway.headers import COST as COST_HEADER
from laneway.message import Lease, Message, Receipt
from laneway.producing.publish_options import PublishOptions
from laneway.runtime.runtime import Runtime
from laneway.tasks import canvas, outcomes, serializers, steps, tagged_values
from laneway.tasks.canvas import Group, Signature
from laneway.tasks.invocation import Invocation
from laneway.tasks.job import Job, report_progress
from laneway.tasks.options import (
    CALL_OPTIONS,
    MESSAGE_OPTIONS,
    RESULT_OPTIONS,
    CallOptions,
    TaskOptions,
    has_links,
    listed,
)
from laneway.tasks.request import (
    ETA_HEADER,
    RETRIES_HEADER,
    Request,
    current_request,
    lineage,
)
from laneway.tasks.running import RunnableTask, TaskHandler, used_up
from laneway.tasks.serializers import SERIALIZER_HEADER
from laneway.tasks.template import Template
from laneway.units import Duration
from laneway.working.handler import SOFT_TIME_LIMIT_HEADER, TIME_LIMIT_HEADER

P = ParamSpec("P")
R = TypeVar("R")


class Task(RunnableTask, Generic[P, R]):
    """
    A function that can be called in the background. Called directly, it is the function.

    `delay(…)` publishes a call, and a worker makes it. Arguments are encoded as JSON and arrive as
    the types of the function's annotations (dataclasses, msgspec, attrs and pydantic models,
    datetime, UUID, Decimal, Enum …). A call with a missing or unknown argument fails here; an
    argument of the wrong type fails in the worker.

    A subclass (`@app.task(base=…)`) may have hooks that run around each run: `before_start`,
    `on_success`, `on_retry`, `on_failure`, `after_return`.

    Example:
        @app.task(topic="mail.{customer}")
        def mail(customer: str, template: str) -> None: ...

        mail.delay("acme", "welcome")

    """

    signature_type: ClassVar[type[Signature[Any]]] = canvas.Signature

    def __init__(
        self, runtime: Runtime, function: Callable[..., Any], options: TaskOptions
    ) -> None:
        super().__init__(runtime, function, options)
        self.template = self._template(
            "topic", f"task.{self.name}" if options.topic is None else options.topic
        )
        self._key = None if options.key is None else self._template("key", options.key)
        self._id = None if options.id is None else self._template("id", options.id)
        functools.update_wrapper(self, function)
        self.handler = TaskHandler(self, self.template.text, options)
        self._headers = codec.CheckedHeaders({TASK_HEADER: self.name})
        if options.serializer != "json":
            self._headers[SERIALIZER_HEADER] = options.serializer
        if not options.ignore_result:
            self._headers[RESULT_TTL_HEADER] = self._result_ttls({})
        if options.cost != 1:
            self._headers[COST_HEADER] = codec.cost_text(f'task "{self.name}"', options.cost)

    def _result_ttls(self, options: Mapping[str, Any]) -> str:
        """The header with the seconds for which a result and a failure are stored."""
        own, runtime = self._options, self.runtime
        ttls = [
            next(
                value
                for value in (options.get(name), getattr(own, name), default)
                if value is not None
            )
            for name, default in (
                ("result_ttl", runtime.result_ttl),
                ("failure_ttl", runtime.failure_ttl),
            )
        ]
        where = f'task "{self.name}"'
        result, failure = (
            outcomes.whole_seconds(units.microseconds(arguments.seconds(where, name, value)))
            for name, value in zip(("result_ttl", "failure_ttl"), ttls, strict=True)
        )
        return outcomes.keeps_header(result, failure)

    def _template(self, what: str, text: str) -> Template:
        return Template(self.name, what, arguments.name("task", what, text), self.binding.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function directly."""
        called: R = (
            self.function(self, *args, **kwargs)
            if self._options.bind
            else self.function(*args, **kwargs)
        )
        return called

    # Calling it in the background

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """
        Publish a call. Returns its handle. Raises BadMessage if the arguments do not fit the
        function or JSON, BacklogFull, EngineUnavailable.

        `delay(…, connection=…)` publishes in that connection's transaction, as
        `using(connection=…)` does, unless the function has a parameter of this name.
        """
        return cast("Job[R]", self.publish(args, kwargs, self._taken_from(kwargs)))

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async variant of `delay`."""
        return cast("Job[R]", await self.apublish(args, kwargs, self._taken_from(kwargs)))

    def _taken_from(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The options of a call that are among its arguments, and are taken out of these."""
        if "connection" not in kwargs or "connection" in self.binding.signature.parameters:
            return {}
        return {"connection": kwargs.pop("connection")}

    def using(self, **options: Unpack[CallOptions]) -> Call[P, R]:
        """
        Return the task with options for its next calls:
        `task.using(delay="10m", priority=5).enqueue(…)`.

        Raises UsageError if an option is unknown; the values are checked with the call.
        """
        self.check_options(options)
        return Call(self, options)

    def map(self, items: Iterable[Any], **options: Unpack[CallOptions]) -> list[Job[R]]:
        """Publish a call for each item, with the item as its only argument, in batches."""
        return self.starmap(((item,) for item in items), **options)

    def starmap(
        self, items: Iterable[Sequence[Any]], **options: Unpack[CallOptions]
    ) -> list[Job[R]]:
        """Publish a call for each item, which holds its arguments, in batches."""
        self.check_options(options)
        if self.runtime.eager or has_links(options):
            return [self.publish(tuple(each), {}, options) for each in items]
        receipts = self.runtime.producer_in(options.get("connection")).publish_many(
            (self.message(tuple(each), {}, options) for each in items), progress=False
        )
        is_kept, given, job = self.keeps_result(options), self.given, self.job
        return [given(job(receipt, is_kept=is_kept)) for receipt in receipts]

    # In a flow

    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """
        Create a call for a flow. In a chain, after a group, or as a `link`, the previous result
        becomes its first argument.
        """
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """As `s`, but without the previous result."""
        return self.signature(args, kwargs, immutable=True)

    def signature(
        self,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[CallOptions],
    ) -> Signature[R]:
        """As `s`, or `si` with `immutable`, with the options of a call."""
        call: Signature[R] = self.signature_type(
            self, tuple(args), kwargs or {}, {}, immutable=immutable
        )
        return call.set(**options)

    def chunks(self, items: Iterable[Sequence[Any]], size: int) -> Group[list[R]]:
        """
        Create a group that calls the task for each item, with `size` calls in a message; items
        hold arguments. Each member's result is the list of its calls' results.
        """
        return canvas.chunks(self, items, arguments.whole(f'task "{self.name}"', "size", size))

    # Publishing

    def check_options(self, options: Mapping[str, Any], *more: str) -> None:
        """Raise UsageError for an unknown option. `more`: other names to suggest."""
        config.refuse_unknown(
            f"task {self.name}", options.keys() - CALL_OPTIONS, (*CALL_OPTIONS, *more)
        )

    def named_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The given options, checked; a subclass may take other names. Raises UsageError."""
        given = {name: value for name, value in options.items() if value is not None}
        self.check_options(given)
        return given

    def publish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Publish a call with options. Returns its handle. Raises the errors of `delay`."""
        if self._needs_steps(options):
            return steps.run(self._publishing(args, kwargs, options))
        producer = self.runtime.producer_in(options.get("connection"))
        receipt = producer.publish(self.message(args, kwargs, options), None)
        return self.given(self.job(receipt, is_kept=self.keeps_result(options)))

    async def apublish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """The async variant of `publish`."""
        if self._needs_steps(options):
            return await steps.arun(self._publishing(args, kwargs, options))
        producer = self.runtime.producer_in(options.get("connection"))
        receipt = await producer.apublish(self.message(args, kwargs, options), None)
        return self.given(self.job(receipt, is_kept=self.keeps_result(options)))

    def _needs_steps(self, options: Mapping[str, Any]) -> bool:
        """Whether publishing a call is more than one step: links, or a run here."""
        return bool((options and has_links(options)) or self.runtime.eager)

    def _publishing(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> steps.Steps:
        """The steps of publishing a call. Returns its handle."""
        if has_links(options):
            linked = self._linked(args, kwargs, options)
            return (yield linked.enqueue, linked.aenqueue)
        call = self.invocation(args, kwargs, options)
        if self.runtime.eager:
            request, receipt = self._run_for(call)
            returned = yield (
                functools.partial(self._run_here, request),
                functools.partial(self.handler.function, request),
            )
            return self.given(self._local_job(receipt, returned))
        receipt = yield from self._sending(call)
        return self.given(self.job(receipt, is_kept=self.keeps_result(options)))

    def _sending(self, call: Invocation) -> steps.Steps:
        """The steps of publishing an encoded call. Returns its receipt."""
        topic, body, send = call.topic, call.body, call.options
        return (
            yield (
                functools.partial(self.runtime.publish, topic, body, send),
                functools.partial(self.runtime.apublish, topic, body, send),
            )
        )

    def prepared(self, call: Signature[R], job_id: str) -> Signature[R]:
        """
        The call that is published for one that starts a flow; a subclass may change or refuse it.
        """
        del job_id
        return call

    def given(self, job: Any) -> Any:
        """The handle for the caller, of a job or of a group; a subclass may wrap it."""
        return job

    def _linked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Signature[Any]:
        """The call as a signature with its links."""
        call: Signature[Any] = self.signature(
            args,
            kwargs,
            **{name: value for name, value in options.items() if not name.startswith("link")},
        )
        for name, add in (("link", call.link), ("link_error", call.link_error)):
            for each in listed(options.get(name)):
                add(each)
        return call

    def keeps_result(self, options: Mapping[str, Any]) -> bool:
        """Whether the result of a call with these options is stored."""
        return not options.get("ignore_result", self._options.ignore_result)

    def job(self, receipt: Receipt, *, is_kept: bool = True) -> Job[Any]:
        """The handle of a published call. `is_kept`: whether its result is stored."""
        job_id = receipt.id if receipt.joined is None else receipt.joined
        return Job(self.runtime, job_id, receipt.topic, task=self, receipt=receipt, is_kept=is_kept)

    def local_job(self, returned: Any) -> Job[Any]:
        """The handle of a call that ran here and returned this."""
        return self._local_job(Receipt(f"eager-{uuid.uuid4().hex}", self.template.text), returned)

    def _local_job(self, receipt: Receipt, returned: Any) -> Job[Any]:
        outcome = outcomes.read(outcomes.success(self.name, self.serializer, returned))
        return Job(
            self.runtime, receipt.id, receipt.topic, task=self, receipt=receipt, local=outcome
        )

    def _run_here(self, request: Request) -> Any:
        """Run a call instead of publishing it. Raises the errors of the run."""
        if self.handler.kind != "async":
            return self.perform(request)
        with ThreadPoolExecutor(1) as thread:  # the caller may run on an event loop
            return thread.submit(asyncio.run, self.aperform(request)).result()

    def _run_for(self, call: Invocation) -> tuple[Request, Receipt]:
        """The run that a worker would make of a call, with its arguments encoded and decoded."""
        draft = codec.draft(call.message())
        message_id = draft.id if draft.id is not None else f"eager-{uuid.uuid4().hex}"
        lease = Lease(
            0,
            0,
            message_id,
            call.topic,
            draft.body,
            0,
            key=draft.key,
            priority=draft.priority,
            headers=draft.headers,
        )
        lease.published_us = time.time_ns() // 1000
        return self.request_for(lease), Receipt(message_id, call.topic)

    def message(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Message:
        """A call as a message. Raises BadMessage."""
        return self.invocation(args, kwargs, options).message()

    def invocation(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Mapping[str, Any],
        *,
        first: tuple[Any, ...] = (),
        more: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        each: bool = False,
    ) -> Invocation:
        """
        Encode a call.

        `first`: placeholders for arguments that are only known later. `more`: other fields of the
        body. `headers`: other headers. `each`: `args` has the arguments of several calls. Raises
        BadMessage if the arguments do not fit the function or cannot be encoded.
        """
        bound = self.binding.bind((*first, *args), kwargs) if not each else {}
        send: PublishOptions = {"headers": self._headers}
        if self._key is not None:
            send["key"] = self._key.fill(bound)
        if self._id is not None:
            send["id"] = self._id.fill(bound)
        topic = options.get("topic") or self.template.fill(bound)
        if options or headers or current_request() is not None:
            own = self._headers_of(options) | lineage()
            combined = {**(options.get("headers") or {}), **self._headers, **own, **(headers or {})}
            if options.get("ignore_result"):
                combined.pop(RESULT_TTL_HEADER, None)
            send["headers"] = combined
            send |= {
                name: value
                for name, value in options.items()
                if name in MESSAGE_OPTIONS and value is not None
            }  # type: ignore[typeddict-item]
        if self.tags and self.serializer == "json":
            args, kwargs = self._tagged(args, kwargs)
        body = serializers.encode(self.name, self.serializer, args, kwargs, more)
        return Invocation(topic, body, send)

    def _tagged(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with their types; annotated ones get theirs from the annotation."""
        places, by_name = self.binding.annotated()
        strict = self.tags == "strict"
        values = tuple(
            each if place in places else tagged_values.tag(each, strict=strict)
            for place, each in enumerate(args)
        )
        return values, {
            name: each if name in by_name else tagged_values.tag(each, strict=strict)
            for name, each in kwargs.items()
        }

    def _headers_of(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The headers with the options of a call. Raises UsageError, BadMessage."""
        headers: dict[str, str] = {}
        for name, header in (
            ("time_limit", TIME_LIMIT_HEADER),
            ("soft_time_limit", SOFT_TIME_LIMIT_HEADER),
        ):
            if options.get(name) is not None:
                headers[header] = f"{arguments.seconds(f'task {self.name}', name, options[name]):g}"
        if options.get("cost") is not None:
            headers[COST_HEADER] = codec.cost_text(f'task "{self.name}"', options["cost"])
        at, delay, retries = options.get("at"), options.get("delay"), options.get("retries")
        is_own = (
            any(options.get(name) is not None for name in RESULT_OPTIONS)
            or RESULT_TTL_HEADER not in self._headers
        )
        if is_own and self.keeps_result(options):
            headers[RESULT_TTL_HEADER] = self._result_ttls(options)
        if retries is not None:
            headers[RETRIES_HEADER] = str(
                arguments.whole(f"task {self.name}", "retries", retries, least=0)
            )
        try:
            if at is not None:
                headers[ETA_HEADER] = datetime.fromtimestamp(
                    units.moment(at) / units.SECOND, UTC
                ).isoformat()
            elif delay is not None:
                headers[ETA_HEADER] = (
                    datetime.now(UTC) + timedelta(seconds=units.seconds(delay))
                ).isoformat()
        except (ValueError, OverflowError, OSError) as error:
            raise BadMessage(f"task {self.name}: {error}") from error
        return headers

    # Inside a run

    @property
    def request(self) -> Request:
        """The run that is executing this code. Raises UsageError outside of a run."""
        request = current_request()
        if request is None:
            raise UsageError(
                f'task "{self.name}": there is a request only while a worker runs the task; called'
                " as a function it has none"
            )
        return request

    def retry(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | float | None = None,
        error: BaseException | None = None,
        retries: int | None = None,
    ) -> NoReturn:
        """
        End this attempt and retry, after `delay` or at `at` (default: the policy's backoff):
        `raise self.retry(delay=10)`.

        `error`: the reason; default: the error that is being handled. `retries`: at most the
        policy's; after the last one, the message becomes a dead letter. Raises Retry, or Reject if
        no retries are left.
        """
        request = self.request
        limit = self.retries_limit(request)
        if retries is not None:
            limit = min(retries, limit)
        cause = error if error is not None else sys.exception()
        if request.retries >= limit:
            raise used_up(request.attempt, cause) from cause
        if at is not None:
            delay = max(0.0, units.moment(at) / units.SECOND - self.runtime.handlers.now())
        raise Retry(str(cause) if cause is not None else "", delay=delay) from cause

    def update_state(self, state: str = "PROGRESS", meta: Any = None) -> None:
        """
        Report the progress of this run; `job.status`, `job.progress` and `job.watch` show it.

        `meta`: any JSON value; `current` and `total` in it are shown as a bar. In a coroutine it is
        stored after this returns. Raises UsageError outside of a run, BadMessage.
        """
        report_progress(self.runtime, self.request, state, meta)

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.template.text}>"


if TYPE_CHECKING:

    class AsyncTask(Task[P, R]):
        """A task of a coroutine function: a direct call returns a coroutine."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...  # type: ignore[override]


class Call(Generic[P, R]):
    """A task with options for its next calls: the result of `using`."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self._task = task
        self._options = options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Publish a call. Returns its handle. Raises the errors of `Task.delay`."""
        return cast("Job[R]", self._task.publish(args, kwargs, self._options))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The async variant of `enqueue`."""
        return cast("Job[R]", await self._task.apublish(args, kwargs, self._options))

    def __repr__(self) -> str:
        return f"<Call of {self._task.name} using {self._options}>"
