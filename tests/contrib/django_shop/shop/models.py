"""An order, and the mails about it."""

from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=50)
    mailed_by = models.CharField(max_length=50, default="")

    def __str__(self) -> str:
        return f"order {self.id} of {self.customer}"
