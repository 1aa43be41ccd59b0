"""A program of Celery with celery-once, celery-singleton and redbeat."""

from __future__ import annotations

import os
import time

from celery import Celery
from celery_once import QueueOnce  # type: ignore[import-not-found]
from celery_singleton import Singleton  # type: ignore[import-not-found]

import laneway.contrib.kombu

__all__ = ["laneway"]

app = Celery("shop", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.ONCE = {
    "backend": "celery_once.backends.Redis",
    "settings": {"url": os.environ["REDIS"], "default_timeout": 60},
}
app.conf.singleton_backend_url = app.conf.redbeat_redis_url = os.environ["REDIS"]
app.conf.beat_schedule = {"often": {"task": f"{__name__}.tick", "schedule": 0.5}}


@app.task
def tick() -> None:
    with open(os.environ["NOTES"], "a") as file:
        file.write("tick\n")


@app.task(base=QueueOnce, once={"keys": ["n"]})
def once(n: int) -> int:
    time.sleep(1)
    return n


@app.task(base=Singleton)
def single(n: int) -> int:
    time.sleep(1)
    return n


@app.task
def add(left: int, right: int) -> int:
    return left + right
