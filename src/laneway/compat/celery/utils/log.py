"""The names of `celery.utils.log`."""

from laneway.tasks.context import get_task_logger

__all__ = ["get_task_logger"]
