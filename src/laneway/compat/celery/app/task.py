"""The names of `celery.app.task`."""

from laneway.compat.celery.task import Task

__all__ = ["Task"]
