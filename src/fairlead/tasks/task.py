"""`@app.task`: a function with a `delay` that publishes the call instead of making it."""

from __future__ import annotations

import functools
import inspect
import string
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from fairlead import arguments, codec
from fairlead.errors import BadMessage, Reject, UsageError
from fairlead.working.handler import TASK_HEADER, Handler

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlead.app import Fairlead
    from fairlead.message import Lease, Receipt

P = ParamSpec("P")
R = TypeVar("R")


class Template:
    """A topic that may name arguments of the call: `"mail.{customer}"`."""

    def __init__(self, task: str, text: str, signature: inspect.Signature) -> None:
        self.text = text
        self._task = task
        try:
            self._fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise UsageError(f'task "{task}": the topic {text!r} is no template ({error})') from error
        for name in self._fields:
            if name not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise UsageError(f'task "{task}": the topic {text!r} names "{name}", which is no argument of the function; there are: {known}')

    def topic(self, arguments: dict[str, Any]) -> str:
        """The topic of one call."""
        if not self._fields:
            return self.text
        for name in self._fields:
            if arguments[name] is None or arguments[name] == "":
                raise BadMessage(f'task "{self._task}": the topic {self.text!r} needs "{name}", which is {arguments[name]!r}')
        return self.text.format_map(arguments)

    def pattern(self) -> str:
        """The policy pattern that covers every topic of the template. Raises UsageError where none does."""
        stem, brace, _ = self.text.partition("{")
        if not brace:
            return self.text
        if not stem.endswith("."):
            raise UsageError(f'task "{self._task}": policy fields need a topic like "mail.{{customer}}", got {self.text!r}; use app.policy')
        return stem + "*"


class _TaskHandler(Handler):
    """Calls the task's function with the arguments in the message's body."""

    signature: inspect.Signature

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            body = codec.decode_lease(lease)
            arguments, named = body["args"], body["kwargs"]
            self.signature.bind(*arguments, **named)
        except (ValueError, KeyError, TypeError) as error:
            raise Reject(f'the body is no call of task "{self.name}": {error}') from error
        return tuple(arguments), named


class Task(Generic[P, R]):
    """
    A function that can be called in the background. Called, it is the function.

    `delay(…)` publishes the call; a worker makes it. Arguments travel as JSON; a wrong call fails here, not in the worker.
    """

    def __init__(self, app: Fairlead, function: Callable[P, R], topic: str | None, name: str | None, options: dict[str, Any]) -> None:
        self.name = function.__qualname__ if name is None else arguments.name("task", "name", name)
        self.function = function
        self.signature = inspect.signature(function)
        self.template = Template(self.name, f"task.{self.name}" if topic is None else arguments.name("task", "topic", topic), self.signature)
        self.handler = _TaskHandler(function, self.template.text, name=self.name, **options)
        self.handler.signature = self.signature
        self._app = app
        self._headers = {TASK_HEADER: self.name}
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        return self.function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """
        Publish the call. Raises BadMessage where the arguments do not fit the function or JSON, and what `publish` raises.
        """
        topic, body = self._call(args, kwargs)
        return self._app.publish(topic, body, headers=self._headers)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """As `delay`, awaited."""
        topic, body = self._call(args, kwargs)
        return await self._app.apublish(topic, body, headers=self._headers)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadMessage(f"task {self.name}{self.signature}: {error}") from error
        bound.apply_defaults()
        return self.template.topic(bound.arguments), {"args": args, "kwargs": kwargs}

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.template.text}>"


class TaskDecorator:
    """What `app.task(…)` returns: makes a function a `Task`, registers it and sets its topic's policy."""

    def __init__(self, app: Fairlead, topic: str | None, name: str | None, run: dict[str, Any], policy: dict[str, Any]) -> None:
        self._app = app
        self._topic = topic
        self._name = name
        self._run = run
        self._policy = policy

    def __call__(self, function: Callable[P, R]) -> Task[P, R]:
        """Make the function a task. Raises UsageError, BadPolicy."""
        task = Task(self._app, function, self._topic, self._name, self._run)
        self._app.handlers.add_task(task.handler)
        if self._policy:
            self._app.policy(task.template.pattern(), **self._policy)
        return task
