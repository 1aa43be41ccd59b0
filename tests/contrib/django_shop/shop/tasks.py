"""Tasks of the shop: they use its models."""

import os
import threading

from django.db import connections

from laneway import Message
from laneway.contrib.django import app
from tests.contrib.django_shop.shop.models import Order


@app.task(topic="mail.{customer}")
def mail(customer: str, order: int) -> str:
    Order.objects.filter(id=order).update(mailed_by=threading.current_thread().name)
    return customer


@app.task
async def amail(order: int) -> str:
    found = await Order.objects.aget(id=order)
    return found.customer


@app.task(isolation="process")
def mail_apart(order: int) -> tuple[str, int]:
    return Order.objects.get(id=order).customer, os.getpid()


@app.task
def opening() -> str:
    """Leave an open connection to the next task of the same thread."""
    assert Order.objects.count() == 0
    return opened.delay().id


@app.task
def opened() -> list[str]:
    """Which connections are open before anything was asked."""
    return [each.alias for each in connections.all() if each.connection is not None]


@app.handler("stock.*")
def stock(message: Message) -> None:
    Order.objects.create(customer=message.topic)
