"""
The arguments of a call: checked by the function's signature, and converted to its annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from laneway.errors import BadMessage, Reject, UsageError
from laneway.tasks.converting import converter_to
from laneway.tasks.request import Request
from laneway.working.annotations import alternatives, annotations_of

_EMPTY = inspect.Parameter.empty
_UNTYPED = (Any, _EMPTY, object)


class WrongArguments(BadMessage, TypeError):
    """The arguments of a call do not fit the function."""


class Binding:
    """
    The signature of a task's function, as callers see it.

    `skips`: the first parameter of a bound task is the task itself. The worker supplies a parameter
    annotated `Request`.
    """

    def __init__(self, task: str, function: Callable[..., Any], *, skips: bool) -> None:
        self._task = task
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a function in C without a signature
            raise UsageError(
                f"task {task}: its parameters are not known, as those of many builtins; wrap it in"
                " a function of your own"
            ) from None
        hints = annotations_of(function)
        self.injected = [
            (place, each)
            for place, each in enumerate(parameters[int(skips) :])
            if Request in alternatives(hints.get(each.name))
        ]
        given = {each.name for _, each in self.injected}
        self.returns = _returned(hints)
        self.signature = inspect.Signature(
            [each for each in parameters[int(skips) :] if each.name not in given]
        )
        parameters = list(self.signature.parameters.values())
        self._names = (
            tuple(each.name for each in parameters)
            if all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters)
            else None
        )
        """The parameters, if each may be given by position."""
        self._defaults = {
            each.name: each.default for each in parameters if each.default is not _EMPTY
        }
        self._types = {
            each.name: _type_of_all(each.kind, hint)
            for each in parameters
            if (hint := hints.get(each.name, Any)) not in _UNTYPED
        }
        self._converters = {
            name: converter
            for name, kind in self._types.items()
            if (converter := converter_to(kind)) is not None
        }

    def annotated(self) -> tuple[set[int], set[str]]:
        """Positions and names of the arguments with a known type."""
        places = {
            place for place, name in enumerate(self.signature.parameters) if name in self._types
        }
        return places, set(self._types)

    def _names_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...] | None:
        """
        The names of the parameters if all arguments are given by position, as most are, or None if
        only `signature.bind` can tell, which costs ten times as much.
        """
        names = self._names
        if names is None or kwargs or not isinstance(kwargs, dict):  # another program's may not be
            return None
        return names if len(names) - len(self._defaults) <= len(args) <= len(names) else None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        All arguments of a call by name, defaults included. Raises WrongArguments.
        """
        names = self._names_of(args, kwargs)
        if names is not None:
            return self._defaults | dict(zip(names, args, strict=False))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise WrongArguments(f"task {self._task}{self.signature}: {error}") from error
        bound.apply_defaults()
        return bound.arguments

    def decode(
        self, body: Any, first: tuple[Any, ...] = (), *, converts: bool = True
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        The arguments of a received call, after those of `first`. `converts`: convert them to the
        function's annotations. Raises Reject.
        """
        converters = self._converters if converts else {}
        try:
            args, kwargs = (*first, *body["args"]), body["kwargs"]
            names = self._names_of(args, kwargs)
            bound = self.signature.bind(*args, **kwargs) if names is None else None
        except (KeyError, TypeError) as error:
            raise Reject(f'the body is not a call of task "{self._task}": {error}') from error
        given = bound.arguments if bound is not None else dict(zip(names or (), args, strict=False))
        name = ""
        try:
            for name, convert in converters.items():
                if name in given:
                    given[name] = convert(given[name])
        except (ValueError, TypeError) as error:
            raise Reject(
                f'task "{self._task}": the argument "{name}" is not of the type that the function'
                f" expects: {error}"
            ) from error
        return (tuple(given.values()), {}) if bound is None else (bound.args, bound.kwargs)

    def complete(self, request: Request) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a run, including those that the worker supplies."""
        args, kwargs = list(request.args), dict(request.kwargs)
        for place, parameter in self.injected:
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and place <= len(args):
                args.insert(place, request)
            else:
                kwargs[parameter.name] = request
        return args, kwargs


def _type_of_all(kind: inspect._ParameterKind, hint: Any) -> Any:
    """The type of what a parameter gets: of `*args` and `**kwargs`, all that they take."""
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple[hint, ...]
    return dict[str, hint] if kind is inspect.Parameter.VAR_KEYWORD else hint


def _returned(hints: dict[str, Any]) -> Any:
    """
    The type that the function returns; None if it returns nothing, or nothing that can be checked.
    """
    returned = hints.get("return")
    if returned in (None, type(None), *_UNTYPED) or converter_to(returned) is None:
        return None
    return returned
