"""The names of `celery.utils`."""

from laneway.compat.celery.current import uuid

__all__ = ["uuid"]
