"""`@app.task`: the decorator that makes a function a task."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from laneway import config
from laneway.errors import UsageError
from laneway.policy import FIELDS, PolicyOptions
from laneway.runtime.runtime import Runtime
from laneway.tasks.options import TaskOptions
from laneway.tasks.serializers import Serializer
from laneway.tasks.task import Task
from laneway.units import Duration
from laneway.working.handler import Isolation, check_importable, refuse_generator

if TYPE_CHECKING:
    from laneway.tasks.task import AsyncTask

P = ParamSpec("P")
R = TypeVar("R")


class TaskKeywords(PolicyOptions, total=False):
    """
    The options of `@app.task` for type checkers: those of `TaskOptions`, and the fields of a
    policy.
    """

    topic: str | None
    name: str | None
    key: str | None
    id: str | None
    cost: int
    base: type[Task[Any, Any]] | None
    serializer: Serializer
    autoretry_for: tuple[type[BaseException], ...] | None
    dont_autoretry_for: tuple[type[BaseException], ...]
    isolation: Isolation | None
    soft_time_limit: Duration | None
    ignore_result: bool
    result_ttl: Duration | None
    failure_ttl: Duration | None


class TaskDecorator:
    """
    The result of `app.task(…)`. It makes a function a `Task`, registers it, and sets its topic's
    policy.
    """

    def __init__(
        self,
        runtime: Runtime,
        base: type[Task[Any, Any]] | None,
        options: TaskOptions,
        policy: dict[str, Any],
    ) -> None:
        self._runtime = runtime
        self._base = _base(base)
        self._options = options
        self._policy = policy

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...

    def __call__(self, function: Callable[P, Any]) -> Any:
        """Make the function a task. Raises UsageError, BadPolicy."""
        name = getattr(function, "__qualname__", function)
        refuse_generator(f"task {name}", function)
        if self._options.isolation == "process":
            check_importable(f"task {name}", function)
        injected = self._runtime.handlers.lifespans.inject(f"task {name}", function)
        task = self._base(self._runtime, injected, self._options)
        self._runtime.handlers.add_task(task.handler)
        if self._policy:
            self._runtime.holder.set_policy(task.template.pattern(), self._policy)
        return task


class BoundTaskDecorator(TaskDecorator):
    """As `TaskDecorator` with `bind=True`: the function's first argument is the task itself."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R]) -> Task[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Make the function a task. Raises UsageError, BadPolicy."""
        return super().__call__(function)


TASK_OPTIONS = (*TaskOptions.__struct_fields__, "base")


def decorated(
    runtime: Runtime,
    function: Callable[..., Any] | None,
    base: type[Task[Any, Any]] | None,
    options: dict[str, Any],
) -> Any:
    """What `@app.task` makes of a function, or the decorator if no function is given yet."""
    own = {name: options.pop(name) for name in TaskOptions.__struct_fields__ if name in options}
    config.refuse_unknown("task", options.keys() - FIELDS.keys(), (*TASK_OPTIONS, *FIELDS))
    kind = BoundTaskDecorator if own.get("bind") else TaskDecorator
    decorator = kind(runtime, base, TaskOptions(**own), options)
    if function is None:
        return decorator
    if not callable(function):
        raise UsageError(
            f"task: expected a function, got {function!r}; options go by name, like"
            f" @app.task(topic={function!r})"
        )
    return decorator(function)


def _base(base: object) -> type[Task[Any, Any]]:
    if base is None:
        return Task
    if not isinstance(base, type) or not issubclass(base, Task):
        raise UsageError(f"task: expected base to be a subclass of laneway.Task, got {base!r:.80}")
    return base
