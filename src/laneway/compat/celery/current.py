"""
What is current: the application that was made last, the task that runs; and tasks of whichever
application there is.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laneway.errors import UsageError
from laneway.tasks.canvas import Part, Signature
from laneway.tasks.request import current_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from laneway.compat.celery.application import Celery


applications: list[Celery] = []
shared: list[Callable[[Celery], Any]] = []


def application() -> Celery:
    """The application that was made last. Raises UsageError where there is none."""
    if not applications:
        raise UsageError("there is no Celery application yet; make one first: app = Celery(…)")
    return applications[-1]


class _Current:
    """The application that was made last, whichever that is when it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(application(), name)


current_app: Any = _Current()


class _CurrentTask:
    """The task that runs."""

    def __getattr__(self, name: str) -> Any:
        request = current_request()
        if request is None:
            raise UsageError("current_task: no task runs here")
        return getattr(application().tasks[request.task], name)


current_task: Any = _CurrentTask()


class _Shared:
    """A task of whichever application there is."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self._name = options.get("name") or name_of(function)
        self.__wrapped__ = function
        self.__doc__ = function.__doc__

        def make(app: Celery) -> None:
            app.task(**{**options, "name": self._name})(function)

        shared.append(make)
        for app in applications:
            make(app)

    def __getattr__(self, name: str) -> Any:
        return getattr(application().tasks[self._name], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return application().tasks[self._name](*args, **kwargs)


def shared_task(*args: Any, **options: Any) -> Any:
    """Make a function a task of every application that there is, or will be."""
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
    """A call that is not made yet, of a task or of its name."""
    if isinstance(task, Part):
        return task
    found = application().tasks.get(task) if isinstance(task, str) else task
    if found is None:
        raise UsageError(
            f'signature: there is no task "{task}"; there are:'
            f" {', '.join(sorted(application().tasks)) or 'none'}"
        )
    return Signature(found, tuple(args), dict(kwargs or {}), {}, immutable=immutable).set(**options)


def name_of(function: Callable[..., Any]) -> str:
    """What a task is called whose program says nothing."""
    module = function.__module__
    if module == "__main__":
        module = _main_name()
    return f"{module}.{function.__name__}"


def _main_name() -> str:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path(file).stem if file else "__main__"
