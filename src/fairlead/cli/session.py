"""What every command shares: the store that it speaks to, how it prints, and how errors leave."""

from __future__ import annotations

import functools
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Never

import click
import msgspec

from fairlead.message import RAW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlead import Fairlead
    from fairlead.engines.base import FullEngine

STATE_SAYS_NO, USAGE, UNAVAILABLE = 1, 2, 3


class Session(msgspec.Struct):
    """The options before the command."""

    url: str | None
    namespace: str
    namespace_given: bool = False

    def app(self, *, create: bool = False) -> Fairlead:
        """The application on the store; a missing one is an error unless the command publishes or sets."""
        from fairlead import Fairlead

        return Fairlead(self.url, namespace=self.namespace, create=create)

    def engine(self, *, create: bool = False) -> FullEngine:
        return self.app(create=create).engine


pass_session = click.make_pass_decorator(Session)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def failing_well(run: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what goes wrong into one line on stderr and an exit code."""

    @functools.wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from fairlead.errors import EngineUnavailable, FairleadError, Refused, SchemaMismatch

        try:
            return run(*args, **kwargs)
        except (EngineUnavailable, SchemaMismatch) as error:
            leave(str(error), UNAVAILABLE)
        except Refused as error:
            leave(str(error), STATE_SAYS_NO)
        except FairleadError as error:
            leave(str(error), USAGE)
        except BrokenPipeError:
            sys.stderr.close()  # whoever read our output has seen enough
            sys.exit(0)
        except KeyboardInterrupt:
            sys.exit(130)

    return wrapped


def leave(text: str, code: int) -> Never:
    """End the program with one line."""
    click.echo(f"fairlead: {text}", err=True)
    sys.exit(code)


def print_json(value: Any) -> None:
    """One JSON document; bodies are in it as the JSON they are, those published as bytes as text."""
    plain = msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=str)
    click.echo(msgspec.json.format(msgspec.json.encode(_readable(plain)), indent=2))


def _readable(value: Any, *, raw: bool = False) -> Any:
    if isinstance(value, dict):
        headers = value.get("headers")
        raw = isinstance(headers, dict) and headers.get("content-type") == RAW
        return {name: _readable(each, raw=raw) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each, raw=raw) for each in value]
    if not isinstance(value, bytes):
        return value
    return value.decode(errors="replace") if raw else msgspec.json.decode(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, empty: str) -> None:
    """A table; numbers stand to the right."""
    if not rows:
        click.echo(empty)
        return
    cells = [[_cell(value) for value in row] for row in rows]
    right = [all(isinstance(row[n], (int, float)) or row[n] is None for row in rows) for n in range(len(columns))]
    widths = [max(len(name), *(len(row[n]) for row in cells)) for n, name in enumerate(columns)]
    for line in (list(columns), *cells):
        text = "  ".join(cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in zip(line, widths, right, strict=True))
        click.echo(text.rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


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
