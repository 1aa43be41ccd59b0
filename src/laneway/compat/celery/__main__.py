"""`python -m laneway.compat.celery -A tasks worker`: the commands of `celery` that exist here."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

from laneway.compat.celery import Celery
from laneway.errors import LanewayError, UsageError
from laneway.printable import escaped, without_passwords

if TYPE_CHECKING:
    from collections.abc import Sequence

UNAVAILABLE = 69
"""The exit status if no worker answers, as of `celery status`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m laneway.compat.celery",
        description="Celery's commands worker, inspect ping and status. For others, see `laneway`.",
    )
    parser.add_argument("-A", "--app", required=True, help="the application: proj, or tasks:app")
    parser.add_argument("command", choices=("worker", "inspect", "status"))
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for a worker: -c, -Q, -l, --burst")
    options = parser.parse_args(arguments)
    try:
        app = _load(options.app)
        if options.command == "worker":
            app.worker_main(options.words)
            return 0
        return _status(app, options.command, options.words)
    except LanewayError as error:
        sys.stderr.write(f"Error: {escaped(without_passwords(str(error)))}\n")
        return 1


def _load(target: str) -> Celery:
    """The application of `tasks:app`, `tasks`, or a package whose module `celery` has it."""
    sys.path.insert(0, os.getcwd())
    name, _, attribute = target.partition(":")
    values = vars(importlib.import_module(name))
    if "__path__" in values and importlib.util.find_spec(f"{name}.celery"):
        values = vars(importlib.import_module(f"{name}.celery")) | values
    found = [values.get(attribute)] if attribute else list(values.values())
    app = next((each for each in found if isinstance(each, Celery)), None)
    if app is None:
        raise UsageError(f"{target}: it has no Celery application; name it, like tasks:app")
    return app


def _status(app: Celery, command: str, words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m laneway.compat.celery {command}")
    if command == "inspect":
        parser.add_argument("method", choices=("ping",))
    parser.add_argument("-t", "--timeout", type=float, default=1.0, help="seconds (1)")
    parser.add_argument("-d", "--destination", type=lambda ids: ids.split(","), help="ids")
    options = parser.parse_args(words)
    answers = app.control.inspect(options.destination, options.timeout).ping() or {}
    for worker in answers:
        sys.stdout.write(f"->  {escaped(worker)}: OK\n")
    sys.stdout.write(f"\n{len(answers)} node{'s' * (len(answers) != 1)} online.\n")
    return 0 if answers else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
