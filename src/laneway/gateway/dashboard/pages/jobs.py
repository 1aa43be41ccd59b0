"""Jobs: one task call, and the task topics that have something."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from laneway import arguments
from laneway.gateway.dashboard import charts
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import JobQuery
from laneway.policy import check_topic

if TYPE_CHECKING:
    from laneway.gateway.dashboard.view import View
    from laneway.tasks.job import JobState

MAX_RESULT = 4000


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: JobQuery = view.query
    job = _job(view, query) if query.id else None
    history = view.reader.history(charts.RANGES["1h"])
    return {
        "id": query.id,
        "topic": query.topic,
        "job": job,
        "result": _text(job.result) if job is not None and view.shows_bodies else None,
        "shows_bodies": view.shows_bodies,
        "parts": history.parts[:50],
        "may_operate": view.may("operate"),
    }


def _job(view: View, query: JobQuery) -> JobState:
    topic = check_topic(query.topic) if query.topic else None
    return view.host.job(arguments.name("job", "the id", query.id), topic).state()


def _text(value: Any) -> str:
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text[:MAX_RESULT]


PAGE = Page(
    name="jobs",
    path="/jobs",
    title="Jobs",
    key="j",
    build=build,
    query=JobQuery,
    fragments=("found", "parts"),
    is_whole=True,
)
