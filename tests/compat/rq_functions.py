"""Functions of an RQ program, in a module of their own."""

from __future__ import annotations

from typing import Any

from laneway.compat.rq import get_current_job


def count_words(text: str) -> int:
    return len(text.split())


def fails() -> None:
    raise ValueError("as it stands")


def keeps_meta() -> dict[str, Any]:
    own = get_current_job()
    assert own is not None
    own.meta["handled"] = True
    own.save_meta()
    return dict(own.meta)


def same(value):
    return value
