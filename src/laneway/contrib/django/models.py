"""
What Django has to know. Names for its permissions and its admin, which have no tables:
`laneway.view_deadletter`, `change_deadletter` (redrive) and `delete_deadletter`;
`laneway.view_dashboard` and `change_dashboard`. And the tables of the outbox, so that `flush`
empties them, as each `TransactionTestCase` does at its end.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):
    """For `dumpdata`: there is no table, or its messages must not be published a second time."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class _Model(models.Model):
    """Nobody reads or writes one."""

    objects = _NoRows()

    class Meta:
        abstract = True
        base_manager_name = "objects"
        default_permissions: tuple[str, ...] = ()


class DeadLetter(_Model):
    """A message that failed."""

    class Meta(_Model.Meta):
        managed = False
        verbose_name = "dead letter"
        default_permissions: tuple[str, ...] = ("view", "change", "delete")


class Dashboard(_Model):
    """The dashboard."""

    class Meta(_Model.Meta):
        managed = False
        verbose_name = verbose_name_plural = "dashboard"
        default_permissions: tuple[str, ...] = ("view", "change")


class Outbox(_Model):
    """Messages that wait until they are forwarded."""

    class Meta(_Model.Meta):
        db_table = "laneway_outbox"


class Forwarder(_Model):
    """The process that forwards."""

    namespace = models.TextField(primary_key=True)

    class Meta(_Model.Meta):
        db_table = "laneway_outbox_forwarder"


class Once(_Model):
    """Messages that `once` has recorded."""

    message_id = models.TextField(primary_key=True)

    class Meta(_Model.Meta):
        db_table = "laneway_once"
