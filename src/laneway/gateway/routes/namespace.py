"""The namespace as a whole, and its workers."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway import arguments
from laneway.admin.workers import command, info_of
from laneway.engines.base import WorkerView
from laneway.gateway.call import Call
from laneway.gateway.http import Stream
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    HistoryAnswer,
    HistoryPartAnswer,
    HistoryQuery,
    HistoryRowAnswer,
    OverviewAnswer,
    WaitingTimesAnswer,
    WorkerAnswer,
    WorkerCommandAnswer,
    WorkerCommandQuery,
    WorkersAnswer,
    WorkersQuery,
)
from laneway.gateway.wire import moment, overview_answer, past_us
from laneway.history import figures
from laneway.units import SECOND
from laneway.working.commands import WorkerCommand

DEFAULT_US = 3600 * SECOND
"""How much of the history is shown unless `from` is given."""


def overview(call: Call) -> OverviewAnswer:
    """Show the totals of the namespace. The cost does not depend on the number of topics."""
    return overview_answer(call.engine.overview())


def show_history(call: Call) -> HistoryAnswer:
    """
    Show what was published, delivered and done, in intervals, and how long messages waited.

    For a pattern, only if a policy has it, because only then its topics are counted separately; for
    a topic, only if its policy has `history`.
    """
    query: HistoryQuery = call.query
    engine = call.engine
    now_us = engine.time_us()
    to_us = now_us if query.to is None else past_us("to", query.to, now_us)
    from_us = to_us - DEFAULT_US if query.from_ is None else past_us("from", query.from_, now_us)
    if to_us <= from_us:
        raise Problem(
            "bad-request", f'query: "to" must be after "from" ({query.from_})', pointer="#/to"
        )
    found = figures.read(
        engine,
        last=(now_us - from_us) / SECOND,
        step=arguments.seconds_or_none("history", "step", query.step),
        tier=query.tier,
        pattern=arguments.name("history", "pattern", query.pattern),
    )
    rows = [row for row in found.rows if row.start * SECOND < to_us]
    same = ("step", "waiting", "oldest", "inflow", "outflow", "drain_seconds", "max_backlog")
    return HistoryAnswer(
        now=moment(round(found.now * SECOND)),
        rows=[HistoryRowAnswer(**_row(row)) for row in rows],
        parts=[HistoryPartAnswer(**_row(part)) for part in found.parts],
        noisy=WaitingTimesAnswer(found.noisy.bounds, found.noisy.counts),
        others=WaitingTimesAnswer(found.others.bounds, found.others.counts),
        full_topic=found.full_topic,
        full_seconds=found.full_seconds,
        **{name: getattr(found, name) for name in same},
    )


def _row(row: figures.HistoryRow) -> dict[str, Any]:
    return {**msgspec.structs.asdict(row), "start": moment(round(row.start * SECOND))}


def list_workers(call: Call) -> WorkersAnswer:
    """List the workers by id, as of their last heartbeats."""
    query: WorkersQuery = call.query
    pool = None if query.pool is None else arguments.pool("workers", query.pool)
    after = "" if query.after is None else arguments.name("workers", "after", query.after)
    page = call.engine.workers(limit=query.limit, after=after, pool=pool)
    is_full = len(page) == query.limit
    return WorkersAnswer(
        [_worker_answer(worker) for worker in page], page[-1].facts.id if is_full else None
    )


def drain_worker(call: Call) -> WorkerCommandAnswer:
    """Tell a worker to lease no more messages, finish those that run, and exit."""
    return _command(call, "drain")


def dump_stacks(call: Call) -> WorkerCommandAnswer:
    """Show what a worker does: its messages, and the stack of each thread and coroutine."""
    return _command(call, "stack_dump")


def _command(call: Call, what: WorkerCommand) -> WorkerCommandAnswer:
    query: WorkerCommandQuery = call.query
    worker_id = arguments.name("workers", "the id", call.parameters["id"])
    return WorkerCommandAnswer(worker_id, command(call.engine, worker_id, what, query.timeout))


def _worker_answer(worker: WorkerView) -> WorkerAnswer:
    oldest = worker.facts.oldest
    times = {
        "oldest_since": None if oldest is None else moment(oldest.since_us),
        "started": moment(worker.started_us),
        "last_heartbeat": moment(worker.beat_us),
    }
    return WorkerAnswer(**(msgspec.structs.asdict(info_of(worker)) | times))


# What happens, as it happens


SCOPES = {"endpoint": "endpoints", "change": "admin"}
"""Events that need more than the scope `read`."""


async def stream_events(call: Call) -> Stream:
    """
    Show what happens, as server-sent events: `overview` each second; `operation`, each time when
    one is further; with the scope `endpoints` what happens to an `endpoint`, and with the scope
    `admin` each `change` through the API.
    """
    caller = call.caller
    call.services.waits.check(caller)
    kinds = ["operation", *(kind for kind, scope in SCOPES.items() if scope in caller.scopes)]
    events = call.services.feed.events(call.request, caller, kinds)
    return Stream(events, b"text/event-stream")
