"""How a worker runs a task: its handler, the run itself, the verdict on an error, and the hooks."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from laneway import arguments, headers as control, units
from laneway.engines.shared.refusals import brief, result_ttls_us, retries_used_up
from laneway.errors import (
    DependencyFailed,
    DestinationUnavailable,
    EngineUnavailable,
    Reject,
    Retry,
)
from laneway.message import Draft, Lease, Settlement
from laneway.runtime.runtime import Runtime
from laneway.tasks import flow, outcomes, serializers, tagged_values
from laneway.tasks.binding import Binding
from laneway.tasks.options import TaskOptions
from laneway.tasks.request import Request, request_of
from laneway.working.error_details import WorkerLost, describe, error_text, text_of
from laneway.working.handler import CURRENT, Handler
from laneway.working.outcome import Portable

log = logging.getLogger("laneway.task")

HOOKS = ("before_start", "on_success", "on_retry", "on_failure", "after_return")
"""Methods of a task class that run around the function."""


class TaskHandler(Handler):
    """Calls the task's function with the arguments in the message's body."""

    adding_headers: frozenset[str] | None = frozenset({control.RESULT_TTL, control.FLOW})

    own_address: str | None = None
    """The address of a function called by name, or None for the task's own."""

    def __init__(self, task: RunnableTask, topic: str, options: TaskOptions) -> None:
        is_async = inspect.iscoroutinefunction(task.function)
        super().__init__(
            task.aperform if is_async else task.perform,
            topic,
            name=task.name,
            isolation=options.isolation,
            time_limit=options.time_limit,
            soft_time_limit=options.soft_time_limit,
        )
        self.task = task
        self.function_of_current = task.aperform_current if is_async else task.perform_current

    @property
    def address(self) -> str:
        if self.own_address is not None:
            return self.own_address
        return f"{self.task.function.__module__}:{self.task.function.__qualname__}.perform_apart"

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        request = self.task.request_for(lease)
        if self.own_address is not None:
            request = msgspec.structs.replace(
                request, store=(self.task.runtime.url, self.task.runtime.namespace)
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
        """Add the result to store to the settlement. Returns the messages to publish with it."""
        if settlement.action == "retry" and error is not None and self.task.is_final(error):
            settlement.action, settlement.reason = (
                "dead",
                (settlement.error or "failed").partition("\n")[0],
            )
        times, around = result_ttls_us(lease.headers), flow.of(lease.body, lease.headers)
        if settlement.action == "retry":
            self._check_retries(lease, settlement, is_in_flow=around is not None)
        if times is None and around is None:
            return super().concluded(lease, returned, error, settlement)
        origin: outcomes.Origin = {"topic": lease.topic, "published_us": lease.published_us}
        if error is None:
            stored = (
                returned
                if issubclass(type(returned), Portable)
                else self.task.encoded(returned, origin)
            )
        elif settlement.action in ("retry", "dead"):
            stored = outcomes.failure(describe(error), **origin)
        else:
            return ()
        never_began = issubclass(type(error), DependencyFailed)
        if never_began:
            settlement.action = "ack"  # a run that never started is not retried
        if settlement.action == "retry" and around is not None:
            # if it is dead after all, since its policy has just changed, the engine signals it
            return ()
        if times is not None:
            settlement.id, settlement.topic = lease.id, lease.topic
            settlement.outcome, settlement.outcome_ttl_us = stored, times[error is not None]
        if around is None or not (around.then or around.errors):
            return ()
        return flow.following(
            lease.id, around, outcomes.read(stored), is_own_failure=not never_began
        )

    def _check_retries(self, lease: Lease, settlement: Settlement, *, is_in_flow: bool) -> None:
        """
        A failure is final if its call allows no more retries. In a flow it is final too when the
        policy allows none, since the calls after it get their signal with the end.
        """
        retries = control.retries(lease.headers)
        limit = retries if retries is not None else sys.maxsize
        if is_in_flow:
            with contextlib.suppress(EngineUnavailable):  # then the engine signals its end
                limit = min(limit, self.task.runtime.engine.policy_of(lease.topic).retries)
        if lease.attempt > limit:
            settlement.action, settlement.reason = (
                "dead",
                retries_used_up(lease.attempt, settlement.error, settlement.reason),
            )


class RunnableTask:
    """
    The half of a task that a worker uses. `Task` is the other half: calling it.

    A subclass may replace the hooks `before_start`, `on_success`, `on_retry`, `on_failure` and
    `after_return`. They run in the process of the function; those of a coroutine function may be
    coroutines.
    """

    handler: TaskHandler
    """The handler that workers use; `Task` creates it."""

    tags: str | None = None
    """
    Whether values that JSON does not have carry their types: None: no; "json": as in Celery;
    "strict": all types, and the call is refused if one is unknown.
    """

    errors_of_each = False
    """
    Whether, as in Celery, an error handler of a group is called for each member that fails, with
    (request, error, traceback), or with the id alone.
    """

    retries_eagerly = False
    """Whether a call that runs where it is made is retried there."""

    def __init__(
        self, runtime: Runtime, function: Callable[..., Any], options: TaskOptions
    ) -> None:
        self.runtime = runtime
        self.name = arguments.name(
            "task",
            "name",
            getattr(function, "__qualname__", None) if options.name is None else options.name,
        )
        self.function = function
        serializers.check(self.name, options.serializer)
        self.binding = Binding(self.name, function, skips=options.bind)
        self.serializer = options.serializer
        self.returns = self.binding.returns
        self._options = options
        self._is_direct = not (
            options.bind
            or self.binding.injected
            or any(_replaces(type(self), name) for name in ("_run", "_invoke"))
        )
        """Whether a run calls the function with the request's arguments, and does nothing else."""
        self._replaces_hooks = any(_replaces(type(self), name) for name in HOOKS)
        self.asks_for_limit = self._replaces_hooks or options.bind

    @property
    def app(self) -> Any:
        """The application that it belongs to."""
        return self.runtime.app

    @property
    def has_hooks(self) -> bool:
        """Whether anything runs around a run."""
        return self._replaces_hooks

    # Hooks of a subclass

    def before_start(self, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called before each run. An error that it raises is the run's error."""

    def on_success(
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Called after the function returned."""

    def on_retry(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> Any:
        """Called after an error that will be retried. `einfo`: the traceback as text."""

    def on_failure(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> Any:
        """Called after an error that will not be retried. `einfo`: the traceback as text."""

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
        Called after each run. `status`: "SUCCESS", "RETRY" or "FAILURE". `retval`: the result, or
        the error.
        """

    # One run

    def perform(self, request: Request) -> Any:
        """
        Run the function and its hooks. Returns its result. Raises its error, or Reject if the call
        or the task makes the error final.
        """
        token = CURRENT.set(request)
        try:
            return self.perform_current(request)
        finally:
            CURRENT.reset(token)

    async def aperform(self, request: Request) -> Any:
        """As `perform`, for a coroutine function."""
        token = CURRENT.set(request)
        try:
            return await self.aperform_current(request)
        finally:
            CURRENT.reset(token)

    # The next two are the same steps, in one frame: each run of a task passes through one of them.

    def perform_current(self, request: Request) -> Any:
        """As `perform`, where `request` is already the current one."""
        try:
            if self.has_hooks:
                self.before_start(request.id, request.args, request.kwargs)
            returned = (
                self.function(*request.args, **request.kwargs)
                if self._is_direct and not request.each
                else self._run(request)
            )
        except Exception as error:  # noqa: BLE001  # the verdict decides what is raised
            verdict = self._verdict(request, error)
            try:
                if self.has_hooks:
                    self._call_hooks(self._hooks_of_error(request, error, verdict))
                if verdict is error:
                    raise
                raise verdict from error
            finally:
                del verdict  # its traceback refers to this frame
        if self.has_hooks:
            self._call_hooks(self._hooks_of_success(request, returned))
        return returned

    async def aperform_current(self, request: Request) -> Any:
        """As `perform_current`, for a coroutine function; hooks may be coroutines too."""
        try:
            if self.has_hooks:
                await _done(self.before_start(request.id, request.args, request.kwargs))
            returned = await (
                self.function(*request.args, **request.kwargs)
                if self._is_direct and not request.each
                else self._run(request)
            )
        except Exception as error:  # noqa: BLE001  # the verdict decides what is raised
            verdict = self._verdict(request, error)
            try:
                if self.has_hooks:
                    await self._acall_hooks(self._hooks_of_error(request, error, verdict))
                if verdict is error:
                    raise
                raise verdict from error
            finally:
                del verdict  # its traceback refers to this frame
        if self.has_hooks:
            await self._acall_hooks(self._hooks_of_success(request, returned))
        return returned

    def _call_hooks(self, hooks: Iterator[Callable[[], Any]]) -> None:
        for hook in hooks:
            with _LoggedErrors(self.name):
                hook()

    async def _acall_hooks(self, hooks: Iterator[Callable[[], Any]]) -> None:
        for hook in hooks:
            with _LoggedErrors(self.name):
                await _done(hook())

    def perform_apart(self, request: Request) -> Portable | None:
        """As `perform`, in a child process. Returns the encoded result if it is stored."""
        returned = self.perform(request)
        if not request.is_kept:
            return None
        published_us = round(request.published_at * units.SECOND)
        return Portable(
            self.encoded(returned, {"topic": request.topic, "published_us": published_us})
        )

    def encoded(self, returned: Any, origin: outcomes.Origin) -> bytes:
        """A result as it is stored. Raises Reject if it cannot be stored."""
        if type(returned) is outcomes.OwnState:
            origin["own_state"], returned = returned.state, returned.about
        if self.tags:
            origin["tagged"], returned = True, self.tagged_result(returned)
        return outcomes.success(self.name, self.serializer, returned, **origin)

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
        """The calls of one message of `chunks`, one after the other."""
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

    def request_for(self, lease: Lease) -> Request:
        """The run of a lease. Raises Reject if the body is no call of this task."""
        body = serializers.decode(self.name, self.serializer, lease)
        if self.tags and isinstance(body, dict) and self.serializer == "json":
            body |= {
                name: tagged_values.untag(body[name]) for name in ("args", "kwargs") if name in body
            }
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
        after = None if around is None else tuple(target.id for target in around.then)
        return request_of(self.name, lease, args, kwargs, before=before, after=after, each=each)

    def _result_before(self, signal: flow.Signal) -> Any:
        ended = outcomes.Outcome(
            status=signal.status, result=signal.result, pickled=signal.pickled, tagged=signal.tagged
        )
        return (
            outcomes.value(ended, None, self.serializer)
            if signal.status == outcomes.SUCCESS
            else None
        )

    def tagged_result(self, returned: Any) -> Any:
        """The result as it is stored, with the types of its values if the task tags them."""
        return (
            tagged_values.tag(returned)
            if self.tags and self.serializer == "json" and self.returns is None
            else returned
        )

    def errback_takes(self, own: int) -> int:
        """
        How many arguments about the failure it takes as an error handler, before its `own` ones.
        """
        del own
        return 3

    def errback_args(self, args: tuple[Any, ...], error: Any) -> tuple[Any, ...]:
        """Its arguments as an error handler. `error`: the failure's details."""
        del error
        return args

    # Verdicts

    def retries_limit(self, request: Request) -> int:
        """
        The maximum number of retries of a run: its call's, limited by the topic's policy. Raises
        EngineUnavailable.
        """
        if request.is_limited:
            return cast("int", request.retries_limit)
        policy = (
            sys.maxsize
            if self.runtime.eager
            else self.runtime.engine.policy_of(request.topic).retries
        )
        return policy if request.retries_limit is None else min(request.retries_limit, policy)

    def lost_limit(self, lease: Lease) -> int | None:
        """
        How often a run may lose its worker before it is refused, or None for the policy's number.
        At least once, since another run may have killed the worker.
        """
        retries = control.retries(lease.headers)
        return None if retries is None else max(1, retries)

    def is_final(self, error: BaseException) -> bool:
        """Whether an error that ended the run from outside, such as a time limit, is final."""
        del error
        return False

    def _verdict(self, request: Request, error: Exception) -> Exception:
        """
        The error to raise: `error` itself if the policy decides about retries, or Reject if the
        call or the task makes it final.
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
        about = (request.id, request.args, request.kwargs)
        yield functools.partial(self.on_success, returned, *about)
        yield functools.partial(self.after_return, "SUCCESS", returned, *about, None)

    def _hooks_of_error(
        self, request: Request, error: Exception, verdict: Exception
    ) -> Iterator[Callable[[], Any]]:
        is_final = isinstance(verdict, Reject) or (self.runtime.eager and not self.retries_eagerly)
        why = (
            error.__cause__
            if isinstance(error, (Retry, Reject)) and error.__cause__ is not None
            else error
        )
        return self._hooks_of_failure(request, why, text_of(why), is_final=is_final)

    def _hooks_of_failure(
        self, request: Request, why: BaseException, einfo: str, *, is_final: bool
    ) -> Iterator[Callable[[], Any]]:
        about = (request.id, request.args, request.kwargs, einfo)
        yield functools.partial(self.on_failure if is_final else self.on_retry, why, *about)
        yield functools.partial(self.after_return, "FAILURE" if is_final else "RETRY", why, *about)


async def _done(result: Any) -> Any:
    """The result of a hook, which may be a coroutine."""
    return await result if inspect.isawaitable(result) else result


class _LoggedErrors:
    """Log a hook's own error: the run is over, and its outcome does not change."""

    def __init__(self, task: str) -> None:
        self._task = task

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, Exception):
            log.error('task "%s": a hook failed', self._task, exc_info=error)
            return True
        return False


def _replaces(kind: type[RunnableTask], method: str) -> bool:
    """Whether a class of tasks has this method of its own."""
    return getattr(kind, method) is not getattr(RunnableTask, method)


def final(cause: BaseException) -> Reject:
    """A Reject for an error that is not retried: its first line is the reason."""
    text = error_text(cause)
    return Reject(brief(text), error=text)


def used_up(attempts: int, cause: BaseException | None) -> Reject:
    """A Reject for an error after which the call allows no more retries."""
    text = error_text(cause) if cause is not None else "the task asked for one more"
    return Reject(retries_used_up(attempts, text), error=text if cause is not None else None)
