"""
The arguments of a call: checked by the function's signature, and converted to its annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from laneway.errors import BadMessage, Reject, UsageError
from laneway.tasks.converting import convert, is_known
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
            each.name: (each.kind, hint)
            for each in self.signature.parameters.values()
            if (hint := hints.get(each.name, Any)) not in _UNTYPED
        }

    def annotated(self) -> tuple[set[int], set[str]]:
        """Positions and names of the arguments with a known type."""
        places = {
            place for place, name in enumerate(self.signature.parameters) if name in self._types
        }
        return places, set(self._types)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]] | None:
        """
        The arguments with their names if all are given by position, as most are, or None if only
        `signature.bind` can tell, which costs ten times as much.
        """
        names = self._names
        if names is None or kwargs != {}:  # the body of another program may have any value
            return None
        fits = len(names) - len(self._defaults) <= len(args) <= len(names)
        return list(zip(names, args, strict=False)) if fits else None

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        All arguments of a call by name, defaults included. Raises WrongArguments.
        """
        named = self._named(args, kwargs)
        if named is not None:
            return self._defaults | dict(named)
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
        types = self._types if converts else {}
        try:
            args, kwargs = (*first, *body["args"]), body["kwargs"]
            named = self._named(args, kwargs)
            bound = self.signature.bind(*args, **kwargs) if named is None else None
        except (KeyError, TypeError) as error:
            raise Reject(f'the body is not a call of task "{self._task}": {error}') from error
        if bound is None:
            return tuple(
                self._converted(name, *types[name], value) if name in types else value
                for name, value in named or ()
            ), {}
        for name, (kind, hint) in types.items():
            if name in bound.arguments:
                bound.arguments[name] = self._converted(name, kind, hint, bound.arguments[name])
        return bound.args, bound.kwargs

    def complete(self, request: Request) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a run, including those that the worker supplies."""
        args, kwargs = list(request.args), dict(request.kwargs)
        for place, parameter in self.injected:
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY and place <= len(args):
                args.insert(place, request)
            else:
                kwargs[parameter.name] = request
        return args, kwargs

    def _converted(self, name: str, kind: inspect._ParameterKind, hint: Any, value: Any) -> Any:
        try:
            if kind is inspect.Parameter.VAR_POSITIONAL:
                return tuple(convert(each, hint) for each in value)
            if kind is inspect.Parameter.VAR_KEYWORD:
                return {key: convert(each, hint) for key, each in value.items()}
            return convert(value, hint)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            raise Reject(
                f'task "{self._task}": the argument "{name}" is not of the type that the function'
                f" expects: {error}"
            ) from error


def _returned(hints: dict[str, Any]) -> Any:
    """
    The type that the function returns; None if it returns nothing, or nothing that can be checked.
    """
    returned = hints.get("return")
    if returned in (None, type(None), *_UNTYPED) or not is_known(returned):
        return None
    return returned
