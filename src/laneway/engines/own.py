"""
Our own engines by the scheme of their URLs, as pyproject.toml registers them.

They are opened by this table: reading the entry points of all installed packages takes longer than
opening a store.
"""

from __future__ import annotations

VALKEY_SCHEMES = (
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

OWN = {
    "postgres": "laneway.engines.postgres:open_postgres",
    "postgresql": "laneway.engines.postgres:open_postgres",
    "sqlite": "laneway.engines.sqlite:open_sqlite",
    **dict.fromkeys(VALKEY_SCHEMES, "laneway.engines.valkey:open_valkey"),
}
"""The opener by scheme: its module and its name there."""
