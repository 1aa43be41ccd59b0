"""The options of `celery` and its commands, as unit files have them, and a worker with them."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from laneway import headers as control
from laneway.compat.celery import signals
from laneway.errors import UsageError

_VALUES = (
    "-A --app|-b --broker|--result-backend|--loader|--config|--workdir|-Q --queues|-P --pool"
    "|-n --hostname|-O --optimization|--prefetch-multiplier|-I --include|-X --exclude-queues"
    "|--max-tasks-per-child|--max-memory-per-child|--time-limit|--soft-time-limit|--autoscale"
    "|-s --schedule|-S --scheduler|--statedb|--heartbeat-interval|--max-interval|--pidfile"
    "|-f --logfile|--uid|--gid|--umask|--executable|-t --timeout|-d --destination"
)
_FLAGS = (
    "-E --task-events --events|-B --beat|-D --detach|-C --no-color|-q --quiet|--skip-checks"
    "|--purge --discard|--without-gossip|--without-mingle|--without-heartbeat|--burst|-j --json"
)
_INSTEAD = {
    "detach": "start it in the foreground, by systemd or another supervisor",
    "exclude_queues": "name the queues to serve with -Q",
    "scheduler": "schedules are those of the code (beat_schedule) and of app.laneway.schedules;"
    " for rows of django-celery-beat run Celery itself with laneway.contrib.kombu",
}
"""Options that change what a process does, and are not supported."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")


def read(words: Sequence[str], prog: str = "worker") -> argparse.Namespace:
    """
    Read a command line, with the options anywhere. Options about brokers, pools and remote control
    are read and have no effect. Raises UsageError.
    """
    parser = _Parser(prog, allow_abbrev=False, description="For all commands, see `laneway`.")
    for names in _VALUES.split("|"):
        parser.add_argument(*names.split())
    for names in _FLAGS.split("|"):
        parser.add_argument(*names.split(), action="store_true")
    parser.add_argument("-c", "--concurrency", type=_count)
    parser.add_argument("-l", "--loglevel", type=_level, default="WARNING")
    parser.add_argument("words", nargs="*", help="worker, beat, inspect ping, status")
    options = parser.parse_intermixed_args(list(words))
    for name, instead in _INSTEAD.items():
        value = getattr(options, name)
        if value and not str(value).endswith("PersistentScheduler"):
            raise UsageError(f"{prog}: --{name.replace('_', '-')} is not supported; {instead}")
    if options.autoscale:
        options.concurrency = _count(options.autoscale.partition(",")[0])
    elif options.pool == "solo":
        options.concurrency = 1
    return options


def _count(text: str) -> int:
    number = control.whole(text.removeprefix("="))
    if not number:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text!r:.80}")
    return number


def _level(text: str) -> str:
    level = text.removeprefix("=").upper()
    if level not in logging.getLevelNamesMapping():
        raise argparse.ArgumentTypeError(f"expected a level such as INFO, got {text!r:.80}")
    return level


def prepare(app: Any, options: argparse.Namespace) -> None:
    """Apply the options of a process to its application, and set up logging."""
    given: dict[str, Any] = {
        "broker_url": options.broker,
        "include": options.include and [*app.conf.include, *options.include.split(",")],
        "task_time_limit": options.time_limit and float(options.time_limit),
        "task_soft_time_limit": options.soft_time_limit and float(options.soft_time_limit),
    }
    app.conf.update({name: value for name, value in given.items() if value})
    if options.pidfile:
        Path(options.pidfile).write_text(f"{os.getpid()}\n")
    if not signals.setup_logging.receivers:
        logging.basicConfig(level=options.loglevel, filename=options.logfile)


def run(app: Any, options: argparse.Namespace) -> None:
    """Run a worker with these options."""
    prepare(app, options)
    if options.purge:
        app.control.purge()
    app.run_worker(
        concurrency=options.concurrency or app.conf.worker_concurrency or 100,
        queues=options.queues.removeprefix("=").split(",") if options.queues else None,
        burst=options.burst,
    )
