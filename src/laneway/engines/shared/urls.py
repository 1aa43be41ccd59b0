"""The parts of an engine's URL, where a password may have characters that end it."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, urlsplit

from laneway import headers as control
from laneway.errors import UsageError
from laneway.printable import redacted

ENCODE = "write / ? # @ % of a password as %2F %3F %23 %40 %25"

MOST_SHARDS = 1024


def split(safe: str, url: str) -> SplitResult:
    """
    The parts of a URL; `safe`: the URL as it may be shown. Raises UsageError, which does not repeat
    what cannot be read: it may be a piece of a password.
    """
    try:
        parts = urlsplit(url)
        names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError:
        raise UsageError(
            f"engine URL {safe!r}: its host or its options cannot be read; {ENCODE}"
        ) from None
    if ("@" in parts.path and parts.netloc) or parts.fragment or any("@" in name for name in names):
        raise UsageError(f"engine URL {safe!r}: an @ follows the host; {ENCODE}")
    return parts


def shard_count(url: str, text: str) -> int:
    """The number of shards that a URL asks for. Raises UsageError."""
    number = control.whole(text) or 0
    if not 1 <= number <= MOST_SHARDS or number & (number - 1):
        raise UsageError(
            f"engine URL {redacted(url)!r}: shards: expected a power of two up to {MOST_SHARDS},"
            f" got {text!r}"
        )
    return number
