"""Jobs: which task got slow or fails, and what became of one call."""

from __future__ import annotations

import json
from typing import Any

from laneway.gateway.dashboard import charts, flow_graph, heat, words
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.queries import JobQuery
from laneway.gateway.dashboard.view import View
from laneway.history.figures import WAIT_BOUNDS
from laneway.policy import check_topic
from laneway.tasks.job import JobState, job_of

MAX_RESULT = 4000
MAX_TASKS = 20
"""The maximum number of listed tasks: those with the largest working time."""


def build(view: View) -> dict[str, Any]:
    """The variables of the page."""
    query: JobQuery = view.query
    job = _job(view, query) if query.id else None
    seconds = charts.seconds_of(query.range)
    history = view.reader.history(seconds)
    columns = heat.columns_of(view.reader.rows(seconds), seconds, view.reader.now_us())
    tasks = heat.handler_rows(columns, seconds)
    chosen = next((each["name"] for each in tasks if each["name"] == query.task), None)
    return {
        "id": query.id,
        "topic": query.topic,
        "job": job,
        "graph": _graph(view, job),
        "is_dead": job is not None and job.status == "dead",
        "result": _text(job.result) if job is not None and view.shows_bodies else None,
        "shows_bodies": view.shows_bodies,
        "parts": history.parts[:50],
        "range": query.range,
        "ranges": list(charts.RANGES),
        "tasks": [
            each | {"map": heat.handler_map(columns, each["name"])} for each in tasks[:MAX_TASKS]
        ],
        "tasks_left": max(0, len(tasks) - MAX_TASKS),
        "task": chosen,
        "task_map": heat.handler_map(columns, chosen) if chosen is not None else None,
        "classes": _classes(),
        "may_operate": view.may("operate"),
    }


def _classes() -> list[str]:
    """The classes of durations in words, the longest first."""
    bounds = list(map(words.bound, WAIT_BOUNDS))
    return [f"over {bounds[-1]}", *(f"under {bound}" for bound in reversed(bounds))]


def _job(view: View, query: JobQuery) -> JobState:
    topic = check_topic(query.topic) if query.topic else None
    return job_of(view.runtime, query.id, topic).state()


def _graph(view: View, job: JobState | None) -> flow_graph.Graph | None:
    """The flow that the job is in; it is read once a second at most."""
    if job is None or job.topic is None or job.is_over:
        return None
    job_id, topic = job.id, job.topic
    return view.reader.once(
        ("flow", topic, job_id), lambda: flow_graph.graph_of(view.engine, job_id, topic)
    )


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
    fragments=("found", "tasks", "parts"),
    is_whole=True,
)
