"""The app of INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules, import_string

from laneway.contrib.django import options
from laneway.contrib.django.application import application


def check_setting(**_: Any) -> list[CheckMessage]:
    """Check the setting LANEWAY."""
    try:
        application()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="See docs/django.md.", id="laneway.E001")]
    return []


def create_tables(using: str, **_: Any) -> None:
    """Create the tables of the outbox where migrations are switched off, as in tests."""
    has_migrations = MigrationLoader.migrations_module("laneway")[0] is not None
    if not has_migrations and router.allow_migrate(using, "laneway"):
        options.create_outbox(connections[using])


class LanewayConfig(AppConfig):
    """Imports the modules with tasks, and registers the checks."""

    name = "laneway.contrib.django"
    label = "laneway"
    verbose_name = "Laneway"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """
        Import the modules `tasks` of all apps: all processes declare the same policies, and a
        worker has all tasks. Not with a wrong setting, which the checks report.
        """
        register(check_setting, "laneway")
        pre_migrate.connect(create_tables, sender=self)
        if not check_setting():
            autodiscover_modules(*options.modules())
            for each in getattr(settings, "TASKS", {}).values():
                if str(each.get("BACKEND")).startswith("laneway."):
                    import_string(each["BACKEND"])  # a worker has its handlers
