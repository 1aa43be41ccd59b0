"""The first lines of a worker's log: version, store, handlers, options, and how to stop it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from laneway.errors import LanewayError
from laneway.working.options import Options

log = logging.getLogger("laneway.worker")

MAX_NAMES = 20
"""How many handlers, tasks or schedules a line names; the others are counted."""


def log_banner(app: Any, options: Options, how_to_stop: str) -> None:
    """
    Log the banner at level INFO; the line about the store is a WARNING if another one was named.

    `app`: the runtime of the application, opened.
    """
    store = app.holder.choice
    level = logging.WARNING if store.passed_over else logging.INFO
    log.log(
        level,
        "laneway %s: store %s, durability %s, namespace %s",
        installed_version(),
        store,
        app.engine.durability,
        app.namespace,
    )
    if not log.isEnabledFor(logging.INFO):
        return
    handlers = app.handlers
    _log_names(
        "handlers",
        [
            f"{handler.pattern} ({handler.name})"
            for handler in handlers.by_pattern()
            if not handler.pattern.startswith("laneway.")
        ],
    )
    _log_names("tasks", handlers.task_names())
    _log_names("queues", sorted(handlers.queues))
    _log_names("schedules", schedules(app))
    _log_names("elections", [] if options.burst else [e.name for e in app.elections_in_workers])
    processes = f"{options.processes} processes, " if options.processes > 1 else ""
    named = handlers.topics_for(options)
    topics = f", topics {', '.join(named)}" if named else ""
    log.info(
        "%spool %s%s, concurrency %d%s; %s",
        processes,
        options.pool,
        topics,
        options.concurrency,
        ", ends when nothing is left to run now" if options.burst else "",
        how_to_stop,
    )


def _log_names(what: str, names: Sequence[str]) -> None:
    if names:
        more = len(names) - MAX_NAMES
        log.info(
            "%s: %s%s",
            what,
            ", ".join(names[:MAX_NAMES]),
            f" and {more:,} more" if more > 0 else "",
        )


def schedules(app: Any) -> list[str]:
    """The first schedules of the namespace, each with its next time."""
    try:
        planned = app.schedules.list(limit=MAX_NAMES + 1)
    except LanewayError as error:
        return [f"cannot be read ({error})"]
    return [
        f"{each.name}"
        f" ({'paused' if each.is_paused else 'next at ' + each.next_at.isoformat(' ', 'seconds')})"
        for each in planned
    ]


def installed_version() -> str:
    """The version of Laneway."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # takes 20 ms

    try:
        return version("laneway")
    except PackageNotFoundError:  # not installed
        return "(unknown version)"
