"""All tests of the suite, for a star import into a test module."""

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
    if _duplicates := _tests.keys() & globals().keys():
        raise AssertionError(f"tests with the same name: {_duplicates}")
    globals().update(_tests)
    __all__ += list(_tests)
