"""`Celery`: the application with Celery's API."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from laneway import arguments, config
from laneway.app import Laneway
from laneway.compat.addresses import url_of
from laneway.compat.celery import current, django, signals, worker_options
from laneway.compat.celery.conf import Conf
from laneway.compat.celery.control import Control, rate_of
from laneway.compat.celery.flows import Signature
from laneway.compat.celery.results import AsyncResult, GroupResult
from laneway.compat.celery.task import ATTRIBUTES, FOREVER, IGNORED, NO_MEANING, Task
from laneway.compat.celery.when import options_of
from laneway.errors import UsageError
from laneway.printable import meant, redacted
from laneway.schedules.store import PREFIX
from laneway.tasks.options import TaskOptions
from laneway.tasks.task import Task as _Task

log = logging.getLogger("laneway.compat.celery")

_WARNED: set[str] = set()
"""Unknown options of tasks that were logged."""


class Celery:
    """
    An application with Celery's API; the attribute `laneway` is the Laneway application it uses.

    `broker`: Redis, Valkey, a file (sqlite:///…) or memory://; default: LANEWAY_URL, else
    ./laneway.db. `backend`: the same store; any other one is an error.
    """

    def __init__(
        self,
        main: str | None = None,
        *,
        broker: str | None = None,
        backend: str | None = None,
        include: Sequence[str] = (),
        config_source: Any = None,
        set_as_current: bool = True,
        task_cls: type[Task] | str | None = None,
        namespace: str | None = None,
        **unknown: Any,
    ) -> None:
        known = (
            "broker",
            "backend",
            "include",
            "config_source",
            "set_as_current",
            "task_cls",
            "namespace",
        )
        self.conf = Conf(self._changed)
        settings = {name: value for name, value in unknown.items() if name in self.conf.known()}
        config.refuse_unknown("Celery", unknown.keys() - settings.keys() - _CELERY_IGNORED, known)
        self.main = main or "celery"
        self.tasks: dict[str, Task] = {}
        self._laneway: Laneway | None = None
        self._is_settled = False
        self._settling = threading.RLock()
        self._definitions: dict[str, tuple[Any, Callable[..., Any], dict[str, Any], bool]] = {}
        """Class, function, options and `bind` of each task, to apply later settings to it."""
        self._pending: list[Callable[[Celery], Any]] = []
        self._periodic: list[str] = []
        """The names of its schedules."""
        self._finalized = False
        self.Task: type[Task] = _class_of(task_cls)
        self.on_after_configure = signals.Signal(
            "on_after_configure",
            "The application's settings are known, and its worker starts: sender.",
        )
        self.on_after_finalize = signals.Signal(
            "on_after_finalize", "The application's tasks are known: sender."
        )
        self.control = Control(self)
        self.signature = current.signature
        self.GroupResult = GroupResult
        self.conf.update(settings)
        if broker is not None:
            self.conf.broker_url = broker
        if backend is not None:
            self.conf.result_backend = backend
        if include:
            self.conf.include = tuple(include)
        self._namespace = namespace
        if config_source is not None:
            self.config_from_object(config_source)
        if set_as_current:
            current.applications.append(self)
        for make in current.shared:
            make(self)

    # Settings

    def config_from_object(self, source: Any, namespace: str | None = None, **_: object) -> None:
        """
        Take settings from a module (or its name), an object or a dict.

        With `namespace` ("CELERY"), only settings whose names begin with it and "_".
        """
        settings: Any = source
        if isinstance(source, str):
            module, _sep, attribute = source.partition(":")
            settings = importlib.import_module(module)
            settings = getattr(settings, attribute) if attribute else settings
        pairs = (
            settings.items()
            if isinstance(settings, Mapping)
            else ((name, getattr(settings, name)) for name in dir(settings))
        )
        prefix = f"{namespace}_".lower() if namespace else ""
        for name, value in list(pairs):
            if (
                name.startswith("_")
                or isinstance(value, types.ModuleType)
                or not name.lower().startswith(prefix)
            ):
                continue
            plain = self.conf.OLD.get(name.lower(), name.lower().removeprefix(prefix))
            if plain.removeprefix("celery_") in self.conf.known() or prefix or name.isupper():
                self.conf[plain] = value

    def config_from_envvar(self, name: str) -> None:
        """Take settings from the module that an environment variable names."""
        if not os.environ.get(name):
            raise UsageError(
                f"config_from_envvar: {name} is not set; set it to the name of a module with the"
                " settings"
            )
        self.config_from_object(os.environ[name])

    @property
    def laneway(self) -> Laneway:
        """The Laneway application. First use applies the settings to all tasks."""
        with self._settling:
            if not self._is_settled:
                self._is_settled = True
                try:
                    self._settle()
                except BaseException:
                    self._is_settled = False
                    raise
            assert self._laneway is not None
            return self._laneway

    def for_task(self) -> Laneway:
        """The application for a task; while tasks are configured, without applying settings."""
        return self._bare() if self._settling._is_owned() else self.laneway  # type: ignore[attr-defined]  # noqa: SLF001

    def _bare(self) -> Laneway:
        if self._laneway is None:
            options = {} if self._namespace is None else {"namespace": self._namespace}
            self._laneway = Laneway(**options)  # type: ignore[arg-type]
            self._laneway.runtime.handlers.served = self.topics_of
        return self._laneway

    def _settle(self) -> None:
        """Apply the settings: the store, and the options of each task."""
        conf, laneway = self.conf, self._bare()
        url = url_of(conf.broker_url, "broker_url")
        backend = conf.result_backend
        if (
            backend not in (None, "", "rpc://", "disabled://")
            and url_of(backend, "result_backend") != url
        ):
            raise UsageError(
                "result_backend: results are stored with the messages"
                f" ({redacted(conf.broker_url)}); leave it out, or set it to the same URL"
            )
        laneway.runtime.holder.name(url)
        if conf.result_expires is not None:
            laneway.runtime.result_ttl = laneway.runtime.failure_ttl = arguments.seconds(
                "app.conf", "result_expires", conf.result_expires
            )
        laneway.runtime.eager = bool(conf.task_always_eager)
        laneway.policy(conf.task_default_queue, retries=FOREVER)
        for name, (base, function, own, bind) in list(self._definitions.items()):
            self._configure(self.tasks[name], base, function, name, dict(own), bind=bind)

    def _changed(self, setting: str) -> None:
        """Apply settings again on next use; the store cannot change once it is open."""
        with self._settling:
            if (
                setting in ("broker_url", "result_backend")
                and self._laneway is not None
                and self._laneway.runtime.holder.is_open
            ):
                raise UsageError(
                    f"app.conf: {setting}: the application is in use already; set it before its"
                    " first call or worker"
                )
            self._is_settled = False

    def set_default(self) -> None:
        """Make this the application of tasks that name none."""
        if current.applications[-1:] != [self]:
            current.applications[:] = [
                each for each in current.applications if each is not self
            ] + [self]

    set_current = set_default

    @property
    def timezone(self) -> str:
        """The time zone in which periodic tasks run."""
        return str(self.conf.timezone or "UTC")

    def aware(self, moment: datetime) -> datetime:
        """A time with a time zone: the application's, if it has none."""
        if moment.tzinfo is not None:
            return moment
        return moment.replace(tzinfo=ZoneInfo(self.timezone))

    def now(self) -> datetime:
        """The present time in the application's time zone."""
        return datetime.now(ZoneInfo(self.timezone))

    # Tasks

    def task(self, *args: Any, **options: Any) -> Any:
        """Turn a function into a task; with or without parentheses, with Celery's option names."""
        if args and callable(args[0]) and not options:
            return self._make(args[0], {})
        if args:
            raise UsageError(f"task: options are keyword arguments, got {args[0]!r:.80}")
        return lambda function: self._make(function, options)

    def _make(self, function: Callable[..., Any], options: Mapping[str, Any]) -> Task:
        given = dict(options)
        base: Any = given.pop("base", None) or self.Task
        name = given.pop("name", None) or base.__dict__.get("name") or current.name_of(function)
        if name in self.tasks:
            return self.tasks[name]
        own = {
            attribute: given.pop(attribute, getattr(base, attribute)) for attribute in ATTRIBUTES
        }
        bind = bool(given.pop("bind", base.bind))
        for option in given.keys() - IGNORED - _WARNED:
            _WARNED.add(option)
            log.warning(
                'task %s: the option "%s" is unknown and becomes an attribute of the task%s',
                name,
                option,
                meant(option, (*ATTRIBUTES, "bind", "base", "name")),
            )
        return self._register(base, function, name, own, given, bind=bind)

    def _register(
        self,
        base: Any,
        function: Callable[..., Any],
        name: str,
        own: dict[str, Any],
        attributes: Mapping[str, Any],
        *,
        bind: bool,
    ) -> Task:
        if own["serializer"] not in (None, "json", "pickle", "msgpack"):
            raise UsageError(
                f'task "{name}": the serializer {own["serializer"]!r} is not supported; use json,'
                " msgpack or pickle"
            )
        with self._settling:
            if isinstance(getattr(function, "__self__", None), Task):  # a custom class
                task: Task = function.__self__  # type: ignore[attr-defined]
                type(task).celery = self
                function = _plain(function)
            else:
                kind = type(base.__name__, (base,), {**attributes, "celery": self})
                task = cast("Task", object.__new__(kind))
            self._definitions[name] = (base, function, own, bind)
            self.tasks[name] = task
            try:
                self._configure(task, base, function, name, dict(own), bind=bind, is_new=True)
            except BaseException:
                del self._definitions[name], self.tasks[name]
                raise
            return task

    def _configure(
        self,
        task: Task,
        base: Any,
        function: Callable[..., Any],
        name: str,
        own: dict[str, Any],
        *,
        bind: bool,
        is_new: bool = False,
    ) -> None:
        """Apply the task's options and the present settings to it."""
        conf, laneway = self.conf, self._bare()
        own |= self._annotated(name)
        serializer = own["serializer"] or conf.task_serializer
        ignores = conf.task_ignore_result if own["ignore_result"] is None else own["ignore_result"]
        queue = own["queue"] or self._routed(name) or conf.task_default_queue
        rate = own["rate_limit"] if own["rate_limit"] is not None else conf.task_default_rate_limit
        topic = f"{queue}.{name}" if rate else queue
        limits = {
            "time_limit": own["time_limit"] or conf.task_time_limit,
            "soft_time_limit": own["soft_time_limit"] or conf.task_soft_time_limit,
        }
        if (
            limits["time_limit"]
            and limits["soft_time_limit"]
            and limits["soft_time_limit"] >= limits["time_limit"]
        ):
            limits["soft_time_limit"] = None  # the hard limit ends it first
        task_options = TaskOptions(
            topic=topic,
            name=name,
            bind=bind,
            serializer=serializer,
            ignore_result=bool(ignores),
            **limits,
        )
        if self._is_settled:
            laneway.policy(topic, retries=FOREVER, **({"rate": rate_of(rate)} if rate else {}))  # type: ignore[arg-type]
        if type(task).__mro__[1] is base and "celery" in vars(type(task)) and is_new:
            task.__init__(laneway.runtime, function, task_options)  # type: ignore[misc]  # custom classes override it
        else:
            _Task.__init__(task, laneway.runtime, function, task_options)
            task.become_bound()
        for attribute, value in own.items():
            if attribute != "serializer":
                setattr(task, attribute, value)
        if own["priority"] is None and conf.task_default_priority is not None:
            task.priority = conf.task_default_priority
        task.queue = queue
        laneway.runtime.handlers.add_task(task.handler, replaces=not is_new)

    def _annotated(self, name: str) -> dict[str, Any]:
        """The options that `task_annotations` sets for a task."""
        annotations = self.conf.task_annotations
        if annotations is None:
            return {}
        options: dict[str, Any] = {}
        for each in annotations if isinstance(annotations, (list, tuple)) else [annotations]:
            options |= {**each.get("*", {}), **each.get(name, {})}
        return {attribute: value for attribute, value in options.items() if attribute in ATTRIBUTES}

    def _routed(self, name: str) -> str | None:
        """The queue that `task_routes` sets for a task."""
        routes = self.conf.task_routes
        for each in routes if isinstance(routes, (list, tuple)) else [routes]:
            if callable(each):
                route = each(name, (), {}, {})
                return (
                    (route or {}).get("queue")
                    if isinstance(route, Mapping) or route is None
                    else route
                )
            if isinstance(each, Mapping):
                for pattern, route in each.items():
                    if pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                        return route.get("queue") if isinstance(route, Mapping) else route
        return None

    def register_task(self, task: Task | type[Task], **_: object) -> Task:
        """Register a task that is a custom class with a method `run`."""
        instance = task() if isinstance(task, type) else task
        kind = type(instance)
        name = kind.__dict__.get("name") or f"{kind.__module__}.{kind.__qualname__}"
        own = {attribute: getattr(instance, attribute) for attribute in ATTRIBUTES}
        return self._register(kind, instance.run, name, own, {}, bind=False)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Publish a call of a task by its name; the task may be defined in another program."""
        if name in self.tasks:  # as in Celery, not by an `apply_async` of the task's class
            return cast("AsyncResult", Task.apply_async(self.tasks[name], args, kwargs, **options))
        task: Any = Task.__new__(type("Task", (self.Task,), {"celery": self}))
        topic = self._routed(name) or self.conf.task_default_queue
        task.__init__(self.laneway.runtime, _unknown, TaskOptions(name=name, topic=topic))
        return cast("AsyncResult", task.apply_async(args, kwargs, **options))

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str = "tasks", force: bool = False
    ) -> None:
        """
        Import the module `tasks` of these packages when the worker starts.

        Without packages: of Django's installed applications.
        """
        del force

        def find(_: Celery) -> None:
            names = packages() if callable(packages) else packages
            if names is None:
                from django.apps import apps  # type: ignore[import-untyped, import-not-found, unused-ignore]  # noqa: PLC0415  # optional

                names = [each.name for each in apps.get_app_configs()]
            for package in names:
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(
                        f"{package}.{related_name}" if related_name else package
                    )

        self._pending.append(find)

    def AsyncResult(  # noqa: N802
        self,
        task_id: str | None = None,
        id: str | None = None,  # noqa: A002  # Celery's names
        **_: object,
    ) -> AsyncResult:
        """The handle of a call, by its id."""
        return AsyncResult(task_id if task_id is not None else id, self)

    # Periodic tasks

    def add_periodic_task(
        self,
        when: Any,
        sig: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> str:
        """Run a task periodically."""
        if isinstance(sig, _Task):
            sig = Signature(sig, tuple(args), dict(kwargs or {}), {})
        if not isinstance(sig, Signature):
            raise UsageError(
                f"add_periodic_task: expected a call like add.s(1, 2), got {sig!r:.80}"
            )
        key = name or repr(sig)
        self._plan(key, when, sig)
        return key

    def _plan(self, name: str, when: Any, sig: Signature) -> None:
        laneway = self.laneway  # applies the settings
        call = sig.task.invocation(
            sig.args,
            sig.kwargs,
            {name: value for name, value in sig.options.items() if name not in ("delay", "at")},
        )
        laneway.schedule(name, call.message(), **options_of(when, self.timezone))
        self._periodic.append(name)

    def for_worker(self) -> Laneway:
        """Laneway's application, for a worker's process."""
        return self.finalize().laneway

    def finalize(self) -> Celery:
        """
        Import the configured modules and store the schedules; a worker does this when it starts.
        """
        if self._finalized:
            return self
        self._finalized = True
        django.set_up()
        signals.of_logging()
        self.on_after_configure.send(self)
        for module in (*self.conf.imports, *self.conf.include):
            importlib.import_module(module)
        for pending in self._pending:
            pending(self)
        self.on_after_finalize.send(self)
        for name, entry in dict(self.conf.beat_schedule).items():
            task = self.tasks.get(entry["task"])
            if task is None:
                raise UsageError(
                    f'beat_schedule: {name}: there is no task "{entry["task"]}"; tasks:'
                    f" {', '.join(sorted(self.tasks)) or 'none'}"
                )
            options = {
                each: value
                for each, value in (entry.get("options") or {}).items()
                if each not in NO_MEANING
            }
            call = Signature(task, tuple(entry.get("args", ())), dict(entry.get("kwargs", {})), {})
            self._plan(name, entry["schedule"], call.set(**options))
        return self

    # Workers

    def topics_of(self, queues: Sequence[str] | None = None) -> list[str]:
        """
        The topics that a worker of queues serves, in order: those of the schedules, and for each
        queue those of its tasks with a rate limit before the queue's own.

        Default: the queues of `task_queues`, else of `task_default_queue`, as in Celery.
        """
        if queues is None:
            named = self.conf.task_queues or [self.conf.task_default_queue]
            queues = [str(getattr(each, "name", each)) for each in named]
        topics = {f"{PREFIX}{name}": None for name in self._periodic}
        for queue in queues:
            own = {task.template.text for task in self.tasks.values() if task.queue == queue}
            topics |= dict.fromkeys([*sorted(own - {queue}), queue])
        return list(topics)

    def worker_main(self, argv: Sequence[str] | None = None) -> None:
        """Run a worker as `celery worker` does, with its options."""
        words = sys.argv[1:] if argv is None else argv
        worker_options.run(self, worker_options.read(words))

    start = worker_main

    def run_worker(self, *, queues: Sequence[str] | None = None, **options: Any) -> Any:
        """Run a Laneway worker for the named queues."""
        self.finalize()
        return self.laneway.run_worker(
            topics=None if queues is None else self.topics_of(queues), **options
        )

    def close(self) -> None:
        """Close the store."""
        if self._laneway is not None:
            self._laneway.close()

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Celery {self.main}>"


_CELERY_IGNORED = {
    "amqp",
    "events",
    "log",
    "control",
    "result_cls",
    "strict_typing",
    "changes",
    "autofinalize",
    "fixups",
    "loader",
    "backend_cls",
}


def _class_of(task_class: type[Task] | str | None) -> type[Task]:
    if isinstance(task_class, str):
        module, _, name = task_class.rpartition(":" if ":" in task_class else ".")
        task_class = getattr(importlib.import_module(module), name)
    return Task if task_class is None else cast("type[Task]", task_class)


def _plain(run: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function: attributes can be set on it."""
    if inspect.iscoroutinefunction(run):

        @functools.wraps(run)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            return await run(*args, **kwargs)

        return arun

    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(*args, **kwargs)

    return call


def _unknown(*args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    raise UsageError("this task is defined in another program")
