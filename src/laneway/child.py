"""The entry point of child processes for functions that are called by name."""

from __future__ import annotations

import functools

from laneway.app import Laneway
from laneway.tasks.queue import NamedTask, named_task
from laneway.tasks.request import Request
from laneway.working.outcome import Portable


@functools.cache
def _application(url: str | None, namespace: str) -> Laneway:
    return Laneway(url, namespace=namespace)  # opened if a callback reads or changes its job


@functools.lru_cache(maxsize=1024)
def _task(name: str, url: str | None, namespace: str) -> NamedTask:
    return named_task(_application(url, namespace).runtime, name)


def perform_named(request: Request) -> Portable | None:
    """Perform a call of a function by name. Returns the encoded result if it is stored."""
    url, namespace = request.store if request.store is not None else ("sqlite://", "default")
    return _task(request.task, url, namespace).perform_apart(request)
