"""
Formats tracebacks of users' errors at a bounded cost.

An error may have 100,000 frames, causes, or members of groups.
"""

from __future__ import annotations

import traceback
from itertools import islice

from laneway import storable

MAX_ERRORS = 200
"""
How many causes and members of groups are formatted; with more of them, only the error itself is:
`traceback` has no bound of its own.
"""

MAX_FRAMES = 500
"""How many innermost frames of each error are formatted; the others are left out."""


def is_small(error: BaseException) -> bool:
    """
    Whether `traceback` formats it at a bounded cost. `traceback` formats an error as often as
    groups contain it, but each cause only once.
    """
    left, seen, count = [error], {id(error)}, 0
    while left:
        count += 1
        if count > MAX_ERRORS:
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
            left += islice(each.exceptions, MAX_ERRORS)  # type: ignore[attr-defined]
    return True


def whole(error: BaseException) -> str:
    """
    The traceback with all causes, or without them if they are too many.

    Raises what the error's own class raises.
    """
    if is_small(error):
        return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))
    return (
        f"{innermost(error, MAX_FRAMES)}{head(error)}\n(more than {MAX_ERRORS} causes or members:"
        " their tracebacks are left out)"
    )


def head(error: BaseException) -> str:
    """The error's type, message and notes. Raises what the error's own class raises."""
    if is_small(error):
        return "".join(traceback.format_exception_only(type(error), error)).strip()
    return f"{storable.type_name(type(error))}: {storable.of(error)}"


def innermost(error: BaseException, count: int) -> str:
    """The traceback's lines for the `count` innermost frames."""
    return "".join(traceback.format_tb(error.__traceback__, limit=-count))


def where(error: BaseException) -> traceback.FrameSummary | None:
    """The frame in which the error was raised, or None if unknown."""
    return next(iter(traceback.extract_tb(error.__traceback__, limit=-1)), None)
