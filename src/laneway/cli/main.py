"""
The root command: global options, and the list of commands, each imported when it is called.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

from laneway.cli.changes import CHANGES, audited
from laneway.cli.session import (
    REFUSED,
    USAGE,
    Session,
    exit_with,
    say,
    with_exit_codes,
    with_notes,
)
from laneway.printable import meant_or_known
from laneway.subscriptions import is_unicode

COMMANDS = {
    "init": "init",
    "dev": "development.command",
    "worker": "worker",
    "push": "push",
    "endpoint": "endpoint",
    "publish": "publish",
    "topics": "topics",
    "peek": "topics",
    "top": "top",
    "history": "history",
    "workers": "workers",
    "ping": "workers",
    "drain": "workers",
    "stacks": "workers",
    "policy": "policy",
    "subscription": "subscription",
    "gate": "gate",
    "topic-group": "gate",
    "tier": "tier",
    "schedules": "schedules",
    "job": "job",
    "election": "election",
    "pause": "topics",
    "message": "message",
    "back-off": "message",
    "resume": "topics",
    "dead": "dead",
    "explain": "explain",
    "purge": "topics",
    "doctor": "doctor",
    "config": "config",
    "serve": "serve",
    "token": "token",
    "exporter": "exporter",
    "outbox": "outbox",
    "spool": "spool",
    "migrate": "migrate",
    "shard": "shard",
    "demo": "demo",
    "bench": "bench",
    "capacity": "capacity",
}
"""The module of each command, in this folder."""

NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(
    filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)])
)
"""
The error of newer versions of click when a group is called without a command; older versions print
the help themselves.
"""


url_option = click.option(
    "-u",
    "--url",
    help=(
        "The store, like sqlite:///laneway.db. Default: the application's, $LANEWAY_URL,"
        " pyproject.toml, laneway.db."
    ),
)
namespace_option = click.option(
    "-n",
    "--namespace",
    help="A separate set of topics and policies in the store. [default: default]",
)


def with_store_options(command: click.Command, name: str) -> click.Command:
    """
    Add --url and --namespace to a command, so that they work before and after its name, and keep it
    in the audit log if it changes something.
    """
    if not any(parameter.name == "store_url" for parameter in command.params):
        command.params += [
            click.Option(
                ["-u", "--url", "store_url"],
                help="The store, like sqlite:///laneway.db.",
                expose_value=False,
                callback=_set_url,
            ),
            click.Option(
                ["-n", "--namespace", "store_namespace"],
                help="A separate set of topics and policies in the store.",
                expose_value=False,
                callback=_set_namespace,
            ),
        ]
        if name in CHANGES and command.callback is not None:
            command.callback = audited(command.callback)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            with_store_options(each, f"{name} {each.name}")
    return command


def _set_url(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    has_url = {"topic", "url"} <= {parameter.name for parameter in ctx.command.params}
    if value is not None and value.lower().startswith(("http://", "https://")) and has_url:
        raise click.UsageError(
            f"--url names the store; the endpoint's URL is an argument: {ctx.command_path} TOPIC"
            " URL",
            ctx,
        )
    if value is not None and (session := ctx.find_object(Session)) is not None:
        session.url = value


def _set_namespace(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None and (session := ctx.find_object(Session)) is not None:
        session.namespace, session.namespace_given = value, True


class Commands(click.Group):
    """Imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"laneway.cli.{module}"), cmd_name.replace("-", "_")
        )
        return with_store_options(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = meant_or_known(args[0], COMMANDS)
            raise click.UsageError(f'there is no command "{args[0]}"{hint}', ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse arguments that are not UTF-8: no name, id or setting may contain them."""
        for argument in args:
            if not is_unicode(argument):
                raise click.UsageError(f"expected arguments in UTF-8, got {argument!r:.80}", ctx)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Like click's, but a usage error is one line, like every other error."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.UsageError as error:
            if isinstance(error, NO_ARGUMENTS):  # a request for help
                say(
                    error.ctx.get_help() if error.ctx is not None else error.format_message(),
                    lines=True,
                )
                sys.exit(USAGE)
            where = error.ctx.command_path if error.ctx is not None else "laneway"
            text = with_notes(error, error.format_message().rstrip("."))
            if isinstance(error, click.NoSuchOption) and error.option_name in ("-A", "--app"):
                text += "; for Celery's `-A tasks worker` write `laneway worker tasks:app`"
            exit_with(f"{text} (see `{where} --help`)", USAGE)
        except click.ClickException as error:
            exit_with(error.format_message(), REFUSED)
        except click.Abort:
            exit_with("cancelled; nothing was changed", REFUSED)
        sys.exit(code if isinstance(code, int) else 0)

    @with_exit_codes
    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx)


EPILOG = """\b
Examples:
  laneway publish push.acme '{"order": 42}'
  laneway worker shop:app
  laneway top

\b
Shell completion (bash, zsh or fish):
  eval "$(_LANEWAY_COMPLETE=bash_source laneway)"
"""


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@url_option
@namespace_option
@click.version_option(None, "--version", prog_name="laneway", package_name="laneway")
@click.pass_context
def main(ctx: click.Context, url: str | None, namespace: str | None) -> None:
    """
    Laneway: millions of fair queues.

    Exit codes: 0 success, 1 refused or not found, 2 usage error, 3 store unavailable, 70 internal
    error.
    """
    ctx.obj = Session(url, "default" if namespace is None else namespace, namespace is not None)
