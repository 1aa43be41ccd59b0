"""The setting `LANEWAY`: its keys, what they mean for the application, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from laneway import Laneway, config, printable
from laneway.producing import outbox

ARGUMENTS = frozenset({"url", *config.options_of(Laneway.__init__)})
"""Keys that are arguments of `Laneway`, in lower case."""

OWN = frozenset({"OUTBOX", "POLICIES", "MODULES"})
"""Keys that this package reads."""

KEYS = OWN | {name.upper() for name in ARGUMENTS}


VENDORS = ("sqlite", "postgresql")
"""Databases that can have an outbox."""


def given() -> Mapping[str, Any]:
    """The setting. Raises ImproperlyConfigured if it is no dict, or has an unknown key."""
    options = getattr(settings, "LANEWAY", {})
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(
            f'LANEWAY: expected a dict like {{"URL": "sqlite:///queue.db"}}, got {options!r:.80}'
        )
    for key in options:
        if key not in KEYS:
            meant = printable.meant(str(key).upper(), sorted(KEYS))
            raise ImproperlyConfigured(
                f'LANEWAY: unknown key "{key}"{meant or "; available: " + ", ".join(sorted(KEYS))}'
            )
    return options


def arguments() -> dict[str, Any]:
    """The arguments of `Laneway` that the setting gives. Raises ImproperlyConfigured."""
    options = {key.lower(): value for key, value in given().items() if key not in OWN}
    options.setdefault("program", (settings.SETTINGS_MODULE or "django").partition(".")[0])
    url = given().get("OUTBOX")
    return options | ({"outbox": url} if "://" in str(url) else {})


def outbox_alias() -> str | None:
    """
    The alias of the database with the outbox; None without one, or with its URL. Raises
    ImproperlyConfigured if Django has no such PostgreSQL or SQLite database.
    """
    alias = given().get("OUTBOX")
    if alias is None or "://" in str(alias):
        return None
    try:
        vendor = connections[str(alias)].vendor
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(f'LANEWAY["OUTBOX"]: {error}') from error
    if vendor not in VENDORS:
        raise ImproperlyConfigured(
            f'LANEWAY["OUTBOX"]: the database "{alias}" is {vendor}; an outbox needs PostgreSQL or'
            " SQLite"
        )
    return str(alias)


def modules() -> list[str]:
    """The names of the modules of each app that have tasks and handlers."""
    return list(given().get("MODULES", ["tasks"]))


def outbox_connection(using: str | None = None) -> Any:
    """The connection to the database with the outbox, or to another one."""
    alias = using or given().get("OUTBOX") or "default"
    return connections["default" if "://" in alias else alias]


def create_outbox(connection: Any) -> None:
    """Create its tables that do not exist, in a database that can have them."""
    if connection.vendor in VENDORS:
        outbox.create(connection)


def connect(alias: str) -> Any:
    """A new driver connection to a database as its setting is now: tests change its name."""
    new = connections.create_connection(alias)
    own = new.settings_dict
    options = {name: value for name, value in own["OPTIONS"].items() if name != "pool"}
    new.settings_dict = own | {"AUTOCOMMIT": True, "OPTIONS": options}
    new.connect()
    return new.connection
