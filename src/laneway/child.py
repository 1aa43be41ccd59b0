"""The entry point of child processes for functions that are called by name."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from laneway.app import Laneway
from laneway.tasks.queue import NamedTask, named_task

if TYPE_CHECKING:
    from laneway.tasks.request import Request
    from laneway.working.outcome import Portable


@functools.lru_cache(maxsize=1024)
def _task(name: str) -> NamedTask:
    return named_task(Laneway("sqlite://"), name)  # its store is not opened


def perform_named(request: Request) -> Portable | None:
    """Perform a call of a function by name. Returns the encoded result if it is stored."""
    return _task(request.task).perform_apart(request)
