"""The parts of flows with Celery's API: `apply_async`, and options with Celery's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from laneway.tasks import canvas
from laneway.tasks.options import listed

OUR_NAMES = {
    "countdown": "delay",
    "eta": "at",
    "expires": "ttl",
    "task_id": "id",
    "queue": "topic",
}
"""Laneway's names of Celery's options of a call."""


class Part(canvas.Part[Any]):
    """A part of a flow."""

    def chained(self, parts: list[canvas.Part[Any]]) -> Chain:
        """A chain with Celery's API."""
        return Chain(parts)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `delay`."""
        return self.delay(*args, **kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Any:
        """
        As `delay`, with options for its first calls; `link` and `link_error` apply to the whole
        flow.
        """
        part = self.beginning(tuple(args), kwargs or {})
        for name in ("link", "link_error"):
            for each in listed(options.pop(name, None)):
                getattr(part, name)(each)
        if options:
            for call in part.first():
                call.set(**options)
        return part.enqueue()


class Signature(Part, canvas.Signature[Any]):
    """One call of a task that is not published yet."""

    __call__ = canvas.Signature.__call__

    def clone(
        self, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None, **options: Any
    ) -> Self:
        """A copy with these arguments before its own, unless it is immutable, and these options."""
        copy = super().clone()
        if not copy.immutable:
            copy.args, copy.kwargs = (*args, *copy.args), {**copy.kwargs, **(kwargs or {})}
        return copy.set(**options) if options else copy


class Chain(Part, canvas.Chain[Any]):
    """Parts that run one after the other, each with the result of the part before it."""


class Group(Part, canvas.Group[Any]):
    """Parts that run at the same time."""


def chain(*parts: Any) -> Any:
    """`a | b | c`: each part gets the previous part's result as its first argument."""
    return Chain(canvas.copies(parts))


def group(*parts: Any) -> Any:
    """Calls that run concurrently; after a part of a chain, each gets that part's result."""
    return Group(canvas.copies(parts))


def chord(header: Any, body: Any = None) -> Any:
    """A group, then a call with the list of all results; without `body`, what takes the body."""
    return canvas.chord(header if isinstance(header, Group) else group(*header), body)
