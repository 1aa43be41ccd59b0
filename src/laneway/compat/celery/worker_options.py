"""The options of `celery worker` that there are here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from laneway import headers as control
from laneway.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LONG = {
    "-c": "--concurrency",
    "-Q": "--queues",
    "-l": "--loglevel",
    "-P": "--pool",
    "-n": "--hostname",
    "-A": "--app",
}
"""The options that have a value, by their short names."""

_IGNORED = (
    "-E",
    "-B",
    "--beat",
    "--events",
    "--without-gossip",
    "--without-mingle",
    "--without-heartbeat",
)


class WorkerOptions(msgspec.Struct):
    """What a command line says; None: nothing."""

    concurrency: int | None = None
    queues: list[str] | None = None
    level: str = "WARNING"
    burst: bool = False


def read(words: Sequence[str]) -> WorkerOptions:
    """
    Read the words behind `celery worker`. A value may be a word of its own, follow `=`, or follow a
    short name directly, as in `-c4`. Raises UsageError.
    """
    options = WorkerOptions()
    stream = iter(words)
    for word in stream:
        option, value = _split(word)
        if option in _LONG.values():
            _set(options, option, _value(option, value, stream))
        elif option == "--burst":
            options.burst = True
        elif option not in _IGNORED:
            raise UsageError(
                f"worker: the option {word!r:.80} is not supported; supported: -c, -Q, -l, --burst"
            )
    return options


def _split(word: str) -> tuple[str, str]:
    if word[:2] in _LONG:
        return _LONG[word[:2]], word[2:].removeprefix("=")
    option, _, value = word.partition("=")
    return option, value


def _value(option: str, value: str, stream: Iterator[str]) -> str:
    value = value or next(stream, "")
    if not value:
        raise UsageError(f"worker: {option}: its value is missing")
    return value


def _set(options: WorkerOptions, option: str, value: str) -> None:
    if option == "--concurrency":
        options.concurrency = control.whole(value)
        if not options.concurrency:
            raise UsageError(
                f"worker: --concurrency: expected a whole number above 0, got {value!r:.80}"
            )
    elif option == "--queues":
        options.queues = value.split(",")
    elif option == "--loglevel":
        options.level = value.upper()
        if options.level not in logging.getLevelNamesMapping():
            raise UsageError(
                f"worker: --loglevel: expected a level such as INFO, got {value!r:.80}"
            )
