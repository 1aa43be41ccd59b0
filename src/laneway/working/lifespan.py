"""
State of a worker, such as a pool of connections: made when it starts, closed when it has ended,
and given to handlers and tasks that ask for it by its type.

A lifespan is a generator function that yields the state once. Its return annotation names the type.
A handler asks for it with a parameter of that type, which its callers leave out.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, cast

from laneway.errors import UsageError
from laneway.working.annotations import alternatives, annotations_of

States = dict[Any, Any]
"""By type: what a lifespan has yielded."""

STATES: ContextVar[States] = ContextVar("laneway-states")
"""
The states of the worker that runs this code. A worker sets it before it creates its executors,
whose tasks and threads inherit it.
"""

ITERATORS = (AsyncIterator, AsyncGenerator, Iterator, Generator)


class Lifespans:
    """The lifespans of an application."""

    def __init__(self) -> None:
        self._functions: dict[Any, Callable[[], Any]] = {}
        """By the type of the state, in the order in which they were declared."""
        self._asked: list[tuple[str, set[Any]]] = []
        """Functions that were registered so far, with the types of their parameters."""

    def add(self, function: Callable[[], Any]) -> None:
        """Declare a lifespan. Raises UsageError for a function that is none."""
        where = f"lifespan {getattr(function, '__qualname__', function)}"
        if not (inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)):
            raise UsageError(f"{where}: expected a generator function that yields the state once")
        if inspect.signature(function).parameters:
            raise UsageError(f"{where}: it is called without arguments; remove its parameters")
        kind = _yielded(function)
        if kind is None:
            raise UsageError(
                f"{where}: its annotation names the type of the state; write"
                f" def {function.__name__}() -> AsyncIterator[Database]"
            )
        if kind in self._functions:
            raise UsageError(f"{where}: there is a lifespan for {_name(kind)} already")
        late = next((name for name, kinds in self._asked if kind in kinds), None)
        if late is not None:
            raise UsageError(f"{where}: declare it above {late}, which asks for {_name(kind)}")
        self._functions[kind] = function

    def inject(self, where: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """
        The function without the parameters that a lifespan provides; `where`: for messages.

        Their values are those of the worker that calls it. A caller may also pass them by name.
        """
        hints = annotations_of(function)
        self._asked.append(
            (where, {kind for hint in hints.values() for kind in alternatives(hint)})
        )
        wanted = {
            name: kind
            for name, hint in hints.items()
            if name != "return"
            for kind in alternatives(hint)
            if kind in self._functions
        }
        if not wanted:
            return function
        signature = inspect.signature(function)
        parameters = [each for each in signature.parameters.values() if each.name not in wanted]
        outer = signature.replace(parameters=parameters)

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {name: kwargs.pop(name) for name in wanted.keys() & kwargs.keys()}
            missing = {name: kind for name, kind in wanted.items() if name not in given}
            values = {**outer.bind(*args, **kwargs).arguments, **given}
            values |= _of_worker(where, missing)
            ordered = {name: values[name] for name in signature.parameters if name in values}
            full = inspect.BoundArguments(signature, cast("Any", ordered))
            return function(*full.args, **full.kwargs)

        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await call(*args, **kwargs)

        injected: Any = acall if inspect.iscoroutinefunction(function) else call
        functools.update_wrapper(injected, function)
        injected.__signature__ = outer
        injected.asks_for_state = True
        return cast("Callable[..., Any]", injected)

    @asynccontextmanager
    async def entered(self, states: States) -> AsyncIterator[None]:
        """Fill the states of a worker; they exist during the block."""
        async with AsyncExitStack() as stack:
            for kind, function in self._functions.items():
                if inspect.isasyncgenfunction(function):
                    entering = stack.enter_async_context(asynccontextmanager(function)())
                    states[kind] = await entering
                else:
                    states[kind] = stack.enter_context(contextmanager(function)())
            try:
                yield
            finally:
                states.clear()


def asks_for_state(function: Callable[..., Any]) -> bool:
    """Whether a lifespan provides parameters of the function."""
    return getattr(function, "asks_for_state", False)


def _of_worker(where: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """The wanted states, by the name of the parameter. Raises UsageError outside of a worker."""
    states = STATES.get({})
    for name, kind in wanted.items():
        if kind not in states:
            raise UsageError(f"{where}: no worker runs here that has a {_name(kind)}; pass {name}=")
    return {name: states[kind] for name, kind in wanted.items()}


def _yielded(function: Callable[..., Any]) -> Any:
    """The type that a generator function yields, or None if its annotation does not tell."""
    returned = annotations_of(function).get("return")
    if typing.get_origin(returned) not in ITERATORS:
        return None
    kind = typing.get_args(returned)[0]
    return None if kind in (Any, object, None, type(None)) else kind


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", str(kind))
