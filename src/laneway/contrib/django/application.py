"""The project's application, its tasks, and what it does around each run."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from asgiref.sync import SyncToAsync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, reset_queries, transaction

from laneway import Job, Laneway, LanewayError, Task
from laneway.contrib.django import options
from laneway.producing.outbox_source import OutboxForwarding, OutboxSource
from laneway.tasks.decorator import TaskKeywords

P = ParamSpec("P")
R = TypeVar("R")


class DjangoTask(Task[P, R]):
    """A task of a Django project."""

    def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """
        Publish a call after the current transaction of the default database commits, or immediately
        without one. Raises BadMessage immediately if the arguments do not fit.

        If the process is killed between commit and publish, the call is lost;
        `delay_in_transaction` does not lose it.
        """
        self.message(args, kwargs, {})
        transaction.on_commit(functools.partial(self.delay, *args, **kwargs))

    def delay_in_transaction(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """
        Publish a call in the current transaction of the database with the outbox: the call exists
        once that commits. Raises BadMessage, and UsageError if the outbox has no tables.
        """
        return self.using(connection=options.outbox_connection()).enqueue(*args, **kwargs)

    def perform_apart(self, request: Any) -> Any:
        """As `perform`, in a child process."""
        refresh_connections()
        try:
            return super().perform_apart(request)
        finally:
            refresh_connections()


if TYPE_CHECKING:

    class AsyncDjangoTask(DjangoTask[P, R]):
        """A task of a coroutine function: a direct call returns a coroutine."""

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
            """Call the function."""
            ...

    class DjangoTaskDecorator(Protocol):
        """The result of `app.task(…)`."""

        @overload
        def __call__(
            self, function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> AsyncDjangoTask[P, R]: ...

        @overload
        def __call__(self, function: Callable[P, R], /) -> DjangoTask[P, R]: ...

    class BoundDjangoTaskDecorator(Protocol):
        """As `DjangoTaskDecorator` with `bind=True`."""

        @overload
        def __call__(
            self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
        ) -> AsyncDjangoTask[P, R]: ...

        @overload
        def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> DjangoTask[P, R]: ...


class DjangoLaneway(Laneway):
    """The application of a Django project, as the setting `LANEWAY` describes it."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.runtime.address = "laneway.contrib.django.worker:app"
        self.runtime.handlers.child_setup = "laneway.contrib.django.setup"
        self.around_handling(_with_connections)

    @overload  # type: ignore[override]
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncDjangoTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> DjangoTask[P, R]: ...

    @overload
    def task(
        self, function: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
    ) -> BoundDjangoTaskDecorator: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        bind: Literal[False] = False,
        **options: Unpack[TaskKeywords],
    ) -> DjangoTaskDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        base: type[Task[Any, Any]] | None = None,
        **options: Any,
    ) -> Any:
        """As `Laneway.task`; without `base`, the task is a `DjangoTask`."""
        make: Callable[..., Any] = super().task
        return make(function, base=DjangoTask if base is None else base, **options)


@functools.cache
def _create() -> DjangoLaneway:
    try:
        created = DjangoLaneway(**options.arguments())
        created.policy_many(options.given().get("POLICIES", {}).items())
        if (alias := options.outbox_alias()) is not None:
            created.runtime.elections_in_workers.append(
                OutboxForwarding(
                    lambda: OutboxSource(
                        alias, created.namespace, functools.partial(options.connect, alias)
                    ),
                    created.runtime.holder,
                    created.runtime.unsent,
                )
            )
    except LanewayError as error:
        raise ImproperlyConfigured(f"LANEWAY: {error}") from error
    return created


_creating = threading.Lock()


def application() -> DjangoLaneway:
    """The project's application, created at the first call. Raises ImproperlyConfigured."""
    with _creating:
        return _create()


# Around each run


def refresh_connections() -> None:
    """
    Close this thread's connections that are broken or older than CONN_MAX_AGE, and forget the
    queries that DEBUG keeps.
    """
    if settings.DEBUG:
        reset_queries()
    close_old_connections()


class _RefreshForCoroutines:
    """
    The connections of coroutines are those of the thread in which `sync_to_async` runs the ORM.
    What is submitted to that thread runs before what a handler submits later.
    """

    def __init__(self) -> None:
        self._is_due = False

    def submit(self) -> None:
        """Refresh the connections of that thread. Many handlers that start share a call."""
        if not self._is_due:
            self._is_due = True
            SyncToAsync.single_thread_executor.submit(self._run)

    def _run(self) -> None:
        self._is_due = False
        refresh_connections()


_for_coroutines = _RefreshForCoroutines()


def _with_connections(message: object) -> Generator[None, None, None]:
    del message
    refresh: Callable[[], None] = refresh_connections
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        refresh = _for_coroutines.submit
    refresh()
    try:
        yield
    finally:
        refresh()
