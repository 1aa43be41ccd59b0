"""What the senders of an application may do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from laneway.push.resolver import Lookup


class SenderSettings(msgspec.Struct, kw_only=True):
    """
    What the senders of an application may do; read when a worker starts.

    - `url`: the store's URL; it determines whether secrets may be stored readably.
    - `allow`: networks and hosts that are reached although they are not public, besides those of
      `LANEWAY_PUSH_ALLOW`. `is_open`: every address is reached.
    - `handlers`: of the application. `proxy`: for all requests; default: `LANEWAY_PUSH_PROXY`.
    - `lookup`: for tests: looks names up, see `resolver.Lookup`.
    """

    url: Callable[[], str]
    allow: list[str] = []
    is_open: bool = False
    proxy: str | None = None
    handlers: Any = None
    lookup: Lookup | None = None
