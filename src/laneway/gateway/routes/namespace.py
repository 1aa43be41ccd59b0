"""The namespace as a whole, and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway import arguments
from laneway.admin.workers import command, info_of
from laneway.gateway.schema import OverviewAnswer, WorkerAnswer, WorkerCommandAnswer, WorkersAnswer
from laneway.gateway.wire import moment, tier_answer
from laneway.units import SECOND

if TYPE_CHECKING:
    from laneway.engines.base import WorkerView
    from laneway.gateway.call import Call
    from laneway.gateway.schema import WorkerCommandQuery, WorkersQuery
    from laneway.working.commands import WorkerCommand


def overview(call: Call) -> OverviewAnswer:
    """Show the totals of the namespace. The cost does not depend on the number of topics."""
    call.caller.check_everything()
    found = call.engine.overview()
    same = {
        name: getattr(found, name)
        for name in OverviewAnswer.__struct_fields__
        if name not in ("now", "tiers")
    }
    return OverviewAnswer(
        now=moment(found.now_us), tiers=[tier_answer(tier) for tier in found.tiers], **same
    )


def list_workers(call: Call) -> WorkersAnswer:
    """List the workers by id, as of their last heartbeats."""
    call.caller.check_everything()
    query: WorkersQuery = call.query
    pool = None if query.pool is None else arguments.pool("workers", query.pool)
    after = "" if query.after is None else arguments.name("workers", "after", query.after)
    page = call.engine.workers(limit=query.limit, after=after, pool=pool)
    is_full = len(page) == query.limit
    return WorkersAnswer(
        [_worker_answer(worker) for worker in page], page[-1].facts.id if is_full else None
    )


def drain_worker(call: Call) -> WorkerCommandAnswer:
    """Tell a worker to take no more messages, to finish those that run, and to end."""
    return _command(call, "drain")


def dump_stacks(call: Call) -> WorkerCommandAnswer:
    """Show what a worker does: its messages, and the stack of each thread and coroutine."""
    return _command(call, "stack_dump")


def _command(call: Call, what: WorkerCommand) -> WorkerCommandAnswer:
    call.caller.check_everything()
    query: WorkerCommandQuery = call.query
    worker_id = arguments.name("workers", "the id", call.parameters["id"])
    return WorkerCommandAnswer(worker_id, command(call.engine, worker_id, what, query.timeout))


def _worker_answer(worker: WorkerView) -> WorkerAnswer:
    found = info_of(worker)
    fields = {name: getattr(found, name) for name in WorkerAnswer.__struct_fields__}
    oldest = worker.facts.oldest
    fields |= {
        "oldest_since": None if oldest is None else moment(oldest.since_us),
        "started": moment(round(found.started * SECOND)),
        "last_heartbeat": moment(round(found.last_heartbeat * SECOND)),
    }
    return WorkerAnswer(**fields)
