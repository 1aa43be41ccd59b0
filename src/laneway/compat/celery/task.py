"""`Task`: tasks with Celery's API."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from inspect import Parameter
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import msgspec

from laneway import headers as control
from laneway.compat.celery import current, django, signals, states
from laneway.compat.celery.exceptions import Ignore, MaxRetriesExceededError, Reject
from laneway.compat.celery.flows import OUR_NAMES, Group, Signature
from laneway.compat.celery.results import AsyncResult, EagerResult, GroupResult
from laneway.errors import HandlerSignal, Reject as _Reject, Retry, UsageError
from laneway.message import Lease
from laneway.runtime.runtime import Runtime
from laneway.tasks import outcomes
from laneway.tasks.canvas import GroupJob, Signature as Call, over
from laneway.tasks.invocation import Invocation
from laneway.tasks.job import Job, report_progress
from laneway.tasks.options import listed
from laneway.tasks.request import Request, current_request
from laneway.tasks.running import final, used_up
from laneway.tasks.steps import Steps
from laneway.tasks.task import Task as _Task
from laneway.working.error_details import Details
from laneway.working.time_limits import TimeLimit

if TYPE_CHECKING:
    from laneway.compat.celery.application import Celery

_COLLECTING: ContextVar[tuple[Task, list[Call[Any]]] | None] = ContextVar(
    "collecting", default=None
)
"""The task whose calls are collected instead of published, see `Task.prepared`."""

FOREVER = 1_000_000
"""Retries of a task with `max_retries=None`."""

LOST_MAX = 1
"""How often a task is retried, in a process of its own, after the worker that ran it was lost."""


OUTSIDE: Mapping[str, Any] = {
    "id": None,
    "task": None,
    "args": (),
    "kwargs": {},
    "retries": 0,
    "headers": {},
    "eta": None,
    "parent_id": None,
    "root_id": None,
    "priority": 0,
    "topic": None,
    "key": None,
    "attempt": 1,
    "deliveries": 1,
    "published_at": None,
    "chain": None,
    "callbacks": None,
    "delivery_info": None,
    "called_directly": True,
    "is_eager": False,
}
"""The attributes of `self.request`, and their values outside of a run."""


def _context(request: Request) -> dict[str, Any]:
    """
    The attributes of a run. `chain` and `callbacks`: the ids of the calls that follow; None outside
    a flow.
    """
    return {
        **{name: getattr(request, name, default) for name, default in OUTSIDE.items()},
        "chain": request.after,
        "callbacks": request.after,
        "correlation_id": request.id,
        "hostname": socket.gethostname(),
        "called_directly": False,
        "is_eager": request.fence == 0,
        "delivery_info": {
            "exchange": "",
            "routing_key": request.topic,
            "priority": request.priority,
            "redelivered": request.deliveries > 1,
        },
    }


class Task(_Task[..., Any]):
    """
    A task with Celery's API.

    A custom class sets options as attributes, overrides the hooks around a run, or defines `run`
    and is registered with `app.register_task(MyTask())`.
    """

    abstract = True
    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180.0
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: bool | int = False
    retry_backoff_max: int = 600
    retry_jitter: bool = True
    queue: str | None = None
    rate_limit: str | float | None = None
    ignore_result: bool | None = None
    serializer: str | None = None  # type: ignore[assignment]
    time_limit: float | None = None
    soft_time_limit: float | None = None
    priority: int | None = None
    expires: Any = None
    track_started: bool | None = None
    bind = False
    bound = False
    signature_type: ClassVar[type[Call[Any]]] = Signature
    errors_of_each = True
    retries_eagerly = True
    tags: str | None = "json"
    celery: Celery

    def __init__(self, *definition: Any) -> None:
        if definition:  # by the decorator; a custom class is initialized when it is registered
            super().__init__(*definition)
            self.become_bound()

    def become_bound(self) -> None:
        """Finish registration."""
        self._stated: dict[int, outcomes.OwnState] = {}  # by fence: states that runs have set
        self.handler.asks_for_losses = True
        self.bound = True

    def _get_app(self) -> Any:  # celery-once calls it
        """The Celery application."""
        return self.celery

    app = property(_get_app)

    @property
    def runtime(self) -> Runtime:
        """The runtime of the Laneway application; first use applies the settings."""
        return self.celery.for_task().runtime

    @runtime.setter
    def runtime(self, runtime: object) -> None:
        pass

    def __reduce__(self) -> Any:
        return _task_named, (self.name,)

    def _invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """
        Call the task through `__call__` if a custom class overrides it, for example to push Flask's
        application context.
        """
        if type(self).__call__ is not _Task.__call__:
            return self(*args, **kwargs)
        return super()._invoke(args, kwargs)

    def invocation(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Mapping[str, Any],
        **more: Any,
    ) -> Invocation:
        """
        Encode a call with the task's own options, after the settings were applied.

        As in Celery, a time that is past is no error.
        """
        self.celery.for_task()
        options = {"priority": self.priority, "ttl": self.expires, **options}
        at, delay, ttl = options.get("at"), options.get("delay"), options["ttl"]
        if isinstance(at, datetime):
            options["at"] = self.celery.aware(at)
        if isinstance(delay, (int, float)) and delay < 0:
            options["delay"] = 0
        if isinstance(ttl, datetime):
            ttl = (self.celery.aware(ttl) - self.celery.now()).total_seconds()
        options["ttl"] = ttl if not isinstance(ttl, (int, float)) or ttl > 0 else SHORTEST_TTL
        given = {name: value for name, value in options.items() if value is not None}
        return super().invocation(args, kwargs, given, **more)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The task's function; a custom class overrides it."""
        if self.bound:
            return super()._invoke(args, kwargs)
        raise NotImplementedError(f"{type(self).__name__}: define run(self, …)")

    @property
    def request(self) -> Any:
        """
        The run that the caller is part of.

        Outside of a run, as in Celery, an object whose id is None.
        """
        request = current_request()
        return types.SimpleNamespace(**OUTSIDE if request is None else _context(request))

    def given(self, job: Any) -> Any:
        """A job as Celery's handle."""
        if isinstance(job, GroupJob):
            return GroupResult(job, self.celery)
        return job if not isinstance(job, Job) else AsyncResult(job, self.celery, self.name)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        *,
        routing_key: str | None = None,
        link: Any = None,
        link_error: Any = None,
        **options: Any,
    ) -> Any:
        """Publish a call with Celery's options. Unknown options are errors."""
        options = {name: value for name, value in options.items() if name not in NO_MEANING}
        if routing_key is not None:
            options.setdefault("queue", routing_key)
        if self.celery.conf.task_always_eager:
            result = self.apply(args, kwargs, task_id=options.get("task_id"))
            for each in listed(link) if result.successful() else ():
                each.clone().delay(*(() if each.immutable else (result.get(),)))
            return result
        named = self.named_options(options)
        named |= {"link": listed(link) or None, "link_error": listed(link_error) or None}
        call = (tuple(args or ()), kwargs or {}, named)
        collecting = _COLLECTING.get()
        if collecting is None or collecting[0] is not self:
            return _Task.publish(self, *call)
        collecting[1].append(self._linked(*call))
        return AsyncResult(named.get("id"), self.celery, self.name)

    def named_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a call by Laneway's names, checked. Raises UsageError."""
        given = {
            OUR_NAMES.get(name, name): value for name, value in options.items() if value is not None
        }
        self.check_options(given, *OUR_NAMES)
        return given

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Publish a call, or with `task_always_eager` run it."""
        return self.apply_async(args, kwargs)

    def publish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Publish a call with Laneway's options."""
        return self.apply_async(args, kwargs, **_celery_named(options))

    async def apublish(self, *call: Any) -> Any:
        """The async variant of `publish`: an overridden `apply_async` may block."""
        return await asyncio.to_thread(self.publish, *call)

    def _linked(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Call[Any]:
        call = super()._linked(args, kwargs, options)
        call.is_prepared = True
        return call

    def prepared(self, call: Call[Any], job_id: str) -> Call[Any]:
        """
        What an overridden `apply_async` makes of a call that is published in a flow or by a
        schedule. Raises what it raises, and UsageError if it does not publish the call.
        """
        if type(self).apply_async is Task.apply_async:
            return call
        calls: list[Call[Any]] = []
        token = _COLLECTING.set((self, calls))
        try:
            options = {**_celery_named(call.options), "task_id": job_id}
            self.apply_async(call.args, call.kwargs, **options)
        finally:
            _COLLECTING.reset(token)
        if len(calls) != 1:
            raise UsageError(
                f'task "{self.name}": its apply_async published {len(calls)} calls instead of one;'
                " a flow is published completely or not at all"
            )
        created = calls[0]
        created.immutable = call.immutable
        created.followers += call.followers
        created.errors += call.errors
        return created

    def request_for(self, lease: Lease) -> Request:
        """
        The run of a lease. A later call of a flow, or one of a schedule, passes through an
        overridden `apply_async` when it starts.
        """
        request = super().request_for(lease)
        is_published = not request.before and control.SCHEDULE not in (lease.headers or {})
        if is_published or request.each or request.attempt > 1:
            return request
        try:
            call = self.prepared(Signature(self, request.args, request.kwargs, {}), request.id)
        except Exception as error:
            raise final(error) from error
        headers = {**request.headers, **(call.options.get("headers") or {})}
        return msgspec.structs.replace(request, args=call.args, kwargs=call.kwargs, headers=headers)

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run the task in the caller, with its retries; the handle has the result or the error."""
        job_id = options.get("task_id") or str(uuid.uuid4())
        throw = options.get("throw")
        throw = self.celery.conf.task_eager_propagates if throw is None else throw
        for attempt in count(1 + int(options.get("retries") or 0)):
            request = Request(
                id=job_id,
                task=self.name,
                topic=self.template.text,
                args=tuple(args or ()),
                kwargs=dict(kwargs or {}),
                attempt=attempt,
                root_id=job_id,
            )
            try:
                returned = self._run_here(request)
            except Retry:
                continue  # eager retries do not wait
            except Exception as error:  # noqa: BLE001  # the handle has it
                cause = (
                    error.__cause__
                    if isinstance(error, _Reject) and error.__cause__ is not None
                    else error
                )
                if throw:
                    raise cause  # noqa: B904  # not the wrapper around it
                return EagerResult(job_id, cause, states.FAILURE, self.celery, self.name)
            return EagerResult(job_id, returned, states.SUCCESS, self.celery, self.name)
        raise AssertionError("attempts have no end")

    def AsyncResult(self, task_id: str) -> AsyncResult:  # noqa: N802  # Celery's name
        """The handle of a call of this task."""
        return AsyncResult(Job(self.runtime, task_id, None, task=self), self.celery, self.name)

    subtask = _Task.s

    def chunks(self, items: Iterable[Sequence[Any]], size: int) -> Group:
        """A group that calls the task for each item, `size` calls in a message."""
        return Group(super().chunks(items, size).parts)

    def map(self, items: Iterable[Any]) -> Call[Any]:  # type: ignore[override]  # Celery's meaning
        """
        A signature that calls the task for each item, one after the other.

        Its result is the list of the results.
        """
        return over(self, ((item,) for item in items))

    def starmap(self, items: Iterable[Sequence[Any]]) -> Call[Any]:  # type: ignore[override]  # Celery's meaning
        """Like `map`, with items that are lists of arguments."""
        return over(self, items)

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> NoReturn:
        """
        Retry after `countdown` seconds (default: `default_retry_delay`).

        Use it as `raise self.retry(exc=exc)`.
        """
        del throw
        if args is not None or kwargs is not None or options.keys() - NO_MEANING:
            raise UsageError(
                f'task "{self.name}": retry with other arguments is not supported; publish another'
                " call instead"
            )
        request = current_request()
        if request is None:
            raise (
                exc
                if exc is not None
                else UsageError(
                    f'task "{self.name}": it was called as a function, which cannot be retried'
                )
            )
        limit = self._limit if max_retries is None else max_retries
        cause = exc if exc is not None else sys.exception()
        if request.retries >= limit:
            if cause is None:
                raise final(MaxRetriesExceededError(f"Can't retry {self.name}[{request.id}]"))
            raise used_up(request.attempt, cause) from cause
        delay: Any = self.default_retry_delay if countdown is None else countdown
        if eta is not None:
            delay = max(0.0, self.celery.aware(eta).timestamp() - self.runtime.handlers.now())
        raise Retry(str(cause) if cause is not None else "", delay=delay) from cause

    @property
    def _limit(self) -> int:
        return FOREVER if self.max_retries is None else self.max_retries

    def _verdict(self, request: Request, error: Exception) -> Exception:
        """As in Celery, errors that are not in `autoretry_for` are final."""
        if isinstance(error, Reject) and error.requeue:
            return Retry(str(error), delay=0)
        if isinstance(error, HandlerSignal):
            return error
        if not isinstance(error, self.autoretry_for) or isinstance(error, self.dont_autoretry_for):
            return final(error)
        limit = self.retry_kwargs.get("max_retries", self._limit)
        if limit is not None and request.retries >= limit:
            return used_up(request.attempt, error)
        retry = Retry(str(error), delay=self._autoretry_delay(request.retries))
        retry.__cause__ = error
        return retry

    def lost_limit(self, lease: Lease) -> int | None:
        """
        Retry a task whose worker was lost, in a process of its own, to find out which task did it.

        Celery ends such a task.
        """
        del lease
        return min(LOST_MAX, self._limit)

    def is_final(self, error: BaseException) -> bool:
        """Whether the error is final: a hard time limit is."""
        return isinstance(error, TimeLimit)

    def _autoretry_delay(self, retries: int) -> float:
        if not self.retry_backoff:
            return float(self.retry_kwargs.get("countdown", self.default_retry_delay))
        delay = min(float(self.retry_backoff_max), int(self.retry_backoff) * 2.0**retries)
        # Jitter spreads tasks that failed together.
        return random.uniform(0, delay) if self.retry_jitter else delay

    def update_state(
        self, state: str = "PROGRESS", meta: Any = None, task_id: str | None = None
    ) -> None:
        """Set the state of this run."""
        del task_id  # it is this run's
        request = current_request()
        if request is None or request.fence == 0:
            return  # it runs in the caller: nobody can read its state
        report_progress(self.runtime, request, state, meta)
        self._stated[request.fence] = outcomes.OwnState(state, meta)

    def perform_current(self, request: Request) -> Any:
        """Run the function; in a Django project, close stale connections around it."""
        if request.fence == 0:
            return self._performed_current(request)
        with django.around_run():
            return self._performed_current(request)

    def _performed_current(self, request: Request) -> Any:
        self._send_prerun(request)
        return super().perform_current(request)

    async def aperform_current(self, request: Request) -> Any:
        """As `perform_current`, for a coroutine function."""
        self._send_prerun(request)
        return await super().aperform_current(request)

    # Signals

    @property
    def has_hooks(self) -> bool:
        """Whether anything runs around a run: a signal's receiver, too."""
        return super().has_hooks or signals.of_runs()

    def _send_prerun(self, request: Request) -> None:
        if signals.task_prerun.receivers:
            signals.task_prerun.send(self, task=self, **_call_fields(request))

    def _hooks_of_success(self, request: Request, returned: Any) -> Iterator[Callable[[], Any]]:
        yield from super()._hooks_of_success(request, returned)
        yield partial(signals.task_success.send, self, result=returned)
        yield partial(
            signals.task_postrun.send,
            self,
            **_call_fields(request),
            retval=returned,
            state=states.SUCCESS,
        )

    def _hooks_of_failure(
        self, request: Request, why: BaseException, einfo: str, *, is_final: bool
    ) -> Iterator[Callable[[], Any]]:
        yield from super()._hooks_of_failure(request, why, einfo, is_final=is_final)
        fields = _call_fields(request)
        if is_final:
            yield partial(
                signals.task_failure.send,
                self,
                **fields,
                exception=why,
                traceback=why.__traceback__,
                einfo=einfo,
            )
        else:
            yield partial(signals.task_retry.send, self, request=request, reason=why, einfo=einfo)
        state = states.FAILURE if is_final else states.RETRY
        yield partial(signals.task_postrun.send, self, **fields, retval=why, state=state)

    def _needs_steps(self, options: Mapping[str, Any]) -> bool:
        return super()._needs_steps(options) or bool(
            signals.before_task_publish.receivers or signals.after_task_publish.receivers
        )

    def _sending(self, call: Invocation) -> Steps:
        headers = {**(call.options.get("headers") or {}), "task": self.name}
        fields = {
            "body": call.body,
            "headers": headers,
            "routing_key": call.topic,
            "exchange": "",
        }
        signals.before_task_publish.send(self.name, **fields)
        receipt = yield from super()._sending(call)
        headers["id"] = receipt.id
        signals.after_task_publish.send(self.name, **fields)
        return receipt

    # One run

    def _run(self, request: Request) -> Any:
        if self._is_tracked and request.fence:
            started = {"pid": os.getpid(), "hostname": socket.gethostname()}
            report_progress(self.runtime, request, states.STARTED, started)
        if self.handler.kind == "async":
            return self._arun(request)
        try:
            return super()._run(request)
        except Ignore:
            return self._ignored(request)
        finally:
            self._stated.pop(request.fence, None)

    async def _arun(self, request: Request) -> Any:
        try:
            return await super()._run(request)
        except Ignore:
            return self._ignored(request)
        finally:
            self._stated.pop(request.fence, None)

    def _ignored(self, request: Request) -> Any:
        """The state that the run has set remains."""
        return self._stated.get(request.fence)

    @property
    def _is_tracked(self) -> bool:
        own = self.track_started
        return bool(self.celery.conf.task_track_started if own is None else own)

    def errback_takes(self, own: int) -> int:
        """As in Celery, an errback with one parameter gets only the id."""
        kinds = [each.kind for each in self.binding.signature.parameters.values()]
        positional = kinds.count(Parameter.POSITIONAL_ONLY) + kinds.count(
            Parameter.POSITIONAL_OR_KEYWORD
        )
        return 3 if Parameter.VAR_POSITIONAL in kinds or positional - own > 1 else 1

    def errback_args(self, args: tuple[Any, ...], error: Any) -> tuple[Any, ...]:
        """(request, error, traceback), as Celery passes them."""
        job_id, text, trace, *own = args
        details = msgspec.convert(error, Details) if error is not None else None
        failed = outcomes.Outcome(status=outcomes.FAILURE, error=details, reason=text)
        about = {"id": job_id, "task_id": job_id, "correlation_id": job_id}
        request = types.SimpleNamespace(**{**OUTSIDE, **about, "called_directly": False})
        return (request, outcomes.error_of(job_id, failed), trace, *own)

    def __repr__(self) -> str:
        return f"<@task: {self.name} of {self.celery.main}>"


def _call_fields(request: Request) -> dict[str, Any]:
    return {"task_id": request.id, "args": request.args, "kwargs": request.kwargs}


def _task_named(name: str) -> Any:
    return current.application().tasks[name]


def _celery_named(options: Mapping[str, Any]) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in OUR_NAMES.items()}
    return {names.get(name, name): value for name, value in options.items()}


SHORTEST_TTL = 1e-6
"""The ttl of a call that has expired before it is published; 0 is refused."""

NO_MEANING = {
    "exchange",
    "delivery_mode",
    "compression",
    "connection",
    "producer",
    "retry_policy",
    "add_to_parent",
    "publisher",
    "shadow",
    "chord",
    "group_id",
    "parent_id",
    "root_id",
    "retry",
    "reply_to",
    "mandatory",
    "immutable_headers",
    "replaced_task_nesting",
    "serializer",
}
"""Options of `apply_async` that are ignored: they concern brokers and Celery's internals."""

ATTRIBUTES = (
    "max_retries",
    "default_retry_delay",
    "autoretry_for",
    "dont_autoretry_for",
    "retry_kwargs",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "queue",
    "rate_limit",
    "ignore_result",
    "serializer",
    "time_limit",
    "soft_time_limit",
    "priority",
    "expires",
    "track_started",
)
IGNORED = {
    "acks_late",
    "reject_on_worker_lost",
    "typing",
    "trail",
    "store_errors_even_if_ignored",
    "send_events",
    "options",
    "acks_on_failure_or_timeout",
    "lazy",
    "shared",
    "pydantic",
    "request_stack",
    "throws",
}
"""Options of tasks that are ignored: Laneway always does so, or has no such thing."""
