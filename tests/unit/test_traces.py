"""
What an error says of itself is formatted at a bounded cost, however many causes, members and frames
it has.
"""

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
    """14 to the power of 8 of them, of which one object is all."""
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
def test_large_errors_are_formatted_at_a_bounded_cost(name: str) -> None:
    make, shown = ERRORS[name]
    error = make()
    with mock.patch("traceback.FrameSummary", wraps=traceback.FrameSummary) as summary:
        assert shown in text_of(error)
        details = describe(error)
    assert shown in details.traceback
    assert "test_traces.py" in details.traceback
    assert summary.call_count <= 2 * tracebacks.MAX_FRAMES


def test_causes_are_shown() -> None:
    inner, outer = raised(ValueError("inner")), ValueError("outer")
    outer.__cause__ = inner
    inner.__context__ = outer  # a circle
    details = describe(raised(outer)).traceback
    assert "ValueError: inner" in details
    assert "direct cause" in details
    assert "ValueError: outer" in details
    group = describe(raised(ExceptionGroup("some", [ValueError("one"), KeyError("two")]))).traceback
    assert "ValueError: one" in group
    assert "KeyError: 'two'" in group
