"""All tests of the suite, for a star import into a module of one's own."""

from __future__ import annotations

from importlib import import_module

from laneway.testing.conformance import PARTS

__all__: list[str] = []

for _part in PARTS:
    _tests = {
        name: value
        for name, value in vars(import_module(f"laneway.testing.conformance.{_part}")).items()
        if name.startswith("test_")
    }
    if _twice := _tests.keys() & globals().keys():
        raise AssertionError(f"tests of the same name would hide each other: {_twice}")
    globals().update(_tests)
    __all__ += list(_tests)
