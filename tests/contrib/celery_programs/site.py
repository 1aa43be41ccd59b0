"""A program of Celery in a Django project, with django-celery-beat and django-celery-results."""

from __future__ import annotations

import os

from celery import Celery

import laneway.contrib.kombu

__all__ = ["laneway"]

app = Celery("site")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task
def tick() -> None:
    with open(os.environ["NOTES"], "a") as file:
        file.write("site\n")


@app.task
def add(left: int, right: int) -> int:
    return left + right
