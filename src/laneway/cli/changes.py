"""The commands that an operator changes a store with: each is kept in the audit log."""

from __future__ import annotations

import functools
import os
import pwd
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from laneway.admin import audit_log
from laneway.cli.session import Session
from laneway.printable import without_passwords

CHANGES = frozenset(
    {
        "back-off",
        "dead drop",
        "dead redrive",
        "doctor",
        "drain",
        "election step-down",
        "endpoint disable",
        "endpoint enable",
        "endpoint load",
        "endpoint remove",
        "endpoint replay",
        "endpoint rotate",
        "endpoint set",
        "gate reset",
        "gate set",
        "job cancel",
        "job requeue",
        "message cancel",
        "message dead",
        "message drop",
        "message release",
        "message retry",
        "pause",
        "policy copy",
        "policy reset",
        "policy set",
        "purge",
        "resume",
        "schedules add",
        "schedules pause",
        "schedules remove",
        "schedules resume",
        "schedules run",
        "shard move",
        "subscription add",
        "subscription remove",
        "tier remove",
        "tier reset",
        "tier set",
        "token create",
        "token revoke",
        "topic-group reset",
        "topic-group set",
    }
)

ONLY_WITH = {"doctor": "repair"}
"""Commands that change something only with this option."""

HIDDEN = frozenset({"headers"})
"""Options whose values are not kept, because they may be secrets."""


def audited(run: Callable[..., Any]) -> Callable[..., Any]:
    """Keep a command in the audit log of its store once it has succeeded."""

    @functools.wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = run(*args, **kwargs)
        ctx = click.get_current_context()
        name = ctx.command_path.partition(" ")[2]
        is_change = ctx.params.get(ONLY_WITH.get(name, ""), True)
        if is_change and not ctx.params.get("dry_run") and not ctx.params.get("zookeeper"):
            _keep(ctx.obj, name, {key: _shown(key, value) for key, value in _given(ctx)})
        return answer

    return wrapped


def _given(ctx: click.Context) -> Iterator[tuple[str, Any]]:
    """The arguments and options of the command line."""
    for name, value in ctx.params.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and value is not None:
            yield name, value


def _shown(name: str, value: Any) -> Any:
    if name in HIDDEN:
        return "hidden"
    return without_passwords(value) if isinstance(value, str) else value


def _keep(session: Session, name: str, given: dict[str, Any]) -> None:
    if session.opened is None:
        return
    content = msgspec.json.encode(given, enc_hook=lambda file: str(file.name))
    if len(content) > audit_log.MAX_REQUEST:
        content = b'"options of %d bytes"' % len(content)
    pattern, undo = session.before or (None, None)
    change = audit_log.Change(
        at_us=time.time_ns() // 1000,
        who=user(),
        address="command line",
        method="laneway",
        path=name,
        request=msgspec.Raw(content),
        pattern=pattern,
        undo=undo,
    )
    audit_log.append(session.opened.engine, change)


def user() -> str:
    """The user's name in the operating system."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # as in many containers
        return f"uid {os.getuid()}"
