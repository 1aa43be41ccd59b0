"""
The context of a handler's log lines, for your own logging: the message, its topic, the attempt, the
task.

`laneway worker` adds it to every line automatically, unless the program has set up logging. Then
use one of these.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from laneway.working.handler import fields
from laneway.working.log_format import FIELDS

__all__ = ["AddFields", "add_fields", "fields"]


def add_fields(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """
    A processor for structlog: adds `message`, `topic`, `attempt` and `task`, even to Laneway's own
    lines in a `ProcessorFormatter`.
    """
    recorded = getattr(event.get("_record"), FIELDS, None)
    for name, value in (recorded if isinstance(recorded, dict) else fields()).items():
        event.setdefault(name, value)
    return event


class AddFields(logging.Filter):
    """
    A filter for a handler of `logging`: sets `record.laneway` to a dict of `message`, `topic`,
    `attempt` and `task`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record through."""
        if not hasattr(record, FIELDS):
            setattr(record, FIELDS, fields())
        return True
