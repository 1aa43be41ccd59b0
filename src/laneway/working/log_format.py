"""
How a worker's log is written: lines for people, or one JSON object a line for machines; and what is
said of a message that ended.
"""

from __future__ import annotations

import json
import logging
import textwrap
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.safetext import escaped, escaped_json, without_passwords
from laneway.working.handler import fields

log = logging.getLogger("laneway.worker")

FIELDS = "laneway"
"""The attribute of a log record that holds what the line is about, field by field."""

TEXT = "%(asctime)s %(levelname)-7s %(message)s"


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """What a line is about: what it says itself, else the handler that it was written in."""
    said: dict[str, Any] | None = getattr(record, FIELDS, None)
    return fields() if said is None else said


def _in_words(about: dict[str, Any]) -> str:
    """As lines for people have it at their end."""
    if not about:
        return ""
    return f" [{', '.join(f'{name} {escaped(str(value))}' for name, value in about.items())}]"


class TextLines(logging.Formatter):
    """
    Lines for people: what strangers wrote into them is shown and does nothing, and no password is
    in them.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # it may have been made for other handlers: here it is indented
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        is_ours = (
            record.name.partition(".")[0] == "laneway"
        )  # the program's own lines may be several
        record.message = escaped(without_passwords(record.message), lines=not is_ours)
        if not is_ours:  # ours name it themselves
            record.message += _in_words(_about(record))
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Local time with its zone."""
        del datefmt
        return (
            datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")
        )

    def formatException(self, ei: Any) -> str:  # noqa: N802
        told = escaped(without_passwords(super().formatException(ei)), lines=True)
        return textwrap.indent(told, "  ")  # what an error says begins no line of the log


class JsonLines(logging.Formatter):
    """
    One JSON object a line: time, level, logger, event, the error if there is one, and what it is
    about.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "event": without_passwords(record.getMessage()),
            **_about(record),
        }
        if record.exc_info is not None and record.exc_info[0] is not None:
            line["traceback"] = without_passwords(
                "".join(traceback.format_exception(*record.exc_info)).rstrip()
            )
        try:
            return escaped_json(msgspec.json.encode(line, enc_hook=str).decode())
        except UnicodeEncodeError:  # a lone surrogate somewhere
            return json.dumps(line, default=str)


class LogStyle(msgspec.Struct, frozen=True):
    """What a program has chosen, so that the processes it starts write the same."""

    level: int = logging.INFO
    as_json: bool = False

    @staticmethod
    def present() -> LogStyle:
        """That of this process."""
        root = logging.getLogger()
        if not root.handlers:
            return LogStyle()
        return LogStyle(
            root.getEffectiveLevel(),
            any(isinstance(handler.formatter, JsonLines) for handler in root.handlers),
        )

    def apply(self) -> None:
        """Write so from now on, unless the program has set up logging itself."""
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if self.as_json else TextLines(TEXT))
        logging.basicConfig(level=self.level, handlers=[handler])
        selector = logging.getLogger("asyncio")
        if selector.level == logging.NOTSET:
            selector.setLevel(
                max(self.level, logging.INFO)
            )  # at debug it tells of its own parts only
