"""Tasks in Celery's words."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from inspect import Parameter
from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from laneway.compat.celery import current, django
from laneway.compat.celery.errors import Ignore, MaxRetriesExceededError, Reject, states
from laneway.compat.celery.results import AsyncResult, EagerResult, GroupResult
from laneway.errors import HandlerSignal, Retry, UsageError
from laneway.errors import Reject as _Reject
from laneway.tasks import outcomes
from laneway.tasks.canvas import CELERY_NAMES, GroupJob, Signature, over
from laneway.tasks.job import Job
from laneway.tasks.request import Request, current_request
from laneway.tasks.task import Task as _Task
from laneway.tasks.task import final, used_up
from laneway.working.error_details import Details
from laneway.working.time_limits import TimeLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from laneway.compat.celery.application import Celery
    from laneway.message import Lease

FOREVER = 1_000_000
"""Retries of a task with `max_retries=None`."""

LOST_MOST = 1
"""How often a task is begun again, alone, after its worker was lost while it ran so."""


class Context:
    """`self.request`, in Celery's words."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.delivery_info = {
            "exchange": "",
            "routing_key": request.topic,
            "priority": request.priority,
            "redelivered": request.deliveries > 1,
        }
        self.correlation_id = request.id
        self.hostname = socket.gethostname()
        self.called_directly = False
        self.is_eager = request.fence == 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class Task(_Task[..., Any]):
    """
    A task in Celery's words; a class of your own may set the options of a task as attributes, say
    what is done around a run, and with `run` what the task does: `app.register_task(MyTask())`.
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
    errors_of_each = True
    retries_eagerly = True
    tags: str | None = "json"
    celery: Celery

    def __init__(self, *made: Any) -> None:
        if made:  # by the decorator; one of your own begins when it is registered
            super().__init__(*made)
            self.become_bound()

    def become_bound(self) -> None:
        """It is registered."""
        self._stated: dict[
            int, outcomes.Said
        ] = {}  # what runs have said of their state, by their fences
        self.handler.asks_for_losses = True
        self.bound = True

    @property
    def app(self) -> Any:
        """Laneway's application, made of the settings when it is first needed."""
        return self.celery.for_task()

    @app.setter
    def app(self, app: Any) -> None:
        pass

    def __reduce__(self) -> Any:
        return _task_named, (self.name,)

    def _invoke(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """
        By `__call__` where a class of your own says what that does: Flask's application context,
        for example.
        """
        if type(self).__call__ is not _Task.__call__:
            return self(*args, **kwargs)
        return super()._invoke(args, kwargs)

    def _call_of(self, *args: Any, **kwargs: Any) -> Any:
        self.celery.for_task()  # the settings count now
        return super()._call_of(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """What the task does; of a class of your own."""
        if self.bound:
            return super()._invoke(args, kwargs)
        raise NotImplementedError(f"{type(self).__name__}: say in run(self, …) what the task does")

    @property
    def request(self) -> Any:
        """
        The run that the caller is part of; called as a function it has none, and Celery's says so
        by its id.
        """
        found = current_request()
        if found is None:
            return types.SimpleNamespace(
                id=None,
                retries=0,
                args=(),
                kwargs={},
                called_directly=True,
                delivery_info=None,
                headers={},
                eta=None,
            )
        return Context(found)

    def given(self, job: Any) -> Any:
        """Celery's handles."""
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
        """Publish a call; options by Celery's names. One that means nothing here is an error."""
        for name in NO_MEANING & options.keys():
            options.pop(name)
        if routing_key is not None:
            options.setdefault("queue", routing_key)
        said = {**self._usual(), **options}
        for name in ("eta", "expires"):
            if isinstance(said.get(name), datetime):
                said[name] = self.celery.aware(said[name])
        if self.celery.conf.task_always_eager:
            made = self.apply(args, kwargs, task_id=options.get("task_id"))
            for each in _listed(link) if made.successful() else ():
                each.clone().delay(*(() if each.immutable else (made.get(),)))
            return made
        return super().apply_async(
            tuple(args or ()), kwargs, link=link, link_error=link_error, **said
        )

    def publish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Publish a call, or with `task_always_eager` run it."""
        if self.celery.conf.task_always_eager:
            return self.apply(args, kwargs)
        usual = {CELERY_NAMES.get(name, name): value for name, value in self._usual().items()}
        return super().publish(args, kwargs, {**usual, **options})

    def _usual(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.priority is not None:
            found["priority"] = self.priority
        if self.expires is not None:
            found["expires"] = self.expires
        return found

    def apply(
        self,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Run it here and now, its retries too; the handle knows the result, or the error."""
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
                returned = self._performed(request)
            except Retry:
                continue  # it says how much later; nobody waits for that here
            except Exception as error:  # noqa: BLE001  # the handle has it
                cause = (
                    error.__cause__
                    if isinstance(error, _Reject) and error.__cause__ is not None
                    else error
                )
                if throw:
                    raise cause  # noqa: B904  # what stands between is ours
                return EagerResult(job_id, self.celery, self.name, error=cause)
            return EagerResult(job_id, self.celery, self.name, returned=returned)
        raise AssertionError("attempts have no end")

    def _performed(self, request: Request) -> Any:
        if self.handler.kind != "async":
            return self.perform(request)
        with ThreadPoolExecutor(1) as thread:  # the caller may be on a loop of its own
            return thread.submit(asyncio.run, self.aperform(request)).result()

    def AsyncResult(self, task_id: str) -> AsyncResult:  # noqa: N802  # Celery's name
        """The handle of a call of this task."""
        return AsyncResult(Job(self.app, task_id, None, task=self), self.celery, self.name)

    subtask = _Task.s

    def map(self, items: Iterable[Any]) -> Signature[Any]:  # type: ignore[override]  # Celery's meaning
        """
        A call, not made yet, that runs the task for each item, one after the other; its result is
        the list of theirs.
        """
        return over(self, ((item,) for item in items))

    def starmap(self, items: Iterable[Sequence[Any]]) -> Signature[Any]:  # type: ignore[override]  # Celery's meaning
        """As `map`, of items that hold arguments."""
        return over(self, items)

    def retry(  # type: ignore[override]  # Celery's names
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
        Try again, after `countdown` seconds (default: `default_retry_delay`): `raise
        self.retry(exc=exc)`.
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
                    f'task "{self.name}": it was called as a function, which cannot be tried again'
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
            delay = max(0.0, self.celery.aware(eta).timestamp() - self.app.handlers.now())
        raise Retry(str(cause) if cause is not None else "", delay=delay) from cause

    @property
    def _limit(self) -> int:
        return FOREVER if self.max_retries is None else self.max_retries

    def _verdict(self, request: Request, error: Exception) -> Exception:
        """As Celery: what is not among `autoretry_for` is final."""
        if isinstance(error, Reject) and error.requeue:
            return Retry(str(error), delay=0)
        if isinstance(error, HandlerSignal):
            return error
        if not isinstance(error, self.autoretry_for) or isinstance(error, self.dont_autoretry_for):
            return final(error)
        limit = self.retry_kwargs.get("max_retries", self._limit)
        if limit is not None and request.retries >= limit:
            return used_up(request.attempt, error)
        made = Retry(str(error), delay=self._autoretry_delay(request.retries))
        made.__cause__ = error
        return made

    def lost_limit(self, lease: Lease) -> int | None:
        """
        Celery ends a task whose worker is lost; here it is tried again, alone, so that it is known
        which task did it.
        """
        del lease
        return min(LOST_MOST, self._limit)

    def is_final(self, error: BaseException) -> bool:
        """A hard time limit is."""
        return isinstance(error, TimeLimit)

    def _autoretry_delay(self, retries: int) -> float:
        if not self.retry_backoff:
            return float(self.retry_kwargs.get("countdown", self.default_retry_delay))
        delay = min(float(self.retry_backoff_max), int(self.retry_backoff) * 2.0**retries)
        return (
            random.uniform(0, delay) if self.retry_jitter else delay
        )  # spreads what failed together

    def update_state(
        self, state: str = "PROGRESS", meta: Any = None, task_id: str | None = None
    ) -> None:
        """Say how this run stands."""
        del task_id  # it is this run's
        request = current_request()
        if request is not None and request.fence == 0:
            return  # it runs where it was called: nobody can look
        super().update_state(state, meta)
        if request is not None:
            self._stated[request.fence] = outcomes.Said(state, meta)

    def perform(self, request: Request) -> Any:
        """Run the function, in a Django project with its connections looked after."""
        if request.fence == 0:
            return super().perform(request)
        with django.around_run():
            return super().perform(request)

    def _run(self, request: Request) -> Any:
        if self._is_tracked and request.fence:
            super().update_state(
                states.STARTED, {"pid": os.getpid(), "hostname": socket.gethostname()}
            )
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
        """The state that the run has set stays."""
        return self._stated.get(request.fence)

    @property
    def _is_tracked(self) -> bool:
        said = self.track_started
        return bool(self.celery.conf.task_track_started if said is None else said)

    def errback_takes(self, own: int) -> int:
        """As Celery: one with one parameter gets the id alone."""
        kinds = [each.kind for each in self.binding.signature.parameters.values()]
        positional = kinds.count(Parameter.POSITIONAL_ONLY) + kinds.count(
            Parameter.POSITIONAL_OR_KEYWORD
        )
        return 3 if Parameter.VAR_POSITIONAL in kinds or positional - own > 1 else 1

    def errback_args(self, args: tuple[Any, ...], error: Any) -> tuple[Any, ...]:
        """(request, error, traceback), as Celery calls it."""
        job_id, text, trace, *own = args
        details = msgspec.convert(error, Details) if error is not None else None
        failed = outcomes.Outcome(status=outcomes.FAILURE, error=details, reason=text)
        request = types.SimpleNamespace(
            id=job_id,
            task_id=job_id,
            correlation_id=job_id,
            args=(),
            kwargs={},
            retries=0,
            is_eager=False,
        )
        return (request, outcomes.error_of(job_id, failed), trace, *own)

    def __repr__(self) -> str:
        return f"<@task: {self.name} of {self.celery.main}>"


def _task_named(name: str) -> Any:
    return current.application().tasks[name]


def _listed(said: Any) -> list[Any]:
    return [] if said is None else list(said) if isinstance(said, (list, tuple)) else [said]


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
"""Options of Celery's about brokers and its own inside."""

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
PASSED_OVER = {
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
"""
Options of tasks that have no meaning here: what they choose is always so, or there is nothing to
choose.
"""
