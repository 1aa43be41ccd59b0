"""The application, in Celery's words."""

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
from laneway.compat.celery import current, django
from laneway.compat.celery.conf import Conf
from laneway.compat.celery.results import AsyncResult, GroupResult
from laneway.compat.celery.task import ATTRIBUTES, FOREVER, NO_MEANING, PASSED_OVER, Task
from laneway.compat.celery.when import options_of
from laneway.errors import UsageError
from laneway.safetext import redacted
from laneway.signals import Signal
from laneway.tasks.canvas import CELERY_NAMES, Signature
from laneway.tasks.task import Task as _Task
from laneway.tasks.task import TaskOptions


class Celery:
    """
    An application in Celery's words; `laneway` is Laneway's own beneath it.

    `broker`: a Redis or Valkey, a file (sqlite:///…) or memory://; nothing: LANEWAY_URL, else
    ./laneway.db. `backend` is the same store; another one is an error.
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
        config.refuse_unknown(
            "Celery", {name for name in unknown if name not in _CELERY_PASSED_OVER}, known
        )
        self.main = main or "celery"
        self.conf = Conf(self._changed)
        self.tasks: dict[str, Task] = {}
        self._laneway: Laneway | None = None
        self._is_settled = False
        self._settling = threading.RLock()
        self._made: dict[str, tuple[Any, Callable[..., Any], dict[str, Any], bool]] = {}
        """How tasks were made, so that they can be made of later settings."""
        self._pending: list[Callable[[Celery], Any]] = []
        self._periodic: dict[str, tuple[Any, Any]] = {}
        self._finalized = False
        self.Task: type[Task] = _class_of(task_cls)
        self.on_after_configure = Signal(
            "on_after_configure",
            "The application's settings are known, and its worker starts: sender.",
        )
        self.on_after_finalize = Signal(
            "on_after_finalize", "The application's tasks are known: sender."
        )
        self.control = Control(self)
        self.signature = current.signature
        self.GroupResult = GroupResult
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
        Take settings from a module (or its name), an object or a dict; with `namespace` those whose
        names begin so ("CELERY_").
        """
        found: Any = source
        if isinstance(source, str):
            module, _sep, attribute = source.partition(":")
            found = importlib.import_module(module)
            found = getattr(found, attribute) if attribute else found
        pairs = (
            found.items()
            if isinstance(found, Mapping)
            else ((name, getattr(found, name)) for name in dir(found))
        )
        prefix = f"{namespace}_".lower() if namespace else ""
        for name, value in list(pairs):
            if (
                name.startswith("_")
                or isinstance(value, types.ModuleType)
                or not name.lower().startswith(prefix)
            ):
                continue
            plain = name.lower().removeprefix(prefix)
            plain = self.conf.OLD.get(name.lower(), plain)
            plain = plain if plain in self.conf.known() else plain.removeprefix("celery_")
            if plain in self.conf.known() or prefix or name.isupper():
                self.conf[plain] = value

    def config_from_envvar(self, name: str) -> None:
        """Take settings from the module that an environment variable names."""
        if not os.environ.get(name):
            raise UsageError(
                f"config_from_envvar: {name} is not set; it is to name a module with the settings"
            )
        self.config_from_object(os.environ[name])

    @property
    def laneway(self) -> Laneway:
        """Laneway's application; the settings count from here on, for all tasks."""
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
        """What a task uses; while it is made, of whichever settings there are yet."""
        return self._bare() if self._settling._is_owned() else self.laneway  # type: ignore[attr-defined]  # noqa: SLF001

    def _bare(self) -> Laneway:
        if self._laneway is None:
            kept = {} if self._namespace is None else {"namespace": self._namespace}
            self._laneway = Laneway(**kept)  # type: ignore[arg-type]
        return self._laneway

    def _settle(self) -> None:
        """Use the settings: where messages are, and what they say of each task."""
        conf, laneway = self.conf, self._bare()
        url = url_of(conf.broker_url, "broker_url")
        backend = conf.result_backend
        if (
            backend not in (None, "", "rpc://", "disabled://")
            and url_of(backend, "result_backend") != url
        ):
            raise UsageError(
                "result_backend: results are kept where the messages are"
                f" ({redacted(conf.broker_url)}); leave it out, or name the same"
            )
        laneway.name_store(url)
        if conf.result_expires is not None:
            laneway.result_ttl = laneway.failure_ttl = arguments.seconds(
                "app.conf", "result_expires", conf.result_expires
            )
        laneway.eager = bool(conf.task_always_eager)
        laneway.policy(conf.task_default_queue, retries=FOREVER)
        for name, (base, function, own, bind) in list(self._made.items()):
            self._configure(self.tasks[name], base, function, name, dict(own), bind=bind)

    def _changed(self, setting: str) -> None:
        """Settings count when the first call or worker needs them; those of tasks also later."""
        with self._settling:
            if (
                setting in ("broker_url", "result_backend")
                and self._laneway is not None
                and self._laneway.is_open
            ):
                raise UsageError(
                    f"app.conf: {setting}: the application is in use already; set it before its"
                    " first call or worker"
                )
            self._is_settled = False

    def set_default(self) -> None:
        """Be the application of tasks that name none."""
        if current.applications[-1:] != [self]:
            current.applications[:] = [
                each for each in current.applications if each is not self
            ] + [self]

    set_current = set_default

    @property
    def timezone(self) -> str:
        """On whose clocks periodic tasks run."""
        return str(self.conf.timezone or "UTC")

    def aware(self, moment: datetime) -> datetime:
        """A moment without a time zone is one of the application's."""
        if moment.tzinfo is not None:
            return moment
        return moment.replace(tzinfo=ZoneInfo(self.timezone))

    def now(self) -> datetime:
        """The present moment, on the application's clocks."""
        return datetime.now(ZoneInfo(self.timezone))

    # Tasks

    def task(self, *args: Any, **options: Any) -> Any:
        """Make a function a task; with and without parentheses, options by Celery's names."""
        if args and callable(args[0]) and not options:
            return self._make(args[0], {})
        if args:
            raise UsageError(f"task: options go by name, got {args[0]!r:.80}")
        return lambda function: self._make(function, options)

    def _make(self, function: Callable[..., Any], options: Mapping[str, Any]) -> Task:
        said = dict(options)
        base: Any = said.pop("base", None) or self.Task
        name = said.pop("name", None) or base.__dict__.get("name") or current.name_of(function)
        if name in self.tasks:
            return self.tasks[name]
        own = {attribute: said.pop(attribute, getattr(base, attribute)) for attribute in ATTRIBUTES}
        bind = bool(said.pop("bind", base.bind))
        config.refuse_unknown(
            f"task {name}",
            {each for each in said if each not in PASSED_OVER},
            (*ATTRIBUTES, "bind", "base", "name"),
        )
        return self._register(base, function, name, own, bind=bind)

    def _register(
        self, base: Any, function: Callable[..., Any], name: str, own: dict[str, Any], *, bind: bool
    ) -> Task:
        if own["serializer"] not in (None, "json", "pickle", "msgpack"):
            raise UsageError(
                f'task "{name}": the serializer {own["serializer"]!r} is not supported; there are'
                " json, msgpack and pickle"
            )
        with self._settling:
            if isinstance(
                getattr(function, "__self__", None), Task
            ):  # a class of one's own, registered
                task: Task = function.__self__  # type: ignore[attr-defined]
                type(task).celery = self
                function = _plain(function)
            else:
                kind = type(base.__name__, (base,), {"celery": self})
                task = cast("Task", object.__new__(kind))
            self._made[name] = (base, function, own, bind)
            self.tasks[name] = task
            try:
                self._configure(task, base, function, name, dict(own), bind=bind, is_new=True)
            except BaseException:
                del self._made[name], self.tasks[name]
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
        """Make a task of what its program says, and the settings of now."""
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
            limits["soft_time_limit"] = None  # the hard one comes first
        made_of = TaskOptions(
            topic=topic,
            name=name,
            bind=bind,
            serializer=serializer,
            ignore_result=bool(ignores),
            **limits,
        )
        if self._is_settled:
            laneway.policy(topic, retries=FOREVER, **({"rate": _rate(rate)} if rate else {}))  # type: ignore[arg-type]
        if type(task).__mro__[1] is base and "celery" in vars(type(task)) and is_new:
            task.__init__(laneway, function, made_of)  # type: ignore[misc]  # a class of one's own may do more there
        else:
            _Task.__init__(task, laneway, function, made_of)
            task.become_bound()
        for attribute, value in own.items():
            if attribute != "serializer":
                setattr(task, attribute, value)
        if own["priority"] is None and conf.task_default_priority is not None:
            task.priority = conf.task_default_priority
        task.queue = queue
        laneway.handlers.add_task(task.handler, replaces=not is_new)

    def _annotated(self, name: str) -> dict[str, Any]:
        """What the settings say of a task besides."""
        said = self.conf.task_annotations
        if said is None:
            return {}
        found: dict[str, Any] = {}
        for each in said if isinstance(said, (list, tuple)) else [said]:
            found |= {**each.get("*", {}), **each.get(name, {})}
        return {attribute: value for attribute, value in found.items() if attribute in ATTRIBUTES}

    def _routed(self, name: str) -> str | None:
        """The queue that the settings name for a task."""
        routes = self.conf.task_routes
        for each in routes if isinstance(routes, (list, tuple)) else [routes]:
            if callable(each):
                found = each(name, (), {}, {})
                return (
                    (found or {}).get("queue")
                    if isinstance(found, Mapping) or found is None
                    else found
                )
            if isinstance(each, Mapping):
                for pattern, route in each.items():
                    if pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                        return route.get("queue") if isinstance(route, Mapping) else route
        return None

    def register_task(self, task: Task | type[Task], **_: object) -> Task:
        """Register a task that is a class of its own, with `run`."""
        made = task() if isinstance(task, type) else task
        kind = type(made)
        name = kind.__dict__.get("name") or f"{kind.__module__}.{kind.__qualname__}"
        own = {attribute: getattr(made, attribute) for attribute in ATTRIBUTES}
        return self._register(kind, made.run, name, own, bind=False)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncResult:
        """Publish a call of a task that another program has, by its name."""
        if name in self.tasks:
            return cast("AsyncResult", self.tasks[name].apply_async(args, kwargs, **options))
        known: Any = Task.__new__(type("Task", (self.Task,), {"celery": self}))
        topic = self._routed(name) or self.conf.task_default_queue
        known.__init__(self.laneway, _unknown, TaskOptions(name=name, topic=topic))
        return cast("AsyncResult", known.apply_async(args, kwargs, **options))

    def autodiscover_tasks(
        self, packages: Any = None, related_name: str = "tasks", force: bool = False
    ) -> None:
        """
        Import the module `tasks` of packages, when the worker starts; without any, of Django's
        installed applications.
        """
        del force

        def find(_: Celery) -> None:
            found = packages() if callable(packages) else packages
            if found is None:
                from django.apps import apps  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415  # whoever says nothing has it

                found = [each.name for each in apps.get_app_configs()]
            for package in found:
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
        """Run a task again and again."""
        if isinstance(sig, _Task):
            sig = Signature(sig, tuple(args), dict(kwargs or {}), {})
        if not isinstance(sig, Signature):
            raise UsageError(
                f"add_periodic_task: expected a call like add.s(1, 2), got {sig!r:.80}"
            )
        key = name or repr(sig)
        self._plan(key, when, sig)
        return key

    def _plan(self, name: str, when: Any, sig: Signature[Any]) -> None:
        laneway = self.laneway  # the settings count now
        message = sig.task.message(
            sig.args,
            sig.kwargs,
            {name: value for name, value in sig.options.items() if name not in ("delay", "at")},
        )
        laneway.schedule(name, message, **options_of(when, self.timezone))

    def for_worker(self) -> Laneway:
        """Laneway's application, for a worker's process."""
        return self.finalize().laneway

    def finalize(self) -> Celery:
        """
        Import what is named, and plan what runs by the clock; what a worker does when it starts.
        """
        if self._finalized:
            return self
        self._finalized = True
        django.set_up()
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
                    f'beat_schedule: {name}: there is no task "{entry["task"]}"; there are:'
                    f" {', '.join(sorted(self.tasks)) or 'none'}"
                )
            options = {
                CELERY_NAMES.get(each, each): value
                for each, value in (entry.get("options") or {}).items()
                if each not in NO_MEANING
            }
            made = Signature(task, tuple(entry.get("args", ())), dict(entry.get("kwargs", {})), {})
            self._plan(name, entry["schedule"], made.set(**options))
        return self

    # Workers

    def topics_of(self, queues: Sequence[str]) -> list[str]:
        """The topics of queues, in their order: a task with a rate of its own has its own."""
        found: list[str] = []
        for queue in queues:
            found += [
                queue,
                *sorted(
                    task.template.text
                    for task in self.tasks.values()
                    if task.queue == queue and task.template.text != queue
                ),
            ]
        return found

    def worker_main(self, argv: Sequence[str] | None = None) -> None:
        """Run a worker as `celery worker` does; of its options -c, -Q, -l, --burst and -B count."""
        words = [word for word in (sys.argv[1:] if argv is None else argv) if word != "worker"]
        concurrency, queues, level, burst = (
            self.conf.worker_concurrency or 100,
            None,
            "warning",
            False,
        )
        stream = iter(words)
        for word in stream:
            option, _, value = word.partition("=")
            if option in ("-c", "--concurrency"):
                concurrency = arguments.whole("worker", "-c", int(value or next(stream)))
            elif option in ("-Q", "--queues"):
                queues = (value or next(stream)).split(",")
            elif option in ("-l", "--loglevel"):
                level = value or next(stream)
            elif option == "--burst":
                burst = True
            elif option in ("-P", "--pool", "-n", "--hostname", "-A", "--app"):
                _ = value or next(stream)
            elif option not in (
                "-E",
                "-B",
                "--beat",
                "--events",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ):
                raise UsageError(
                    f"worker: the option {option} is not supported; there are -c, -Q, -l and"
                    " --burst"
                )
        logging.basicConfig(level=level.upper())
        self.run_worker(concurrency=concurrency, queues=queues, burst=burst)

    start = worker_main

    def run_worker(self, *, queues: Sequence[str] | None = None, **options: Any) -> Any:
        """Run a worker of Laneway's, for queues by their names."""
        self.finalize()
        return self.laneway.run_worker(
            topics=None if queues is None else self.topics_of(queues), **options
        )

    def close(self) -> None:
        """Let go of the store."""
        if self._laneway is not None:
            self._laneway.close()

    def __enter__(self) -> Celery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Celery {self.main}>"


_CELERY_PASSED_OVER = {
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


class Control:
    """`app.control`: what of it has a meaning here."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | Sequence[str], terminate: bool = False, **_: object) -> None:
        """Cancel tasks; one that runs is always stopped."""
        del terminate
        for each in [task_id] if isinstance(task_id, str) else task_id:
            self._app.laneway.job(each).cancel()

    def terminate(self, task_id: str | Sequence[str], **_: object) -> None:
        """As `revoke`."""
        self.revoke(task_id)

    def purge(self) -> int:
        """Remove what waits in the queues of the application's tasks."""
        topics = {task.template.text for task in self._app.tasks.values()} | {
            self._app.conf.task_default_queue
        }
        return sum(self._app.laneway.topic(topic).purge() for topic in topics)

    def rate_limit(self, task_name: str, rate_limit: str | float, **_: object) -> None:
        """Change the rate of a task that has one of its own."""
        task = self._app.tasks.get(task_name)
        if task is None or task.template.text == task.queue:
            raise UsageError(
                f"rate_limit: {task_name} has no rate of its own; give it one where it is defined,"
                " then it can be changed"
            )
        self._app.laneway.engine.policy_set(
            "operator", task.template.text, {"rate": _rate(rate_limit)}
        )

    def __getattr__(self, name: str) -> Any:
        raise UsageError(
            f"app.control.{name} is not supported; `laneway top`, `laneway topics` and `laneway"
            " explain` show what workers do"
        )


def _class_of(said: type[Task] | str | None) -> type[Task]:
    if isinstance(said, str):
        module, _, name = said.rpartition(":" if ":" in said else ".")
        said = getattr(importlib.import_module(module), name)
    return Task if said is None else cast("type[Task]", said)


def _rate(said: str | float) -> str | float:
    """Celery's "10/m" as ours."""
    if isinstance(said, (int, float)):
        return said
    count, _, per = said.partition("/")
    return f"{float(count):g}/{ {'': 's', 's': 's', 'm': 'min', 'h': 'h'}.get(per, per) }"


def _plain(run: Callable[..., Any]) -> Callable[..., Any]:
    """A method as a function, which can carry a name."""
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
    raise UsageError("this task is another program's")
