"""Views, with a task beside them."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse

from laneway.contrib.django import app
from tests.contrib.django_shop.shop.models import Order
from tests.contrib.django_shop.shop.tasks import mail


@app.task
def seen() -> int:
    return 5


@transaction.atomic
def order(request: HttpRequest) -> HttpResponse:
    created = Order.objects.create(customer=request.GET["customer"])
    mail.delay_in_transaction(created.customer, created.id)
    if "fails" in request.GET:
        raise ValueError
    return HttpResponse(str(created.id))
