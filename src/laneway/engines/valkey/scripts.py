"""
The Lua of this engine, read once from `scripts/`: one library of server functions. The server runs
it once when it is loaded, and stores it over restarts and on replicas.

`*.lua` are the functions, `parts/*.lua` what they have in common. All parts are one chunk: a
top-level `local` of a part is visible to all later ones. The first line `--@ allow-oom` sets flags
of the server (allow-oom: the function may run when memory is used up, because it empties queues, or
workers need it when they start).

The library's name has a fingerprint of its code, so that programs with different versions can share
a server.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

PARTS = (
    "shard",
    "undo",
    "fairness",
    "adaptive",
    "policies",
    "writes",
    "groups",
    "gates",
    "turns",
    "crc",
    "recent",
    "tallies",
    "lanes",
    "plain",
    "results",
    "messages",
    "key_limits",
    "ids",
    "merging",
    "flow_signals",
    "backlog",
    "putting",
    "copies",
    "left_copies",
    "intake",
    "forwarding",
    "settling",
    "publishing",
    "next_wake",
    "housekeeping",
    "serving",
    "wakeup",
)
"""In the order of their dependencies."""

FUNCTIONS = (
    "put",
    "put_reserve",
    "finish_copies",
    "lease",
    "settle",
    "extend",
    "tick",
    "wait",
    "policy",
    "policies_read",
    "own",
    "own_read",
    "swap",
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
    "remember_batches",
    "report_progress",
    "move",
    "back_off",
    "on_end",
    "tiers",
    "watch_lanes",
    "states",
    "beat",
    "history",
    "log_append",
    "log_read",
)

_VARIANTS = {"put_reserve": ("put", "allow-oom")}
"""Functions with the code of another one, and the flag that they have besides."""

_FOLDER = Path(__file__).with_name("scripts")


def _read(path: str) -> str:
    return (_FOLDER / path).read_text(encoding="utf-8")


def _function(name: str) -> str:
    file, *flags = _VARIANTS.get(name, (name,))
    text = _read(f"{file}.lua")
    if text.startswith("--@ "):
        flags += text.split("\n", 1)[0][4:].split()
    quoted = ", ".join(f"'{flag}'" for flag in flags)
    return f"offer('{name}', {{ {quoted} }}, function()\n{text}end)\n"


def _assemble() -> tuple[str, bytes]:
    texts = [*(_read(f"parts/{part}.lua") for part in PARTS), *map(_function, FUNCTIONS)]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    code = "".join(f"{line}\n" for line in lines if line and not line.startswith("--"))
    name = f"laneway_{hashlib.sha1(code.encode(), usedforsecurity=False).hexdigest()[:12]}"
    return name, f"#!lua name={name}\nlocal LIBRARY = '{name}'\n{code}".encode()


LIBRARY, SOURCE = _assemble()
"""The library's name, and the library as the server gets it."""

NAMES = {name: f"{LIBRARY}_{name}".encode() for name in FUNCTIONS}
"""The functions' names on the server."""
