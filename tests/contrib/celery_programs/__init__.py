"""Programs around Celery with this transport."""
