"""The names of `celery.result`."""

from laneway.compat.celery.results import AsyncResult, EagerResult, GroupResult

__all__ = ["AsyncResult", "EagerResult", "GroupResult"]
