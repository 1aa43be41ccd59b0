"""
`Job`: the handle of a task's call. It shows the state, waits for the result, watches and cancels.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import queue
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, Generic, Protocol, TextIO, TypeVar, cast

import msgspec

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.engines.base import UNTIL_SIGNALLED_US, MessageView
from laneway.errors import UsageError
from laneway.message import ProgressReport, Receipt, StoredResult
from laneway.policy import check_topic
from laneway.printable import escaped
from laneway.runtime.runtime import Runtime
from laneway.tasks import outcomes
from laneway.tasks.outcomes import ENDS, Outcome, Progress
from laneway.tasks.request import Request, current_request
from laneway.units import SECOND, Duration
from laneway.working.handler import Handlers

log = logging.getLogger("laneway.job")

MAX_WORKERS = 1000
"""Workers that are read to find whether one serves a job's pool."""

R = TypeVar("R")

_STATES = {
    "ready": "pending",
    "parked": "pending",
    "delayed": "delayed",
    "leased": "started",
    "dead": "dead",
}
"""States of jobs by those of their messages."""

_RUN = "call world.run() first, or world.run_all() to advance the clock"
_HINTS = {
    "unknown": "it was never published in this world, or was deleted: results do not expire here",
    "dead": "see app.dead_letters.list() for its reason",
}
"""What to do about a job that a test waits for in vain, by its status."""

PROGRESS_TTL = 86_400
"""Seconds for which progress is stored."""


class ResultType(Protocol):
    """What a job needs of its task to read the result."""

    @property
    def returns(self) -> Any:
        """The type that the function returns, or None if unknown."""

    @property
    def serializer(self) -> Any:
        """The encoding of the result, see `laneway.tasks.serializers`."""


class JobState(msgspec.Struct, kw_only=True):
    """
    The state of a job at one moment.

    `status`: pending, delayed, deferred (waits for other jobs), started, progress (or the state of
    `update_state`), retry, success, failure, cancelled, expired, dead (a dead letter without an
    outcome), or unknown (never published, or no longer stored). `info`: the `meta` of
    `update_state`. `meta`: the data of `save_meta`. `error`: class and text of its error.
    `published_at`, `finished_at`: Unix seconds. `own_state`: the final state that the task
    itself chose.
    """

    id: str
    topic: str | None
    status: str
    result: Any = None
    info: Any = None
    meta: dict[str, Any] = {}
    error: str | None = None
    traceback: str | None = None
    attempts: int = 0
    published_at: float | None = None
    finished_at: float | None = None
    own_state: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status in ENDS


class Job(Generic[R]):
    """
    One call of a task, from any process: returned by `delay`, similar methods, and `app.job(id)`.

    The engine notifies waiting callers, even in other processes. A result is stored for the task's
    `result_ttl`, an error for its `failure_ttl`.
    """

    # What most jobs have costs nothing when one is made.
    before: tuple[Job[Any], ...] = ()
    """Jobs of the same flow that come before it, as far as the caller published them."""
    is_kept = True
    """Whether its result is stored."""
    _local: Outcome | None = None
    _meta: dict[str, Any] | None = None

    def __init__(
        self,
        runtime: Runtime,
        job_id: str,
        topic: str | None = None,
        *,
        task: ResultType | None = None,
        receipt: Receipt | None = None,
        is_kept: bool = True,
        before: tuple[Job[Any], ...] = (),
        local: Outcome | None = None,
    ) -> None:
        self.runtime = runtime
        self.id = job_id
        self.topic = topic
        self.receipt = receipt
        self._task = task
        if not is_kept:
            self.is_kept = False
        if before:
            self.before = before
        if local is not None:
            self._local = local

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self.runtime.threads

    @property
    def outcome(self) -> str:
        """The outcome of the publish: `"accepted"`, `"merged"` or `"duplicate"`."""
        return self.receipt.outcome if self.receipt is not None else "accepted"

    @property
    def parent(self) -> Job[Any] | None:
        """The previous job in a chain, or None outside of a chain."""
        return self.before[-1] if self.before else None

    # Its state

    def state(self) -> JobState:
        """Return everything that is known about the job now. Raises EngineUnavailable."""
        if self._local is not None:
            return self._state_of(StoredResult(), self._local, None)
        stored = self._first()
        if stored.outcome is None:
            view = self._find()
            if view is not None:
                return self._state_of(stored, None, view)
            stored = self._stored()  # it may have ended in between
        return self._state_of(
            stored, outcomes.read(stored.outcome) if stored.outcome is not None else None, None
        )

    astate = async_variant(state)

    def _topics(self) -> list[str | None]:
        """Where it may be; no topic is needed for an id that was generated."""
        is_known = self.topic is not None
        return [self.topic] if is_known else [None, *_known_topics(self.runtime.handlers)]

    def _first(self) -> StoredResult:
        """What is stored of it. Its topic is looked up if the caller did not name it."""
        stored = self._stored()
        if self.topic is None and stored.outcome is None and self._find() is not None:
            return self._stored()
        return stored

    def _stored(self) -> StoredResult:
        topics = self._topics()
        results = self.runtime.engine.results([(self.id, topic) for topic in topics])
        for topic, stored in zip(topics, results, strict=True):
            if stored.outcome is not None:
                self.topic = topic
                return stored
        return results[0]

    def _find(self) -> MessageView | None:
        found = (self.runtime.engine.find(self.id, topic) for topic in self._topics())
        view = next((view for view in found if view is not None), None)
        if view is not None and self.topic is None:
            self.topic = view.topic
        return view

    def _state_of(
        self, stored: StoredResult, ended: Outcome | None, view: MessageView | None
    ) -> JobState:
        report = outcomes.progress(stored.progress)
        state = JobState(
            id=self.id,
            topic=self.topic,
            status="unknown",
            info=report.about,
            meta=report.meta or {},
        )
        if ended is not None:
            state.status, state.finished_at = ended.status, ended.at or None
            state.topic = self.topic or ended.topic
            state.published_at = ended.published_us / SECOND if ended.published_us else None
            state.error, state.own_state = ended.reason, ended.own_state
            if ended.error is not None:
                state.error = f"{ended.error.type.rpartition(':')[2]}: {ended.error.message}"
                state.traceback = ended.error.traceback
            elif ended.status == outcomes.SUCCESS:
                state.result = self._value(ended)
        elif view is not None:
            state.status, state.attempts, state.published_at = (
                _status(view, report),
                view.attempts,
                view.published_us / SECOND,
            )
            if view.state == "dead":
                state.error, state.traceback = view.reason, view.error
        return state

    def _value(self, ended: Outcome) -> Any:
        task = self._task
        return outcomes.value(
            ended,
            task.returns if task is not None else None,
            task.serializer if task is not None else None,
        )

    @property
    def status(self) -> str:
        """Its state in one word, see `JobState`; each access asks the engine."""
        return self.state().status

    def get_status(self) -> str:
        """RQ's name for `status`."""
        return self.status

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state().is_over

    def successful(self) -> bool:
        """Whether it returned a result."""
        return self.status == outcomes.SUCCESS

    def failed(self) -> bool:
        """Whether it ended without a result."""
        state = self.state()
        return state.is_over and state.status != outcomes.SUCCESS

    @property
    def result(self) -> R | None:
        """Its result, or None until it has one."""
        return cast("R | None", self.state().result)

    @property
    def progress(self) -> Any:
        """The `meta` of the last `update_state`."""
        return self.state().info

    @property
    def traceback(self) -> str | None:
        """The traceback of its error, as text."""
        return self.state().traceback

    def to_dict(self) -> dict[str, Any]:
        """`state` as a dict."""
        return msgspec.structs.asdict(self.state())

    def get_position(self) -> int | None:
        """The number of messages ahead of it in its queue, or None if it is not waiting."""
        return self.runtime.engine.explain(self.id, self.topic).ahead

    # Waiting

    def get(
        self,
        timeout: Duration | None = None,
        *,
        propagate: bool = True,
        on_message: Callable[[JobState], object] | None = None,
    ) -> R:
        """
        Its result, as the type of the task's annotation. Waits for it, at most `timeout`.

        If it failed, its error is raised: the original one if its class is loaded here, else
        JobFailed (JobCancelled, JobExpired, JobDead). With `propagate=False` the error is returned.
        `on_message` is called with each state that `update_state` sets, and with the final one.
        Raises TimeoutError, and UsageError if the result is not stored.
        """
        self._warn_inside_task()
        seconds = arguments.seconds_or_none("get", "timeout", timeout)
        return self._outcome_to(self._wait(seconds, on_message), propagate=propagate)

    async def aget(
        self,
        timeout: Duration | None = None,  # noqa: ASYNC109  # as in get
        *,
        propagate: bool = True,
        on_message: Callable[[JobState], object] | None = None,
    ) -> R:
        """The async variant of `get`, as is `await job`."""
        self._warn_inside_task()
        seconds = arguments.seconds_or_none("aget", "timeout", timeout)
        ended = self._local
        if ended is None:
            async with _Timeout(self, seconds):
                async for stored in self._achanges():
                    ended = self._report(stored, on_message)
                    if ended is not None:
                        break
        assert ended is not None
        return self._outcome_to(ended, propagate=propagate)

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    def _outcome_to(self, ended: Outcome, *, propagate: bool) -> R:
        if ended.status == outcomes.SUCCESS:
            return cast("R", self._value(ended))
        error = outcomes.error_of(self.id, ended)
        if propagate:
            raise error
        return cast("R", error)

    def _check_kept(self) -> None:
        if not self.is_kept:
            raise UsageError(
                f"job {self.id}: its result is not stored because of ignore_result; leave that"
                " out to wait for it"
            )

    def _warn_inside_task(self) -> None:
        self._check_kept()
        if self._local is None and current_request() is not None:
            log.warning(
                "job %s is waited for inside a task: if such tasks take every slot, no job can"
                " run; use a flow",
                self.id,
            )

    def _wait(
        self, seconds: float | None, on_message: Callable[[JobState], object] | None
    ) -> Outcome:
        if self._local is not None:
            return self._local
        for stored in self._changes(seconds):
            ended = self._report(stored, on_message)
            if ended is not None:
                return ended
        raise AssertionError("the loop ends with an outcome")

    def _report(
        self, stored: StoredResult, on_message: Callable[[JobState], object] | None
    ) -> Outcome | None:
        """Call `on_message` if there is something new. Returns the outcome if the job has ended."""
        ended = outcomes.read(stored.outcome) if stored.outcome is not None else None
        if on_message is not None and (ended is not None or stored.progress is not None):
            state = self._state_of(stored, ended, None)
            if ended is None:
                state.status = (outcomes.progress(stored.progress).state or "started").lower()
            on_message(state)
        return ended

    def _changes(self, seconds: float | None) -> Iterator[StoredResult]:
        """What is stored of it: now, and after each change. Raises TimeoutError."""
        deadline = None if seconds is None else time.monotonic() + seconds
        first = self._first()
        yield first
        self._check_that_it_can_end()
        last = first
        changes: queue.SimpleQueue[StoredResult] = queue.SimpleQueue()
        topic = self.topic
        self.runtime.result_waiter.watch(self.id, topic, changes.put)
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    stored = changes.get(timeout=left)
                except queue.Empty:
                    raise self.timeout_error(seconds) from None
                if stored != last:
                    yield stored
                    last = stored
        finally:
            self.runtime.result_waiter.unwatch(self.id, topic, changes.put)

    def _check_that_it_can_end(self) -> None:
        if not getattr(self.runtime.engine, "runs_by_itself", True):
            status = self.status
            raise UsageError(
                f"job {self.id}: it is {status}, and nothing runs on its own in a virtual world;"
                f" {_HINTS.get(status, _RUN)}"
            )

    async def _achanges(self) -> AsyncIterator[StoredResult]:
        loop = asyncio.get_running_loop()
        changes: asyncio.Queue[StoredResult] = asyncio.Queue()

        def put_change(stored: StoredResult) -> None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(changes.put_nowait, stored)

        first = await loop.run_in_executor(self.threads, self._first)
        if first.outcome is None:
            self._check_that_it_can_end()
        topic = self.topic
        await loop.run_in_executor(
            self.threads, self.runtime.result_waiter.watch, self.id, topic, put_change
        )
        last: StoredResult | None = None
        try:
            while True:
                stored = await changes.get()
                if stored != last:
                    yield stored
                    last = stored
        finally:
            self.runtime.result_waiter.unwatch(self.id, topic, put_change)

    def timeout_error(self, seconds: float | None) -> TimeoutError:
        """The error of a wait that took longer than it may."""
        text = f"job {self.id}: not finished within {seconds:g} s; it is {self.status}"
        return TimeoutError(text + self._lacks_worker())

    def _lacks_worker(self) -> str:
        """The end of a sentence if no running worker serves the pool of a job that waits."""
        if self.topic is None or self.status not in ("pending", "delayed", "retrying"):
            return ""
        engine, pool = self.runtime.engine, self.runtime.engine.policy_of(self.topic).pool
        listed = engine.workers(limit=MAX_WORKERS)
        is_served = any(each.state == "running" and pool in each.facts.pools for each in listed)
        if is_served or len(listed) == MAX_WORKERS:
            return ""
        return f', and no worker serves pool "{pool}"'

    atimeout_error = async_variant(timeout_error)

    def wait(self, timeout: Duration | None = None) -> bool:
        """
        Wait until it has ended, whether or not it succeeded. Returns False after the timeout.
        """
        self._check_kept()
        try:
            self._wait(arguments.seconds_or_none("wait", "timeout", timeout), None)
        except TimeoutError:
            return False
        return True

    def then(
        self,
        callback: Callable[[Job[R]], object],
        on_error: Callable[[Job[R]], object] | None = None,
    ) -> Job[R]:
        """
        Call `callback` with this job in a thread after its success, `on_error` (default:
        `callback`) after its failure. Returns the job.
        """
        self._check_kept()

        def done(stored: StoredResult) -> None:
            if stored.outcome is None:
                return
            self.runtime.result_waiter.unwatch(self.id, topic, done)
            call = (
                callback
                if outcomes.read(stored.outcome).status == outcomes.SUCCESS or on_error is None
                else on_error
            )
            self.threads.submit(_call_logged, call, self)

        if self._local is not None:
            self.threads.submit(_call_logged, callback, self)
        else:
            if self.topic is None:
                self._first()
            topic = self.topic
            self.runtime.result_waiter.watch(self.id, topic, done)
        return self

    def watch(self, timeout: Duration | None = None) -> Iterator[JobState]:
        """Its states, from the current one until it has ended. Raises TimeoutError."""
        self._check_kept()
        last = self.state()
        yield last
        if last.is_over:
            return
        for _ in self._changes(arguments.seconds_or_none("watch", "timeout", timeout)):
            state = self.state()
            if state != last:
                yield state
                last = state
            if state.is_over:
                return

    async def awatch(self) -> AsyncIterator[JobState]:
        """The async variant of `watch`."""
        self._check_kept()
        last = await self.astate()
        yield last
        if last.is_over:
            return
        async for _ in self._achanges():
            state = await self.astate()
            if state != last:
                yield state
                last = state
            if state.is_over:
                return

    def follow(self, timeout: Duration | None = None, *, stream: TextIO | None = None) -> JobState:
        """
        Show its progress on a terminal, as a bar if `update_state` has `current` and `total`.
        Returns its last state.
        """
        out = stream if stream is not None else sys.stderr
        shown = 0
        state = JobState(id=self.id, topic=self.topic, status="unknown")
        try:
            for state in self.watch(timeout):
                line = progress_line(state)
                out.write("\r" + line.ljust(shown))
                out.flush()
                shown = len(line)
        finally:
            out.write("\n")
        return state

    # Its data

    @property
    def meta(self) -> dict[str, Any]:
        """The data that `save_meta` stores: change it, then save it."""
        if self._meta is None:
            self._meta = dict(self.state().meta)
        return self._meta

    def save_meta(self) -> None:
        """Store `meta`. Raises BadMessage if JSON cannot hold it."""
        self._note(lambda report: setattr(report, "meta", self.meta))

    asave_meta = async_variant(save_meta)

    def note(self, state: str | None, about: Any, handle: int, fence: int) -> bool:
        """Store the progress of a run while its lease is held. Returns whether it was held."""

        def change(report: Progress) -> None:
            report.state, report.about = state, about

        return self._note(change, handle, fence)

    def _note(self, change: Callable[[Progress], None], handle: int = 0, fence: int = 0) -> bool:
        report = outcomes.progress(self._first().progress)
        change(report)
        topic = self.topic or self.state().topic or ""
        return self.runtime.engine.report_progress(
            [
                ProgressReport(
                    self.id,
                    topic,
                    outcomes.encode_progress(report),
                    PROGRESS_TTL * SECOND,
                    handle,
                    fence,
                )
            ]
        )[0]

    # Ending it

    def cancel(self) -> bool:
        """
        Cancel the job, whatever it waits for. A running job is stopped: a coroutine is cancelled,
        a child process killed; in a thread, JobCancelled is raised at the next Python instruction,
        so not inside a long C call. Earlier jobs of its flow are cancelled too; later jobs fail.

        Returns False if it had already ended.
        """
        for each in self.before:
            each.cancel()
        return self._find() is not None and self.runtime.engine.cancel(self.id, self.topic) in (
            "cancelled",
            "aborted",
        )

    acancel = async_variant(cancel)

    def delete(self) -> None:
        """Cancel it if it waits, drop its dead letter, and delete its result."""
        self.cancel()
        self._first()
        if self.topic is not None:
            self.runtime.engine.dead_drop(self.topic, [self.id])
        self.runtime.engine.delete_result(self.id, self.topic)

    adelete = async_variant(delete)

    def requeue(self) -> bool:
        """
        Redrive the job if it is a dead letter; its attempts start at 1 again. Returns whether it
        was a dead letter.
        """
        if self.topic is None:
            self._find()
        return self.runtime.engine.dead_redrive(self.topic, [self.id]) > 0

    arequeue = async_variant(requeue)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Job)
            and (self.id, self.runtime) == (other.id, other.runtime)
            and (self.topic == other.topic or None in (self.topic, other.topic))
        )

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<Job {self.id}>"


def job_of(runtime: Runtime, job_id: str, topic: str | None = None) -> Job[Any]:
    """The handle of a call by its id, with its task if the topic names it. Raises UsageError."""
    name = arguments.name("job", "the id", job_id)
    topic = None if topic is None else check_topic(topic)
    tasks = (each for each in runtime.handlers.tasks() if each is not None)
    task = next((each for each in tasks if each.template.text == topic), None)
    return Job(runtime, name, topic, task=task)


def _known_topics(handlers: Handlers) -> list[str]:
    """The topics of a program's tasks and queues, without those that depend on arguments."""
    tasks = [each for each in handlers.tasks() if each is not None]
    return sorted(
        {*handlers.queues} | {each.template.text for each in tasks if not each.template.fields}
    )


def report_progress(runtime: Runtime, request: Request, state: str | None, about: Any) -> None:
    """
    Store the progress of a run, as long as its lease is held.

    On an event loop it is stored by the application's progress thread, after this call. Raises
    BadMessage if JSON cannot hold `about`.
    """
    if runtime.eager:
        return
    job: Job[Any] = Job(runtime, request.id, request.topic)
    call = functools.partial(job.note, state, about, request.handle, request.fence)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        call()
    else:
        outcomes.encode_progress(
            Progress(state=state, about=about)
        )  # raises BadMessage here, not there
        runtime.progress_thread.submit(call)


class _Timeout:
    """`asyncio.timeout` whose error names the job."""

    def __init__(self, job: Job[Any], seconds: float | None) -> None:
        self._job = job
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise await self._job.atimeout_error(self._seconds) from None


def _status(view: MessageView, report: Progress) -> str:
    if view.state == "leased" and report.state is not None:
        return report.state.lower()
    if view.state == "delayed" and view.since_us == UNTIL_SIGNALLED_US:
        return "deferred"
    if view.state in ("ready", "delayed", "parked") and view.attempts:
        return "retry"
    return _STATES[view.state]


def _call_logged(callback: Callable[[Job[Any]], object], job: Job[Any]) -> None:
    try:
        callback(job)
    except Exception:
        log.exception("job %s: a callback of then() failed", job.id)


BAR = 30


def progress_line(state: JobState) -> str:
    """One line about a job for a terminal, with a bar if its progress has `current` and `total`."""
    about = state.info if isinstance(state.info, dict) else {}
    current, total = about.get("current", about.get("done")), about.get("total")
    line = f"{state.id}  {state.status}"
    if isinstance(current, (int, float)) and isinstance(total, (int, float)) and total > 0:
        part = 1.0 if state.status == outcomes.SUCCESS else min(1.0, max(0.0, current / total))
        done = round(part * BAR)
        line = f"{state.id}  [{'#' * done}{'.' * (BAR - done)}] {part:4.0%}  {state.status}"
    if isinstance(about.get("message"), str):
        line += f"  {about['message']}"
    return escaped(f"{line}  {state.error}" if state.error else line)
