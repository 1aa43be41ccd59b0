"""The SQL of this engine, read once from `sql/*.sql`: `-- name: …` begins a statement."""

from __future__ import annotations

from importlib import resources

from fairlead.engines.sqlite.rows import LANE_COLUMNS, ROW_COLUMNS


def _load() -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in sorted((resources.files("fairlead.engines.sqlite") / "sql").iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(".sql"):
            continue
        for section in entry.read_text(encoding="utf-8").split("-- name:")[1:]:
            name, _, text = section.partition("\n")
            statement = text.replace("{lane}", _LANE).replace("{message}", _MESSAGE).strip().rstrip(";")
            if name.strip() in found:
                raise AssertionError(f"the statement {name.strip()} stands twice")
            found[name.strip()] = statement
    return found


_LANE = ", ".join(f"l.{name}" for name in LANE_COLUMNS)
_MESSAGE = ", ".join(f"m.{name}" for name in ROW_COLUMNS)

PLACING = ("band", "place", "wake", "vt", "gate")
"""Columns of `lane` that indexes stand on, besides the size classes."""

CLASSES = ("big", "old", "busy", "slow")
COUNTS = tuple(name for name in LANE_COLUMNS if name not in {"lane", "name", "rule", *PLACING, *CLASSES})

SQL = _load()
"""Every statement by name."""

SQL["lane_insert"] = f"INSERT INTO lane ({', '.join(LANE_COLUMNS)}) VALUES ({', '.join('?' * len(LANE_COLUMNS))})"
SQL["lane_count"] = f"UPDATE lane SET {', '.join(f'{name} = ?' for name in COUNTS)} WHERE lane = ?"
SQL["lane_place"] = f"UPDATE lane SET {', '.join(f'{name} = ?' for name in PLACING + COUNTS)} WHERE lane = ?"
for _name in CLASSES:
    SQL[f"lane_{_name}"] = f"UPDATE lane SET {_name} = ? WHERE lane = ?"
_INSERTED = ("mid", "lane", "state", "rank", "seq", "since", "published", "expires", "serial", "odd",
             "key", "id", "topic", "mkey", "headers", "sticky", "body")  # fmt: skip
SQL["message_insert"] = f"INSERT INTO message ({', '.join(_INSERTED)}) VALUES ({', '.join('?' * len(_INSERTED))})"
SQL["message_update"] = f"UPDATE message SET {', '.join(f'{name} = ?' for name in ROW_COLUMNS[1:])} WHERE mid = ?"
