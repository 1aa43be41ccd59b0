"""Checks for `manage.py check`, which every command runs."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured

from laneway.contrib.django.application import application


def check_setting(**_: Any) -> list[CheckMessage]:
    """Check the setting LANEWAY."""
    try:
        application()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="See docs/django.md.", id="laneway.E001")]
    return []
