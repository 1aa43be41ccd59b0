"""The names of `celery.schedules`."""

from laneway.compat.celery.when import crontab, schedule, solar

__all__ = ["crontab", "schedule", "solar"]
