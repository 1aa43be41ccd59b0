"""
Tracebacks of errors of unknown origin, at a bounded cost: one may have 100,000 frames, causes, or
members of groups.
"""

from __future__ import annotations

import traceback
from itertools import islice

from laneway import texts

MOST_ERRORS = 200
"""
With more causes and members of groups together, only the error itself is formatted: `traceback` has
no bound of its own.
"""

MOST_FRAMES = 500
"""Innermost frames that are formatted of each error."""


def is_small(error: BaseException) -> bool:
    """
    Whether `traceback` formats it at once. It formats an error as often as groups have it, but
    causes only once.
    """
    left, seen, count = [error], {id(error)}, 0
    while left:
        count += 1
        if count > MOST_ERRORS:
            return False
        each = left.pop()
        causes = [
            cause
            for cause in (each.__cause__, each.__context__)
            if cause is not None and id(cause) not in seen
        ]
        seen.update(map(id, causes))
        left += causes
        if issubclass(type(each), BaseExceptionGroup):
            left += islice(each.exceptions, MOST_ERRORS)  # type: ignore[attr-defined]
    return True


def whole(error: BaseException) -> str:
    """
    The traceback with all causes, or that of the error alone where these are too many. May raise
    what the error's class raises.
    """
    if is_small(error):
        return "".join(traceback.format_exception(error, limit=-MOST_FRAMES))
    return (
        f"{innermost(error, MOST_FRAMES)}{head(error)}\n(more than {MOST_ERRORS} causes or members:"
        " their tracebacks are left out)"
    )


def head(error: BaseException) -> str:
    """Type and message, and notes. May raise what the error's class raises."""
    if is_small(error):
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    return f"{texts.type_name(type(error))}: {texts.of(error)}"


def innermost(error: BaseException, count: int) -> str:
    """The lines of so many of its innermost frames."""
    return "".join(traceback.format_tb(error.__traceback__, limit=-count))


def where(error: BaseException) -> traceback.FrameSummary | None:
    """The frame in which it was raised."""
    return next(iter(traceback.extract_tb(error.__traceback__, limit=-1)), None)
