"""Tasks of Django's own API."""

from importlib import import_module
from typing import Any

from laneway.contrib.django.backend import LIBRARY
from tests.contrib.django_shop.shop.models import Order

library: Any = import_module(LIBRARY)
task = library.task


@task
def count(*customers: str) -> int:
    return Order.objects.filter(customer__in=customers).count()


@task(takes_context=True)
async def acount(context: Any, customer: str) -> list[Any]:
    found = await Order.objects.filter(customer=customer).acount()
    return [context.task_result.id, context.attempt, found]


@task(takes_context=True)
def flaky(context: Any, failures: int) -> int:
    if context.attempt <= failures:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def watched(context: Any) -> str:
    """The status that others see while it runs."""
    return str(watched.get_result(context.task_result.id).status)
