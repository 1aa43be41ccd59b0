"""Formatting an error has a bounded cost for any number of causes, members and frames."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from unittest import mock

import pytest

from laneway.working import tracebacks
from laneway.working.error_details import describe, text_of


def raised(error: BaseException, times: int = 1) -> BaseException:
    for _ in range(times):
        try:
            raise error
        except BaseException as same:  # each time it gets one more frame
            error = same
    return error


def members_of_members() -> BaseException:
    """An error group nested 8 levels deep: 14^8 paths to one error."""
    error: Exception = ValueError("shared")
    for _ in range(8):
        error = ExceptionGroup("many", [error] * 14)
    return raised(error)


def chain(link: str) -> BaseException:
    error = ValueError("first")
    for n in range(20_000):
        following = ValueError(f"link {n}")
        setattr(following, link, error)
        error = following
    return raised(error)


ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "members of members": (members_of_members, "many (14 sub-exceptions)"),
    "members": (
        lambda: raised(ExceptionGroup("many", [ValueError()] * 50_000)),
        "many (50000 sub-exceptions)",
    ),
    "causes": (lambda: chain("__cause__"), "link 19999"),
    "contexts": (lambda: chain("__context__"), "link 19999"),
    "frames": (lambda: raised(ValueError("deep"), 20_000), "deep"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_formatting_a_large_error_has_a_bounded_cost(name: str) -> None:
    make, text = ERRORS[name]
    error = make()
    with mock.patch("traceback.FrameSummary", wraps=traceback.FrameSummary) as summary:
        assert text in text_of(error)
        details = describe(error)
    assert text in details.traceback
    assert "test_tracebacks.py" in details.traceback
    assert summary.call_count <= 2 * tracebacks.MAX_FRAMES


def test_traceback_has_the_cause_of_an_error() -> None:
    inner, outer = raised(ValueError("inner")), ValueError("outer")
    outer.__cause__ = inner
    inner.__context__ = outer  # a circle
    traceback = describe(raised(outer)).traceback
    assert "ValueError: inner" in traceback
    assert "direct cause" in traceback
    assert "ValueError: outer" in traceback
    group = describe(raised(ExceptionGroup("some", [ValueError("one"), KeyError("two")]))).traceback
    assert "ValueError: one" in group
    assert "KeyError: 'two'" in group
