"""What every command shares: the store that it speaks to, how it prints, and how errors leave."""

from __future__ import annotations

import functools
import json
import math
import os
import sys
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Never

import click
import msgspec

from laneway.message import RAW
from laneway.safetext import escaped, escaped_json, redacted, without_passwords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from laneway import Laneway
    from laneway.engines.base import FullEngine

STATE_SAYS_NO, USAGE, UNAVAILABLE, DEFECT = 1, 2, 3, 70


class Session(msgspec.Struct):
    """The options before the command."""

    url: str | None
    namespace: str
    namespace_given: bool = False

    def __repr__(self) -> str:
        return without_passwords(msgspec.Struct.__repr__(self))  # a store's URL is in it

    def app(self, *, create: bool = False) -> Laneway:
        """
        The application on the store; a missing one is an error unless the command publishes or
        sets.
        """
        from laneway import Laneway

        return Laneway(self.url, namespace=self.namespace, create=create)

    def engine(self, *, create: bool = False) -> FullEngine:
        return self.app(create=create).engine


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def failing_well(run: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what goes wrong into one line on stderr and an exit code."""

    @functools.wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from laneway.errors import EngineUnavailable, LanewayError, Refused, SchemaMismatch

        try:
            return run(*args, **kwargs)
        except (EngineUnavailable, SchemaMismatch) as error:
            leave(str(error), UNAVAILABLE)
        except Refused as error:
            leave(str(error), STATE_SAYS_NO)
        except LanewayError as error:
            leave(str(error), USAGE)
        except (click.exceptions.Exit, click.ClickException, click.Abort):
            raise
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has seen enough
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:  # noqa: BLE001  # a defect: all that helps to find it, and no password
            told = "".join(traceback.format_exception(error)).rstrip()
            click.echo(
                escaped(without_passwords(_without_own_passwords(told)), lines=True), err=True
            )
            sys.exit(DEFECT)

    return wrapped


def leave(text: str, code: int) -> Never:
    """End the program with one line."""
    complain(text)
    sys.exit(code)


def complain(text: str) -> None:
    """One line on standard error."""
    click.echo(f"laneway: {escaped(without_passwords(_without_own_passwords(text)))}", err=True)


def say(text: str = "", *, lines: bool = False, **style: Any) -> None:
    """
    One line on standard output, or several; what strangers wrote into it is shown and does nothing.
    """
    click.secho(escaped(_without_own_passwords(text), lines=lines), **style)


def confirm(question: str) -> None:
    """Ask; anything but yes ends the program."""
    click.confirm(escaped(_without_own_passwords(question)), abort=True)


def _without_own_passwords(text: str) -> str:
    """
    What the command was called with is repeated here and there, and may be a URL where something
    else belongs.
    """
    for word in (*sys.argv, os.environ.get("LANEWAY_URL", "")):
        url = word.partition("=")[2] if word.startswith("--") else word
        if len(url) > 3 and ("://" in url or ("@" in url and ":" in url)):
            text = text.replace(url, redacted(url))
    return text


def print_json(value: Any) -> None:
    """
    One JSON document; bodies are in it as the JSON they are, those published as bytes as text.
    """
    plain = msgspec.to_builtins(value, builtin_types=(bytes,), str_keys=True, enc_hook=str)
    click.echo(
        escaped_json(
            _without_own_passwords(json.dumps(_readable(plain), indent=2, ensure_ascii=False))
        )
    )


def _readable(value: Any, *, raw: bool = False) -> Any:
    if isinstance(value, dict):
        headers = value.get("headers")
        raw = isinstance(headers, dict) and headers.get("content-type") == RAW
        return {name: _readable(each, raw=raw) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each, raw=raw) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if not isinstance(value, bytes):
        return value
    if not raw:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # not published by us, or its headers lie
    return value.decode(errors="replace")


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """A table; numbers stand to the right."""
    if not rows:
        say(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    right = [
        all(isinstance(row[n], (int, float)) or row[n] is None for row in rows)
        for n in range(len(columns))
    ]
    widths = [max(len(name), *(len(row[n]) for row in cells)) for n, name in enumerate(columns)]
    for line in (list(columns), *cells):
        text = "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        click.echo(_without_own_passwords(text.rstrip()))  # each cell is escaped


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return escaped(str(value))


def moment(us: int | None) -> str | None:
    """An engine's time as people read it."""
    if us is None:
        return None
    return datetime.fromtimestamp(us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S") + "Z"


def duration(seconds: float | None) -> str | None:
    """A span as people read it."""
    if seconds is None:
        return None
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
