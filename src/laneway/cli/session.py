"""What every command shares: the choice of the store, printing, and errors as exit codes."""

from __future__ import annotations

import errno
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Never

import click
import msgspec

from laneway import Laneway
from laneway.admin.policies import operator_fields
from laneway.engines.base import FullEngine
from laneway.errors import EngineUnavailable, LanewayError, Refused, SchemaMismatch
from laneway.presenting import json_text, table_lines
from laneway.printable import escaped, redacted, without_passwords

REFUSED, USAGE, UNAVAILABLE, DEFECT = 1, 2, 3, 70


class Session(msgspec.Struct):
    """
    The store and the namespace that the options choose. `opened`: the application of the store.
    `before`: the pattern whose policy the command changes, and the operator's fields before.
    """

    url: str | None
    namespace: str
    namespace_given: bool = False
    opened: Laneway | None = None
    before: tuple[str, dict[str, Any]] | None = None

    def __repr__(self) -> str:
        return without_passwords(msgspec.Struct.__repr__(self))  # the URL may contain one

    def app(self, *, create: bool = False) -> Laneway:
        """
        The application on the store, which is closed when the command ends. A store that does not
        exist is an error unless `create` is set, as it is for commands that publish or set
        something.
        """
        self.opened = app = Laneway(self.url, namespace=self.namespace, create=create)
        click.get_current_context().call_on_close(app.close)
        return app

    def engine(self, *, create: bool = False) -> FullEngine:
        return self.app(create=create).engine

    def engine_for(self, pattern: str, *, create: bool = False) -> FullEngine:
        """The engine, for a change of the operator's policy of a pattern."""
        engine = self.engine(create=create)
        self.before = pattern, operator_fields(engine, pattern)
        return engine


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def with_exit_codes(run: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an error into one line on stderr and an exit code."""

    @functools.wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except (EngineUnavailable, SchemaMismatch) as error:
            exit_with(with_notes(error, str(error)), UNAVAILABLE)
        except Refused as error:
            exit_with(with_notes(error, str(error)), REFUSED)
        except LanewayError as error:
            exit_with(with_notes(error, str(error)), USAGE)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output closed it
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:  # noqa: BLE001  # a defect: print the traceback, without passwords
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                exit_with("the output cannot be written: no space left on its device", REFUSED)
            trace = "".join(traceback.format_exception(error)).rstrip()
            click.echo(
                escaped(without_passwords(_without_own_passwords(trace)), lines=True), err=True
            )
            sys.exit(DEFECT)

    return wrapped


def with_notes(error: Exception, text: str) -> str:
    """An error's text, and what its notes add: how much was done before it."""
    return "; ".join([text, *getattr(error, "__notes__", [])])


def exit_with(text: str, code: int) -> Never:
    """Print one line on standard error and end the program."""
    print_error(text)
    sys.exit(code)


def print_error(text: str) -> None:
    """Print one line on standard error."""
    click.echo(f"laneway: {escaped(without_passwords(_without_own_passwords(text)))}", err=True)


def say(text: str = "", *, lines: bool = False, **style: Any) -> None:
    """
    Print one line on standard output, or several; control characters in it are escaped.
    """
    click.secho(escaped(_without_own_passwords(text), lines=lines), **style)


def confirm(question: str) -> None:
    """Ask; any answer but yes ends the program."""
    try:
        click.confirm(escaped(_without_own_passwords(question)), abort=True)
    except UnicodeDecodeError as error:
        raise click.UsageError("expected an answer in UTF-8; nothing was changed") from error


def _without_own_passwords(text: str) -> str:
    """
    The text without passwords of URLs in the command line: an error may quote any argument, and a
    URL may stand where something else belongs.
    """
    for word in (*sys.argv, os.environ.get("LANEWAY_URL", "")):
        url = word.partition("=")[2] if word.startswith("--") else word
        if len(url) > 3 and ("://" in url or ("@" in url and ":" in url)):
            text = text.replace(url, redacted(url))
    return text


def print_json(value: Any) -> None:
    """Print one JSON document; see `presenting.json_text`."""
    click.echo(_without_own_passwords(json_text(value)))


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """Print a table, or the sentence `empty` where there are no rows."""
    if not rows:
        say(empty)
        return
    for line in table_lines(columns, rows):
        click.echo(_without_own_passwords(line))  # each cell is escaped


def show_list(
    entries: Sequence[Any],
    columns: Sequence[str],
    row: Callable[[Any], Sequence[Any]],
    *,
    as_json: bool,
    empty: str = "",
) -> None:
    """Print the entries as JSON, or as a table with a row of each."""
    if as_json:
        print_json(entries)
    else:
        table(columns, [row(each) for each in entries], empty=empty)
