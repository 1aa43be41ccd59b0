"""`python -m laneway.compat.celery -A proj worker`: the commands of `celery` that exist here."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence

from laneway.compat.celery import Celery, worker_options
from laneway.errors import LanewayError, UsageError
from laneway.printable import escaped, without_passwords

UNAVAILABLE = 69
"""The exit status if no worker answers, as of `celery status`."""

_INSTEAD = {
    "multi": "`laneway worker --processes 4 proj:app`",
    "purge": "`laneway purge QUEUE`",
    "events": "`laneway top`",
    "control": "`laneway pause`, `laneway policy set` and `app.control`",
    "inspect": "`inspect ping`, `laneway workers` and `laneway topics`",
    "migrate": "Celery's own command with laneway.contrib.kombu",
    "flower": "`laneway serve`",
}
"""Commands of Celery, and what to use."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = worker_options.read(words, "python -m laneway.compat.celery")
        command = options.words[:1] or [""]
        if command[0] not in ("worker", "beat", "status") and options.words != ["inspect", "ping"]:
            raise UsageError(
                f'no command "{" ".join(options.words)}" here; use'
                f" {_INSTEAD.get(command[0], 'worker, beat, inspect ping, status, or `laneway`')}"
            )
        os.chdir(options.workdir or ".")
        app = _load(options.app)
        if command == ["worker"]:
            worker_options.run(app, options)
        elif command == ["beat"]:
            _beat(app, options)
        else:
            return _status(app, options)
        return 0
    except (LanewayError, ModuleNotFoundError) as error:
        sys.stderr.write(f"Error: {escaped(without_passwords(str(error)))}\n")
        return 1


def _load(target: str | None) -> Celery:
    """The application of `tasks:app`, `tasks`, or a package whose module `celery` has it."""
    if target is None:
        raise UsageError("name the application, like -A proj or -A tasks:app")
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


def _beat(app: Celery, options: Namespace) -> None:
    """Store the schedules, which workers fire, and wait to be stopped, as a supervisor expects."""
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    worker_options.prepare(app, options)
    app.finalize().laneway.schedules.install()
    sys.stdout.write("Schedules are stored; workers fire them.\n")
    sys.stdout.flush()
    signal.sigwait(stops)


def _status(app: Celery, options: Namespace) -> int:
    workers = options.destination.split(",") if options.destination else None
    answers = app.control.inspect(workers, float(options.timeout or 1)).ping() or {}
    for worker in answers:
        sys.stdout.write(f"->  {escaped(worker)}: OK\n")
    sys.stdout.write(f"\n{len(answers)} node{'s' * (len(answers) != 1)} online.\n")
    return 0 if answers else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
