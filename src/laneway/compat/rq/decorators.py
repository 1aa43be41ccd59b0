"""`job`: a decorator that adds `delay` to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laneway.compat.rq import Job, Queue

_OF_DELAY = ("depends_on", "job_id", "at_front")
"""Options among the arguments of a decorated function's `delay`."""


def job(
    queue: Queue | str, connection: Any = None, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """
    Add a `delay` method to a function: `@job("low", connection=redis, timeout=5)`.

    As in RQ, `depends_on`, `job_id` and `at_front` among the arguments of `delay` are of the job.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def delay(*args: Any, **kwargs: Any) -> Job:
            where = queue if isinstance(queue, Queue) else Queue(queue, connection=connection)
            own = {name: kwargs.pop(name) for name in _OF_DELAY if name in kwargs}
            return where.enqueue_call(function, args, kwargs, **{**options, **own})

        function.delay = delay  # type: ignore[attr-defined]
        return function

    return decorate
