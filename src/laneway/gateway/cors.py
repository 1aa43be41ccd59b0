"""
Cross-origin requests: pages of other sites that the operator names may use the API with a token.

They never use a session: no answer allows credentials, and `sessions.check` refuses other sites.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from laneway.errors import UsageError
from laneway.gateway.http import Request

MAX_AGE = b"600"
"""For how many seconds a browser remembers the answer to a preflight request."""

METHODS = b"GET, POST, PUT, PATCH, DELETE"
EXPOSED = b"etag, retry-after"
_HEADER_NAMES = re.compile(r"[a-z0-9, -]{1,500}", re.IGNORECASE)


def check_origin(origin: str, option: str = "--cors-origin") -> str:
    """Return the origin of an option if it is one, as browsers send it. Raises UsageError."""
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    expected = f"{parts.scheme}://{host}" + (f":{port}" if port is not None else "")
    if parts.scheme not in ("http", "https") or not parts.hostname or origin != expected:
        raise UsageError(
            f"serve: expected {option} to be like https://shop.example, got {origin!r:.80}"
        )
    return origin


def is_allowed(request: Request, origins: Collection[str]) -> bool:
    """Whether the request is of a page of one of these origins."""
    return request.header(b"origin") in origins


def is_preflight(request: Request) -> bool:
    """Whether a browser asks what it may send."""
    return (
        request.method == "OPTIONS" and request.header(b"access-control-request-method") is not None
    )


def headers(request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """What lets the browser show the answer to the page."""
    origin = (request.header(b"origin") or "").encode("latin-1")
    found = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED),
        (b"vary", b"origin"),
    )
    if not is_preflight(request):
        return found
    wanted = request.header(b"access-control-request-headers") or ""
    allowed = wanted.encode("latin-1") if _HEADER_NAMES.fullmatch(wanted) else b"authorization"
    return (
        *found,
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", allowed),
        (b"access-control-max-age", MAX_AGE),
    )
