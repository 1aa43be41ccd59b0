"""
The Lua of this engine, read once from `scripts/`: one library of server functions, which the server
runs through when it is loaded and keeps from then on, over restarts and on its replicas.

`parts/*.lua` are what the functions are made of, `*.lua` the functions themselves, each the text of
one: what a part calls `local` is there for all that follow. A first line `--@ allow-oom` gives the
server's own flags (allow-oom: what empties queues is done also where memory has run out).

The library's name has its fingerprint in it: programs with different versions of it share a server
without meeting.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources

PARTS = (
    "shard",
    "undo",
    "fairness",
    "rules",
    "index_entries",
    "gates",
    "crc",
    "lanes",
    "lane_heads",
    "plain",
    "results",
    "messages",
    "ids",
    "merging",
    "signals",
    "backlog",
    "putting",
    "intake",
    "acks",
    "settling",
    "wakes",
    "housekeeping",
    "serving",
    "wakeup",
)
"""In the order in which they build upon each other."""

FUNCTIONS = (
    "put",
    "lease",
    "settle",
    "extend",
    "tick",
    "wait",
    "policy",
    "policies",
    "own",
    "own_read",
    "program",
    "relayout",
    "gate",
    "limits",
    "purge",
    "delete",
    "dead",
    "check",
    "totals",
    "export",
    "import",
    "remember_finished",
    "report_progress",
    "cancel",
    "on_end",
    "arrivals",
    "tiers",
    "watch",
)

_FOLDER = resources.files("laneway.engines.valkey") / "scripts"
_COMMENT = re.compile(r"^\s*--.*\n|^\s*\n|[ \t]+(?=\n)|^ +", re.MULTILINE)


def _read(path: str) -> str:
    return (_FOLDER / path).read_text(encoding="utf-8")


def _function(name: str) -> str:
    text = _read(f"{name}.lua")
    flags = (
        ", ".join(f"'{flag}'" for flag in text.split("\n", 1)[0][4:].split())
        if text.startswith("--@ ")
        else ""
    )
    return f"offer('{name}', {{ {flags} }}, function()\n{text}end)\n"


def _assemble() -> tuple[str, bytes]:
    code = _COMMENT.sub(
        "", "".join([*(_read(f"parts/{part}.lua") for part in PARTS), *map(_function, FUNCTIONS)])
    )
    name = f"laneway_{hashlib.sha1(code.encode(), usedforsecurity=False).hexdigest()[:12]}"
    return name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{code}".encode()


LIBRARY, SOURCE = _assemble()
"""The library's name, and the library as the server gets it."""

NAMES = {name: f"{LIBRARY}_{name}".encode() for name in FUNCTIONS}
"""By which names the server knows the functions."""
