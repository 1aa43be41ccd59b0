"""The names of `celery.app`."""
