"""The names of `celery.utils`."""
