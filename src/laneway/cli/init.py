"""`laneway init`: a first program, its test, and a compose file."""

from __future__ import annotations

import importlib.resources
import shlex
from pathlib import Path

import click

from laneway.cli.session import REFUSED, USAGE, exit_with, say
from laneway.printable import redacted

FILES = ("app.py", "test_app.py", "compose.yaml")
"""What is written; the contents are in the folder first_program."""

EXAMPLES = """\b
Examples:
  laneway init                             in the current folder
  laneway init shop && cd shop && laneway dev app:app
"""


@click.command(short_help="Write a first program.", epilog=EXAMPLES)
@click.argument("place", metavar="[DIR]", default=".")
def init(place: str) -> None:
    """
    Write a first program with a handler and a task, its test, and a compose file.

    DIR is created if it does not exist. Nothing is overwritten: if one of the files exists, none
    is written.
    """
    if "://" in place:  # it may have a password
        raise click.UsageError(f"{redacted(place)}: expected a folder, got a store's URL")
    folder = Path(place)
    paths = [folder / name for name in FILES]
    existing = [path.name for path in paths if path.is_symlink() or path.exists()]
    if existing:
        exit_with(
            f"init: {folder} has {', '.join(existing)}; nothing was written; name another folder",
            REFUSED,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            _write(path)
            say(f"wrote {path}")
    except OSError as error:
        exit_with(
            f"init: {error.filename or folder}: {error.strerror}; name a folder that you may write",
            USAGE,
        )
    say()
    say("Next:")
    for line in ([] if folder == Path() else [f"cd {shlex.quote(str(folder))}"]) + [
        "laneway dev app:app"
    ]:
        say(f"  {line}")


def _write(path: Path) -> None:
    """Write a file that does not exist yet."""
    contents = importlib.resources.files("laneway.cli").joinpath(
        "first_program", f"{path.name}.txt"
    )
    with path.open("x", encoding="utf-8") as file:
        file.write(contents.read_text(encoding="utf-8"))
