"""Where a namespace is: one file, or the files of a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import parse_qsl

import msgspec

from laneway.engines.shared.urls import shard_count
from laneway.errors import UsageError
from laneway.printable import redacted


class Address(msgspec.Struct, frozen=True):
    """
    A URL of this engine. `path`: a file or a folder; None: a store in memory. `shards`: the number
    of files in the folder; None: the URL does not say it.
    """

    path: Path | None
    shards: int | None = None

    def is_folder(self, namespace: str) -> bool:
        """Whether the namespace has files in a folder."""
        if self.path is None:
            return False
        # `os.path.exists` is False also for a folder that may not be entered: opening explains it.
        first = file_in(self.path, namespace, 0)
        return self.shards is not None or os.path.exists(first) or has_others(self.path, namespace)


def file_in(folder: Path, namespace: str, shard: int) -> Path:
    return folder / f"{namespace}.{shard}.db"


def has_others(folder: Path, namespace: str) -> bool:
    """Whether a folder has files of a namespace other than the first one."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    pattern = re.compile(rf"{re.escape(namespace)}\.[1-9][0-9]{{0,3}}\.db")
    return any(pattern.fullmatch(name) for name in names)


def parse(url: str) -> Address:
    """
    Take a URL apart: `sqlite:///path` is relative, `sqlite:////path` absolute, `sqlite://` in
    memory; `sqlite:///folder?shards=4` has several files. Raises UsageError.
    """
    rest, question, query = url.removeprefix("sqlite://").partition("?")
    shards = _shards(url, query) if question else None
    if rest in ("", "/:memory:"):
        if question:
            raise UsageError(
                f"engine URL {redacted(url)!r}: a store in memory has no files; write"
                f' "sqlite:///folder?{query}", or "sqlite://"'
            )
        return Address(None)
    if rest == "/":
        raise UsageError(
            f'engine URL {redacted(url)!r}: the path is missing; write "sqlite:///laneway.db" for a'
            ' file, "sqlite://" for one in memory'
        )
    if not rest.startswith("/"):
        raise UsageError(
            f"engine URL {redacted(url)!r}: a path begins after three slashes; write"
            f' "sqlite:///{redacted(rest)}"'
        )
    return Address(Path(rest[1:]), shards)


def _shards(url: str, query: str) -> int:
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [name for name in options if name != "shards"]
    if unknown or not options:
        raise UsageError(
            f'engine URL {redacted(url)!r}: unknown option "{unknown[0] if unknown else query}";'
            ' the only one is "shards", the number of files, as in sqlite:///folder?shards=4'
        )
    return shard_count(url, options["shards"])


def path_of(url: str, namespace: str) -> str | None:
    """
    The file of a namespace that has one; None: it is in memory.

    Each namespace other than "default" has its own file beside it, `name.namespace.db`, so that the
    load of one does not hold the write lock of another.
    """
    path = parse(url).path
    if path is None or namespace == "default":
        return str(path) if path is not None else None
    return str(path.with_name(f"{path.stem}.{namespace}{path.suffix}"))
