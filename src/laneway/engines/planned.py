"""The URL schemes of engines that do not exist yet, so that the error for them says so."""

from __future__ import annotations

PLANNED = {
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "postgresql+psycopg": "PostgreSQL",
    "postgresql+asyncpg": "PostgreSQL",
}
"""Store by scheme."""
