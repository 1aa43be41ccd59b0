"""The command's root: global options, and the list of commands, each imported when it is asked for."""

from __future__ import annotations

import difflib
import importlib
import sys
from importlib.metadata import version
from typing import Any

import click
from click.core import ParameterSource

from fairlead.cli.session import STATE_SAYS_NO, USAGE, Session, failing_well, leave, say

COMMANDS = {
    "worker": "worker",
    "publish": "publish",
    "topics": "topics",
    "peek": "topics",
    "top": "top",
    "policy": "policy",
    "gate": "gate",
    "schedules": "schedules",
    "job": "job",
    "pause": "pause",
    "resume": "pause",
    "dead": "dead",
    "explain": "explain",
    "purge": "purge",
    "doctor": "doctor",
    "migrate": "migrate",
    "demo": "demo",
    "bench": "bench",
}
"""Command -> module in this folder."""

NO_ARGUMENTS: tuple[type[click.UsageError], ...] = tuple(filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)]))
"""How newer versions of click say that a group was called without a command; older ones print its help themselves."""


class Commands(click.Group):
    """Imports a command's module only when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        command: click.Command = getattr(importlib.import_module(f"fairlead.cli.{module}"), cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"there are: {', '.join(COMMANDS)}"
            raise click.UsageError(f'there is no command "{args[0]}"; {hint}', ctx) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """As click does it, but a wrong call is told in one line, like every other error."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.UsageError as error:
            if isinstance(error, NO_ARGUMENTS):  # no error, but a question
                say(error.ctx.get_help() if error.ctx is not None else error.format_message(), lines=True)
                sys.exit(USAGE)
            where = error.ctx.command_path if error.ctx is not None else "fairlead"
            leave(f"{error.format_message().rstrip('.')} (see `{where} --help`)", USAGE)
        except click.ClickException as error:
            leave(error.format_message(), STATE_SAYS_NO)
        except click.Abort:
            leave("nothing was done", STATE_SAYS_NO)
        sys.exit(code if isinstance(code, int) else 0)

    @failing_well
    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("-u", "--url", envvar="FAIRLEAD_URL", help="The store, like sqlite:///fairlead.db. Default: $FAIRLEAD_URL, then pyproject.toml.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Which of the store's worlds.")
@click.version_option(version("fairlead"), "--version", prog_name="fairlead")
@click.pass_context
def main(ctx: click.Context, url: str | None, namespace: str) -> None:
    """
    Fairlead: millions of fair queues.

    Exit codes: 0 fine, 1 the state says no (a full backlog, nothing found, not healthy), 2 a wrong call, 3 the store cannot be used, 70 a defect.
    """
    given = ctx.get_parameter_source("namespace") is not ParameterSource.DEFAULT
    ctx.obj = Session(url, namespace, given)
