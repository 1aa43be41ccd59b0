"""`manage.py laneway_worker`: handle messages."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from laneway import LanewayError
from laneway.contrib.django.application import application
from laneway.working.log_format import LogStyle

LEVELS = ("debug", "info", "warning", "error")


class Command(BaseCommand):
    """The options are those of `laneway worker`."""

    help = "Handle the messages of the project's tasks and handlers until SIGTERM or Ctrl-C."
    requires_migrations_checks = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options of a worker."""
        add = parser.add_argument_group("worker").add_argument
        add(
            "-c",
            "--concurrency",
            type=int,
            help="Maximum number of concurrent handlers in each process (100).",
        )
        add("--processes", type=int, help="Worker processes under a supervisor (1).")
        add("--pool", help="The pool to serve.")
        add(
            "--topics",
            type=lambda text: [each.strip() for each in text.split(",") if each.strip()],
            help="Serve only these topics, strictly in this order: high,low.",
        )
        add("--burst", action="store_true", default=None, help="Exit when no message can run now.")
        add("--grace", help="How long running handlers may continue after SIGTERM (30s).")
        add("--heartbeat-timeout", help="How soon other workers get a dead worker's messages (9s).")
        add("--reload", action="store_true", default=None, help="Restart when the code changes.")
        add("--health-port", type=int, help="Serve /live and /ready over HTTP.")
        add("--health-address", help="The address of the health port (127.0.0.1).")
        add("-l", "--log-level", choices=LEVELS, default="info", help="Unless LOGGING sets it up.")
        add("--log-json", action="store_true", help="One JSON object a line.")

    def handle(self, *_: Any, **given: Any) -> None:
        """Run the worker."""
        level = logging.getLevelNamesMapping()[given["log_level"].upper()]
        LogStyle(level, given["log_json"]).apply()
        names = (
            "concurrency",
            "processes",
            "pool",
            "topics",
            "burst",
            "grace",
            "heartbeat_timeout",
            "reload",
            "health_port",
            "health_address",
        )
        options = {name: given[name] for name in names if given.get(name) is not None}
        try:
            application().run_worker(**options)
        except LanewayError as error:
            raise CommandError(str(error)) from error
