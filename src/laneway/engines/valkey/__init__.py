"""The engine for many machines: Valkey or Redis, one server or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.engines.valkey.admin import ValkeyEngine

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine, Settings


def open_valkey(url: str, settings: Settings) -> FullEngine:
    """Open or make the namespace on the server that the URL names."""
    return ValkeyEngine(url, settings)
