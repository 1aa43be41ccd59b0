"""The app of INSTALLED_APPS."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured
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
        if not check_setting():
            autodiscover_modules(*options.modules())
            for each in getattr(settings, "TASKS", {}).values():
                if str(each.get("BACKEND")).startswith("laneway."):
                    import_string(each["BACKEND"])  # a worker has its handlers
