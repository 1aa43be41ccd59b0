"""How a worker's log is written: lines for people, or one JSON object a line for machines; and what is said of a message that ended."""

from __future__ import annotations

import json
import logging
import textwrap
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from fairlead import texts
from fairlead.errors import DependencyFailed, DestinationUnwell, Reject, Retry
from fairlead.safetext import escaped, escaped_json, without_passwords
from fairlead.working.handler import CURRENT

if TYPE_CHECKING:
    from fairlead.message import Lease

log = logging.getLogger("fairlead.worker")

FIELDS = "fairlead"
"""The attribute of a log record that holds what the line is about, field by field."""

TEXT = "%(asctime)s %(levelname)-7s %(message)s"


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """What a line is about: what it says itself, else the run of the task that it was written in."""
    said: dict[str, Any] | None = getattr(record, FIELDS, None)
    run = CURRENT.get(None)
    if said is not None or run is None:
        return said or {}
    return {"task": run.task, "message": run.id, "topic": run.topic, "attempt": run.attempt}


class TextLines(logging.Formatter):
    """Lines for people: what strangers wrote into them is shown and does nothing, and no password is in them."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        is_ours = record.name.partition(".")[0] == "fairlead"  # the program's own lines may be several
        record.message = escaped(without_passwords(record.message), lines=not is_ours)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        told = escaped(without_passwords(super().formatException(ei)), lines=True)
        return textwrap.indent(told, "  ")  # what an error says begins no line of the log


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, the error if there is one, and what it is about."""

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
            line["traceback"] = without_passwords("".join(traceback.format_exception(*record.exc_info)).rstrip())
        try:
            return escaped_json(msgspec.json.encode(line, enc_hook=str).decode())
        except UnicodeEncodeError:  # a lone surrogate somewhere
            return json.dumps(line, default=str)


class Style(msgspec.Struct, frozen=True):
    """What a program has chosen, so that the processes it starts write the same."""

    level: int = logging.INFO
    as_json: bool = False

    @staticmethod
    def present() -> Style:
        """That of this process."""
        root = logging.getLogger()
        if not root.handlers:
            return Style()
        return Style(root.getEffectiveLevel(), any(isinstance(handler.formatter, JsonLines) for handler in root.handlers))

    def apply(self) -> None:
        """Write so from now on, unless the program has set up logging itself."""
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines() if self.as_json else TextLines(TEXT))
        logging.basicConfig(level=self.level, handlers=[handler])


def tell(lease: Lease, error: BaseException | None, cost_us: int) -> None:
    """One line about how a handler ended."""
    match error:
        case None:
            level, what = logging.DEBUG, f"done in {cost_us / 1000:.1f} ms"
        case Reject():
            level, what = logging.WARNING, f"rejected: {error.reason}"
        case Retry():
            level, what = logging.INFO, f"attempt {lease.attempt} asks to be tried again: {error}"
        case DependencyFailed():
            level, what = logging.INFO, f"not run: {error}"
        case DestinationUnwell():
            level, what = logging.WARNING, f"the topic rests: {error}"
        case _:
            level, what = logging.WARNING, f"attempt {lease.attempt} failed: {_shortly(error)}"
    if log.isEnabledFor(level):
        about = {"message": lease.id, "topic": lease.topic, "attempt": lease.attempt, "seconds": cost_us / 1_000_000}
        if error is not None:
            about["error"] = texts.type_name(type(error))
        log.log(level, "message %s in %s: %s", lease.id, lease.topic, texts.clean(what, texts.MAX_REASON), extra={FIELDS: about})


def _shortly(error: BaseException) -> str:
    """Type, first line, and where; the whole is kept with the message."""
    said = texts.of(error).partition("\n")[0]
    kind = texts.type_name(type(error))
    text = f"{kind}: {said}" if said else kind
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
