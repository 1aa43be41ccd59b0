"""
Laneway in a Django project: put `"laneway.contrib.django"` into `INSTALLED_APPS`.

`app` is the project's one application. It is made of the setting `LANEWAY` when it is first used;
the modules `tasks` of all installed apps are imported when Django has loaded the apps.
docs/django.md explains the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from laneway.contrib.django.application import DjangoLaneway

    app: DjangoLaneway

__all__ = ["app", "outbox"]


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from laneway.contrib.django.application import application  # noqa: PLC0415  # needs settings

    return application()


def outbox(using: str | None = None) -> Any:
    """
    The connection to the database with the outbox, for `publish(…, connection=outbox())` and
    `task.delay(…, connection=outbox())`: the message exists once its transaction commits.

    `using`: the alias of the database; default: that of the setting `LANEWAY["OUTBOX"]`.
    """
    from laneway.contrib.django.options import outbox_connection  # noqa: PLC0415  # needs settings

    return outbox_connection(using)
