"""`current_app`, `current_task`, `shared_task` and `signature`."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from laneway.compat.celery.flows import Signature
from laneway.compat.names import AbsentError
from laneway.errors import UsageError
from laneway.tasks.canvas import Part
from laneway.tasks.request import current_request

if TYPE_CHECKING:
    from laneway.compat.celery.application import Celery


applications: list[Celery] = []
shared: list[Callable[[Celery], Any]] = []


def application() -> Celery:
    """The application that was created last. Raises AbsentError if none exists."""
    if not applications:
        raise AbsentError("there is no Celery application yet; create one first: app = Celery(…)")
    return applications[-1]


class _Current:
    """A proxy of the application that was created last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(application(), name)


current_app: Any = _Current()


class _CurrentTask:
    """A proxy of the running task."""

    def __getattr__(self, name: str) -> Any:
        task = get_current_task()
        if task is None:
            raise AbsentError("current_task: no task is running here")
        return getattr(task, name)


current_task: Any = _CurrentTask()


def get_current_task() -> Any:
    """The running task, or None."""
    request = current_request()
    return application().tasks[request.task] if request is not None else None


class TaskFormatter(logging.Formatter):
    """A formatter whose lines have the `task_id` and the `task_name` of the running task."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        run = current_request()
        record.task_id, record.task_name = ("???", "???") if run is None else (run.id, run.task)
        return super().format(record)


class _Shared:
    """A task of every application; attributes are those of the current application's."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._name = options.get("name") or name_of(function)

        def make(app: Celery) -> None:
            app.task(**{**options, "name": self._name})(function)

        shared.append(make)
        for app in applications:
            make(app)

    def __getattr__(self, name: str) -> Any:
        return getattr(application().tasks[self._name], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return application().tasks[self._name](*args, **kwargs)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """A call of the task of the application that is current when it is published."""
        return Signature(cast("Any", self), args, kwargs, {})

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """As `s`, but without the previous result."""
        return Signature(cast("Any", self), args, kwargs, {}, immutable=True)


def shared_task(*args: Any, **options: Any) -> Any:
    """Turn a function into a task of every application, present and future."""
    if args and callable(args[0]) and not options:
        return _Shared(args[0], {})
    return lambda function: _Shared(function, options)


def signature(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    immutable: bool = False,
    **options: Any,
) -> Any:
    """A call to be published later, of a task or of a task's name."""
    if isinstance(task, Part):
        return task
    known = application().tasks.get(task) if isinstance(task, str) else task
    if known is None:
        raise UsageError(
            f'signature: there is no task "{task}"; tasks:'
            f" {', '.join(sorted(application().tasks)) or 'none'}"
        )
    return Signature(known, tuple(args), dict(kwargs or {}), {}, immutable=immutable).set(**options)


def maybe_signature(call: Any, app: Celery | None = None) -> Any:
    """The call itself, or None; anything else is given to `signature`."""
    del app
    return call if call is None else signature(call)


def uuid() -> str:
    """A new id for a call."""
    return str(uuid4())


def name_of(function: Callable[..., Any]) -> str:
    """The default name of a task."""
    module = function.__module__
    if module == "__main__":
        module = _main_name()
    return f"{module}.{function.__name__}"


def _main_name() -> str:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else "__main__"
