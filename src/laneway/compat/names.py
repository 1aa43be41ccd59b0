"""
Names of Celery and RQ that Laneway does not have: they can be imported, and their use raises
UsageError, which names what to write instead.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn

from laneway.errors import LanewayError, UsageError

_ERRORS = ("Error", "Exception", "Warning")
"""The ends of names of errors."""


class AbsentError(UsageError, AttributeError):
    """Something is used that does not exist here, or not yet; `hasattr` is False."""


class _Absent:
    """Such a name: it cannot be called, be a base class, or have attributes."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise AbsentError(self.why)

    __mro_entries__ = __call__

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(name) if name.startswith("__") else AbsentError(self.why)


class Finder:
    """
    Finds modules that only Celery or RQ has; their names are those at the top of the package, and
    those that Laneway does not have.

    `hints`: what to write instead, by module of the original, and by name, with `()` behind
    that of a function; None for `otherwise`.
    """

    def __init__(self, package: str, hints: Mapping[str, str | None], otherwise: str) -> None:
        self.package, self.hints, self.otherwise = package, hints, otherwise
        sys.meta_path.append(self)  # after the finders of real modules

    def getter(self, module: str) -> Callable[[str], Any]:
        """The function `__getattr__` of a module."""

        def get(name: str) -> Any:
            if not name[:1].isalpha():
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            inner = f"{module}.{name}".removeprefix(f"{self.package}.")
            if inner in self.hints and name.islower():
                return importlib.import_module(f"{self.package}.{inner}")
            top = vars(sys.modules[self.package])
            return vars(sys.modules[module]).setdefault(name, top.get(name) or self._absent(inner))

        return get

    def _absent(self, inner: str) -> Any:
        name = inner.rpartition(".")[2]
        if name.endswith(_ERRORS) or inner.startswith("exceptions."):
            return type(name, (LanewayError,), {"__doc__": "Laneway does not raise it."})
        instead = next(
            filter(None, (*map(self.hints.get, (name, f"{name}()")), *self._parents(inner))),
            self.otherwise,
        )
        theirs = f"{self.package.rpartition('.')[2]}.{inner}"
        return _Absent(f"{theirs}: Laneway does not have it; {instead}")

    def _parents(self, inner: str) -> list[str | None]:
        """The hints of a module, and of the modules around it that the original has."""
        parts = inner.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        return [self.hints[name] for name in names if name in self.hints]

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """The module, if the original has it."""
        inner = name.removeprefix(f"{self.package}.")
        if inner == name or not self._parents(inner):
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """As the default."""

    def exec_module(self, module: Any) -> None:
        """Give the module its names."""
        module.__getattr__ = self.getter(module.__name__)
