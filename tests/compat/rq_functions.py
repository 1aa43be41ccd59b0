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


def fetches(url: str, timeout: float = 0, delay: float = 0, at: str = "", retry_delay: int = 0):
    return [url, timeout, delay, at, retry_delay]


def notes_end(job, connection, *about):
    assert connection is None
    job.meta["ended as"] = f"{job.status}: {about[-2] if len(about) > 1 else about[0]}"
    job.save_meta()
