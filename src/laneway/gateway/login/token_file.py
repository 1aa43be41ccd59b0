"""A file with a token that may do everything, for deployments: `laneway serve --token-file`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from laneway.engines.base import Records
from laneway.errors import UsageError
from laneway.gateway.login import tokens
from laneway.gateway.login.access import SCOPES

NAME = "token file"
"""The name of a token that came from a file."""

MAX_BYTES = 1000


def ensure(engine: Records, path: str) -> None:
    """
    Make the token of a file valid; if there is no file, create a token and write it there.

    The file of a new token is readable by its owner only. Raises UsageError.
    """
    file = Path(path)
    try:
        text = file.read_bytes()[:MAX_BYTES].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        _create(engine, file)
        return
    except OSError as error:
        raise _unusable(path, error) from error
    if tokens.parse(text) is None:
        raise UsageError(
            f"serve: --token-file {path}: expected a token of `laneway token generate`, or no file:"
            " then one is created"
        )
    tokens.accept(engine, text, NAME, SCOPES)


def _create(engine: Records, file: Path) -> None:
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:  # another gateway was faster
        ensure(engine, str(file))
        return
    except OSError as error:
        raise _unusable(str(file), error) from error
    with open(number, "w", encoding="ascii") as opened:  # the descriptor has the mode
        try:
            _, text, _ = tokens.create(engine, NAME, SCOPES)
            opened.write(text + "\n")
        except BaseException:
            with contextlib.suppress(OSError):
                file.unlink()
            raise


def _unusable(path: str, error: OSError) -> UsageError:
    return UsageError(f"serve: --token-file {path}: {error.strerror or error}")
