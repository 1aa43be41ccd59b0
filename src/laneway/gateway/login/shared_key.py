"""Keys that all gateways of a namespace share. The first one makes them; the store keeps them."""

from __future__ import annotations

import json
import secrets
from typing import cast

from laneway.engines.base import Records


def shared_key(engine: Records, name: str) -> bytes:
    """The key with a name, 32 bytes. Raises EngineUnavailable."""
    while True:
        (stored,) = engine.record_read("gateway", [name])
        if stored is not None:
            return bytes.fromhex(cast("str", json.loads(stored)))
        engine.record_swap("gateway", name, None, json.dumps(secrets.token_hex(32)).encode())
