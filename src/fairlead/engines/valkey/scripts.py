"""
The Lua of this engine, read once from `scripts/*.lua`: the first line of a script is the server's own, `--@ a b c` in the second names the parts
that it begins with. (`allow-oom`: what empties queues is done also where memory has run out.)

A script is its parts and then its own text, one chunk: what a part calls `local` is there for all that follow.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import msgspec


class Script(msgspec.Struct, frozen=True):
    """A script as the server gets it, and the name by which the server knows it."""

    name: str
    source: bytes
    sha: bytes

    @staticmethod
    def of(name: str, text: str) -> Script:
        """Make one of its text."""
        source = text.encode()
        return Script(name, source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


_FOLDER = resources.files("fairlead.engines.valkey") / "scripts"
_COMMENT = re.compile(r"^\s*--.*\n|^\s*\n|[ \t]+(?=\n)|^ +", re.MULTILINE)


def _read(path: str) -> str:
    return (_FOLDER / path).read_text(encoding="utf-8")


def _assemble(name: str) -> Script:
    text = _read(f"{name}.lua")
    shebang, first, rest = text.split("\n", 2)
    if not shebang.startswith("#!lua") or not first.startswith("--@ "):
        raise AssertionError(f"{name}.lua: its first line is the server's, its second names the parts")
    parts = [_read(f"parts/{part}.lua") for part in first[4:].split()]
    return Script.of(name, f"{shebang}\n" + _COMMENT.sub("", "".join([*parts, rest])))


_NAMES = (
    "put", "lease", "settle", "keep", "tick", "wait", "policy", "policies", "gate", "limits", "purge", "delete", "dead", "check", "totals", "send",
    "receive", "know",
)  # fmt: skip
SCRIPTS = {name: _assemble(name) for name in _NAMES}
"""Every script by name."""
