"""
`LocalLogin`: how `laneway dev` and `laneway serve` let in the person who sees their output.

A code is random, valid once and for some minutes, and exists in memory only. A browser brings it in
the fragment of a URL, which no request has, and posts it; the answer's cookie begins a session
that may do everything. On Linux the browser's process must belong to the user who runs the gateway
(or to root, as some port forwarders do): so a code that another user sees is of no use to them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Literal

from laneway.gateway.http import Request

CODE_SECONDS = 600.0
"""How long a code is valid."""

MAX_CODES = 10
"""Codes that wait to be used; with more the oldest end."""

SESSION_OWNER = "-local--"
"""What a session has as its token's id. No token's id has a hyphen."""

_PROGRAM = (
    "a program sends a token: Authorization: Bearer lw_…, of `laneway token create NAME --scope"
    " SCOPE`"
)
HINTS = {
    "dev": f"open the link that `laneway dev` shows, or press o in its terminal; {_PROGRAM}",
    "serve": f"open the link that `laneway serve` showed when it started; {_PROGRAM}, or start it"
    " with --no-login",
    None: "send a token: Authorization: Bearer lw_…",
}
"""What a client without a session reads, by the command that shows links."""

_CONNECTIONS = Path("/proc/net/tcp")
_LOCAL, _REMOTE, _UID = 1, 2, 7


class LocalLogin:
    """
    The codes of one gateway, and the key that signs its sessions.

    Any thread may call it. `key`: 32 bytes; with the same key sessions outlive the gateway.
    `command`: which shows links with codes; None if none does, because there are tokens.
    """

    def __init__(self, key: bytes, command: Literal["dev", "serve"] | None = "dev") -> None:
        self.key = key
        self.command = command
        self.hint = HINTS[command]
        self._lock = threading.Lock()
        self._codes: dict[bytes, float] = {}

    def new_code(self) -> str:
        """A code that is valid once, for ten minutes."""
        code = secrets.token_urlsafe(16)
        with self._lock:
            while len(self._codes) >= MAX_CODES:
                del self._codes[next(iter(self._codes))]
            self._codes[_hashed(code)] = time.monotonic() + CODE_SECONDS
        return code

    def link(self, url: str) -> str:
        """A link to a gateway's URL that logs one browser in; the URL if no link is shown."""
        return url if self.command is None else f"{url}/login#{self.new_code()}"

    def use_code(self, code: str) -> bool:
        """Whether the code is valid. It is not any more after this."""
        with self._lock:
            until = self._codes.pop(_hashed(code), 0.0)
        return time.monotonic() < until


def _hashed(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "replace")).digest()


def is_of_other_user(request: Request) -> bool:
    """Whether another user of this machine sends the request, as far as the system tells."""
    client, server = request.scope.get("client"), request.scope.get("server")
    if not client or not server:
        return False
    try:
        lines = _CONNECTIONS.read_text().splitlines()[1:]
        wanted = [_written(*client), _written(*server)]
    except (OSError, ValueError):
        return False
    for line in lines:
        fields = line.split()
        if [fields[_LOCAL], fields[_REMOTE]] == wanted:
            return int(fields[_UID]) not in (0, os.getuid())
    return False


def _written(address: str, port: int) -> str:
    """An IPv4 address and port as Linux lists them."""
    parts = bytes(map(int, address.split(".")))
    return f"{int.from_bytes(parts, 'little'):08X}:{port:04X}"
