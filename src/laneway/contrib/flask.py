"""
Laneway in a Flask program: an application as an extension, tasks inside an application context, and
`flask laneway worker`.

    laneway = FlaskLaneway()

    @laneway.task(topic="mail.{customer}")
    def mail(customer: str) -> None: ...

    def create_app():
        app = Flask(__name__)
        laneway.init_app(app)
        return app
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import click
from flask import Flask, current_app
from flask.cli import AppGroup, ScriptInfo

from laneway import Laneway, LanewayError, UsageError
from laneway.working.log_format import LogStyle

WORKER = "laneway.contrib.flask_worker:laneway"


class FlaskLaneway(Laneway):
    """
    An application as an extension of Flask. Its arguments are those of `Laneway`.

    `init_app` reads the store's URL and the namespace from the Flask application's `config`, where
    their names begin with `LANEWAY_`; they precede the arguments. Tasks and handlers run inside
    its application context, but for those with `isolation="process"`.
    """

    def __init__(self, app: Flask | None = None, **arguments: Any) -> None:
        if app is not None and not hasattr(app, "extensions"):
            raise UsageError(f"FlaskLaneway: expected an application of Flask, got {app!r:.80}")
        super().__init__(**arguments)
        self._flask: Flask | None = None
        self.runtime.address = WORKER
        self.around_handling(self._in_context)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Use a Flask application: its configuration, its context, its command line."""
        self._flask = app
        app.extensions["laneway"] = self
        given = app.config.get_namespace("LANEWAY_")
        self.runtime.use_store(given.get("url"), given.get("namespace"))
        app.cli.add_command(_commands())

    def _in_context(self, message: object) -> Generator[None, None, None]:
        del message
        if self._flask is None:
            raise UsageError("FlaskLaneway: call init_app before a worker runs")
        with self._flask.app_context():
            yield


def _commands() -> AppGroup:
    group = AppGroup("laneway", short_help="Handle messages.")

    @group.command("worker")
    @click.option("-c", "--concurrency", type=int, help="Maximum number of concurrent handlers.")
    @click.option("--processes", type=int, help="Worker processes under a supervisor.")
    @click.option("--pool", help="The pool to serve.")
    @click.option("--topics", help="Serve only these topics, strictly in this order: high,low.")
    @click.option("--burst", is_flag=True, default=None, help="Exit when no message can run now.")
    @click.option("--grace", help="How long running handlers may continue after SIGTERM.")
    @click.option("--health-port", type=int, help="Serve /live and /ready over HTTP.")
    def worker(topics: str | None, **options: Any) -> None:
        """Handle messages until SIGTERM or Ctrl-C, inside the application's context."""
        given = {name: value for name, value in options.items() if value is not None}
        if topics is not None:
            given["topics"] = [each.strip() for each in topics.split(",")]
        path = click.get_current_context().ensure_object(ScriptInfo).app_import_path
        if path is not None:
            os.environ["FLASK_APP"] = path  # for the processes that it starts
        LogStyle().apply()
        try:
            current_app.extensions["laneway"].run_worker(**given)
        except LanewayError as error:
            raise click.ClickException(str(error)) from error

    return group
