"""The setting `LANEWAY`: its keys, what they mean for the application, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from laneway import Laneway, config, printable

ARGUMENTS = frozenset({"url", *config.options_of(Laneway.__init__)})
"""Keys that are arguments of `Laneway`, in lower case."""

OWN = frozenset({"OUTBOX", "POLICIES", "MODULES"})
"""Keys that this package reads."""

KEYS = OWN | {name.upper() for name in ARGUMENTS}

SSL_OPTIONS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")
"""Options of a PostgreSQL database in Django that its URL needs, too."""


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
    if (outbox := given().get("OUTBOX")) is not None:
        options["outbox"] = outbox if "://" in str(outbox) else database_url(outbox)
    return options


def modules() -> list[str]:
    """The names of the modules of each app that have tasks and handlers."""
    return list(given().get("MODULES", ["tasks"]))


def outbox_connection(using: str | None = None) -> Any:
    """The connection to the database with the outbox, or to another one."""
    outbox = using or given().get("OUTBOX") or "default"
    return connections["default" if "://" in outbox else outbox]


def database_url(alias: str) -> str:
    """
    The URL of one of Django's databases, as Laneway's outbox needs it. Raises ImproperlyConfigured
    if it does not exist or is neither PostgreSQL nor an SQLite file.
    """
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(f'LANEWAY["OUTBOX"]: {error}') from error
    if connection.vendor not in ("sqlite", "postgresql"):
        raise ImproperlyConfigured(
            f'LANEWAY["OUTBOX"]: the database "{alias}" is {connection.vendor}; an outbox needs'
            " PostgreSQL or SQLite"
        )
    own = connection.settings_dict
    name = str(own["NAME"] or "")
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    user, password = (quote(str(own.get(key) or ""), safe="") for key in ("USER", "PASSWORD"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    query = {"host": own.get("HOST"), "port": own.get("PORT")}
    query |= {key: own.get("OPTIONS", {}).get(key) for key in SSL_OPTIONS}
    text = urlencode({key: value for key, value in query.items() if value}, quote_via=quote)
    return f"postgresql://{login}/{quote(name, safe='')}{'?' if text else ''}{text}"
