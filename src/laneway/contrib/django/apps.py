"""The app of INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import register
from django.utils.module_loading import autodiscover_modules, import_string

from laneway.contrib.django import checks, options


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
        register(checks.check_setting, "laneway")
        if not checks.check_setting():
            autodiscover_modules(*options.modules())
            for each in getattr(settings, "TASKS", {}).values():
                if str(each.get("BACKEND")).startswith("laneway."):
                    import_string(each["BACKEND"])  # a worker has its handlers
