"""How a worker's log is written: lines for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import textwrap
import traceback
from datetime import UTC, datetime
from typing import Any

import msgspec

from laneway.printable import escaped, escaped_json, without_passwords
from laneway.working.handler import fields

FIELDS = "laneway"
"""The attribute of a log record that holds the fields of the line, such as message and topic."""

TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a line: its own, else those of the handler that wrote it."""
    own: dict[str, Any] | None = getattr(record, FIELDS, None)
    return fields() if own is None else own


def _in_words(values: dict[str, Any]) -> str:
    """The fields as text for the end of a line."""
    if not values:
        return ""
    return f" [{', '.join(f'{name} {escaped(str(value))}' for name, value in values.items())}]"


class TextLines(logging.Formatter):
    """
    Lines for people. Control characters are escaped, and passwords are left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.exc_text = None  # other handlers may have formatted it; here it is indented
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        # A record of the program may have several lines, and does not name the message itself.
        is_ours = record.name.partition(".")[0] == "laneway"
        record.message = escaped(without_passwords(record.message), lines=not is_ours)
        if not is_ours:
            record.message += _in_words(_fields_of(record))
        return super().formatMessage(record)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """The local time with its zone."""
        del datefmt
        return (
            datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(" ", "milliseconds")
        )

    def formatException(self, ei: Any) -> str:  # noqa: N802
        text = escaped(without_passwords(super().formatException(ei)), lines=True)
        return textwrap.indent(text, "  ")  # no text of an error can look like a line of the log


class JsonLines(logging.Formatter):
    """
    One JSON object a line: time, level, logger, process, event, the line's fields, and a traceback
    if there is one.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "event": without_passwords(record.getMessage()),
            **_fields_of(record),
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
    """A program's choice of level and format, for the processes that it starts."""

    level: int = logging.INFO
    as_json: bool = False

    @staticmethod
    def present() -> LogStyle:
        """The style of this process."""
        root = logging.getLogger()
        if not root.handlers:
            return LogStyle()
        return LogStyle(
            root.getEffectiveLevel(),
            any(isinstance(handler.formatter, JsonLines) for handler in root.handlers),
        )

    def apply(self) -> None:
        """Use this style in this process, unless the program has set up logging itself."""
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if self.as_json else TextLines(TEXT_FORMAT))
        logging.basicConfig(level=self.level, handlers=[handler])
        asyncio_log = logging.getLogger("asyncio")
        if asyncio_log.level == logging.NOTSET:
            # Its debug lines are only about asyncio itself.
            asyncio_log.setLevel(max(self.level, logging.INFO))
