"""
Names for Django's permissions and its admin; there are no tables.

`laneway.view_deadletter`, `change_deadletter` (redrive) and `delete_deadletter`;
`laneway.view_dashboard` and `change_dashboard`.
"""

from __future__ import annotations

from django.db import models


class DeadLetter(models.Model):
    """A message that failed."""

    class Meta:
        """Its rows are in Laneway's store."""

        managed = False
        verbose_name = "dead letter"
        default_permissions = ("view", "change", "delete")


class Dashboard(models.Model):
    """The dashboard."""

    class Meta:
        """It has no rows."""

        managed = False
        verbose_name = verbose_name_plural = "dashboard"
        default_permissions = ("view", "change")
