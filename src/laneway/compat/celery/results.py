"""Handles of calls with Celery's API: `AsyncResult`, `EagerResult`, `GroupResult`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from laneway.compat.celery import current, states
from laneway.errors import UsageError
from laneway.tasks import outcomes
from laneway.tasks.canvas import GroupJob
from laneway.tasks.job import Job, JobState
from laneway.working.error_details import describe

if TYPE_CHECKING:
    from laneway.compat.celery.application import Celery


class AsyncResult:
    """The handle of a call with Celery's API; the attribute `job` is Laneway's handle."""

    def __init__(
        self,
        id: str | Job[Any] | None = None,  # noqa: A002  # Celery's name
        app: Celery | None = None,
        task_name: str | None = None,
        task_id: str | None = None,
        **_: object,
    ) -> None:
        id = id if id is not None else task_id  # noqa: A001
        if id is None:
            raise UsageError("AsyncResult: expected the id of a call, like AsyncResult(task_id)")
        self.app = app if app is not None else current.application()
        self.task_name = task_name
        self.job: Job[Any] = id if isinstance(id, Job) else self.app.laneway.job(id)

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.job.id

    task_id = id  # noqa: A003  # Celery's other name for it

    @property
    def state(self) -> str:
        """
        PENDING (even for an unknown id), STARTED, RETRY, SUCCESS, FAILURE, REVOKED, or the state
        set by `update_state`.
        """
        return _state_name(self.job.state())

    status = state

    @property
    def info(self) -> Any:
        """The result, the error, or the `meta` set by `update_state`."""
        return _info(self.job, self.job.state())

    result = info

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        **_: Any,
    ) -> Any:
        """
        Wait for the result and return it; None if it is ignored. Raises the task's error, or
        TimeoutError.
        """
        if not self.job.is_kept:
            return None
        report = None
        if on_message is not None:
            callback = on_message

            def report(state: JobState) -> None:
                callback(
                    {
                        "task_id": self.id,
                        "status": _state_name(state),
                        "result": _info(self.job, state),
                    }
                )

        return self.job.get(timeout, propagate=propagate, on_message=report)

    wait = get

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.job.ready()

    def successful(self) -> bool:
        """Whether it has returned."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether it has failed."""
        return self.state == states.FAILURE

    @property
    def traceback(self) -> str | None:
        """The traceback of its failure."""
        return self.job.traceback

    @property
    def date_done(self) -> datetime | None:
        """When it ended."""
        at = self.job.state().finished_at
        return datetime.fromtimestamp(at, UTC) if at is not None else None

    @property
    def parent(self) -> AsyncResult | None:
        """The previous call of its chain."""
        return AsyncResult(self.job.parent, self.app) if self.job.parent is not None else None

    @property
    def children(self) -> Any:
        """Raises UsageError: a call does not know what follows it."""
        raise UsageError(
            "AsyncResult.children: calls that follow this one are not stored with it; keep their"
            " handles: the last call of a chain has `.parent`, and a group's handle `.children`"
        )

    def then(
        self,
        callback: Callable[[AsyncResult], Any],
        on_error: Callable[[AsyncResult], Any] | None = None,
    ) -> AsyncResult:
        """Call `callback` with this handle when the task returns, `on_error` when it fails."""
        self.job.then(
            lambda _: callback(self), None if on_error is None else lambda _: on_error(self)
        )
        return self

    def revoke(self, terminate: bool = False, **_: object) -> None:
        """Cancel it. A running task is always stopped, regardless of `terminate`."""
        del terminate
        self.cancel()

    def cancel(self) -> bool:
        """Cancel it. Returns False if it had already ended."""
        return self.job.cancel()

    async def aget(self, *, propagate: bool = True) -> Any:
        """The async variant of `get`."""
        return await self.job.aget(propagate=propagate)

    def forget(self) -> None:
        """Delete its result."""
        self.job.state()  # finds its topic
        self.app.laneway.engine.delete_result(self.job.id, self.job.topic)

    def __await__(self) -> Any:
        return self.job.__await__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<AsyncResult: {self.id}>"


class EagerResult(AsyncResult):
    """
    The handle of a task that ran in the caller. It holds the result or the error.
    """

    def __init__(
        self,
        id: str | None,  # noqa: A002
        ret_value: Any,
        state: str,
        app: Celery | None = None,
        name: str | None = None,
    ) -> None:
        app = app if app is not None else current.application()
        self.error = ret_value if state == states.FAILURE else None
        ended = outcomes.Outcome(status=outcomes.SUCCESS, result=ret_value, own_state=state)
        if self.error is not None:
            ended = outcomes.read(outcomes.failure(describe(self.error)))
        super().__init__(Job(app.laneway.runtime, str(id), local=ended), app, name)

    @property
    def info(self) -> Any:
        """The result, or the error."""
        return self.job.result if self.error is None else self.error

    result = info

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        **_: Any,
    ) -> Any:
        """The result. Raises the task's error."""
        del timeout, on_message
        if self.error is not None and propagate:
            raise self.error
        return self.info

    wait = get

    def then(
        self,
        callback: Callable[[AsyncResult], Any],
        on_error: Callable[[AsyncResult], Any] | None = None,
    ) -> AsyncResult:
        """Call `callback` or `on_error` with this handle."""
        call = callback if self.error is None else on_error
        if call is not None:
            call(self)
        return self

    def cancel(self) -> bool:
        """False: it has ended."""
        return False

    def forget(self) -> None:
        """Do nothing: nothing is stored."""


class GroupResult(GroupJob[Any]):
    """The handle of a group with Celery's API, as its members are."""

    def __init__(self, group: GroupJob[Any], app: Celery) -> None:
        super().__init__([_handle(job, app) for job in group], group.before)
        self.app = app
        self.children = self.jobs

    def get(  # type: ignore[override]  # Celery's names
        self, timeout: float | None = None, propagate: bool = True, **_: Any
    ) -> list[Any]:
        """The results of all calls, in order."""
        return super().get(timeout, propagate=propagate)

    join = wait = get  # type: ignore[assignment]

    def waiting(self) -> bool:
        """Whether a call has not ended."""
        return not self.ready()

    def revoke(self, **_: object) -> None:
        """Cancel all calls."""
        self.cancel()


def _info(job: Job[Any], state: JobState) -> Any:
    if state.status == outcomes.SUCCESS:
        return state.result
    return job.get(0, propagate=False) if state.is_over else state.info


def _handle(job: Any, app: Celery) -> AsyncResult | GroupResult:
    if isinstance(job, (AsyncResult, GroupResult)):
        return job
    return GroupResult(job, app) if isinstance(job, GroupJob) else AsyncResult(job, app)


def _state_name(state: JobState) -> str:
    if state.own_state is not None:
        return state.own_state
    # `task_track_started` or the task itself has set the info.
    if state.status == "started" and state.info is not None:
        return states.STARTED
    return states.OF_STATUS.get(state.status, state.status.upper())
