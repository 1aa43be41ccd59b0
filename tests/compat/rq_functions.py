"""Functions that RQ programs enqueue."""

from __future__ import annotations

from typing import Any

from laneway.compat.rq import get_current_job


def count_words(text: str) -> int:
    return len(text.split())


def fails() -> None:
    raise ValueError("always")


def saves_meta() -> dict[str, Any]:
    job = get_current_job()
    assert job is not None
    job.meta["handled"] = True
    job.save_meta()
    return dict(job.meta)


def same(value):
    return value
