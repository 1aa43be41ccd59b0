"""
The schemes of the engines' URLs; of the Valkey engine also where its client library is missing.
"""

from __future__ import annotations

VALKEY = (
    "valkey",
    "redis",
    "valkeys",
    "rediss",
    "unix",
    "valkey+unix",
    "redis+unix",
    "valkey+cluster",
    "redis+cluster",
    "valkeys+cluster",
    "rediss+cluster",
    "valkey+sentinel",
    "redis+sentinel",
    "valkeys+sentinel",
    "rediss+sentinel",
)
"""With an `s` behind the name: over TLS."""

PLANNED = ("postgres", "postgresql", "postgresql+psycopg", "postgresql+asyncpg")
"""Of an engine that is not there yet."""
