"""Jobs (calls of tasks) and schedules."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import msgspec

from laneway import arguments
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    NULL,
    CancelAnswer,
    JobAnswer,
    JobQuery,
    JobWaitQuery,
    ListQuery,
    ReceiptAnswer,
    RemovedAnswer,
    ScheduleAnswer,
    ScheduleBody,
    SchedulesAnswer,
    StoredAnswer,
)
from laneway.gateway.wire import checked_json, encode, moment
from laneway.message import Message
from laneway.policy import check_topic
from laneway.schedules import store
from laneway.tasks.job import Job, JobState, job_of
from laneway.units import SECOND

MAX_WAIT = 60.0


# Jobs


def show_job(call: Call) -> JobAnswer:
    """Show a job: its status, and its result or error if it has ended."""
    return _answer(call, _job(call).state())


async def wait_for_job(call: Call) -> Response:
    """Wait until a job has ended, at most `timeout`, and show it."""
    query: JobWaitQuery = call.query
    seconds = arguments.seconds("job", "timeout", query.timeout)
    if seconds > MAX_WAIT:
        raise Problem("bad-request", f"query: timeout: expected at most {MAX_WAIT:g} s")
    job = _job(call)
    await call.services.run(_answer, call, await job.astate())  # if it is hidden, not a wait either
    call.services.waits.check(call.caller)
    with call.services.waits.of(call.caller, "job"):
        state = await call.request.while_there(_last_state(call, job, seconds))
    return Response(200, encode(await call.services.run(_answer, call, state)))


async def _last_state(call: Call, job: Job[Any], seconds: float) -> JobState:
    state: JobState = await job.astate()
    if state.status == "unknown" or state.is_over:
        return state
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds) as limit:
            with call.services.ended_by(functools.partial(limit.reschedule, 0.0)):
                async for each in job.awatch():
                    state = each
    return state


def cancel_job(call: Call) -> CancelAnswer:
    """Cancel a job, whatever it waits for; a running one is stopped."""
    job = _job(call)
    _answer(call, job.state())
    return CancelAnswer(job.cancel())


def _job(call: Call) -> Job[Any]:
    query: JobQuery = call.query
    topic = None if query.topic is None else check_topic(query.topic)
    if topic is not None:
        call.caller.check_topic(topic)
    job_id = arguments.name("job", "the id", call.parameters["id"])
    return job_of(call.services.runtime, job_id, topic)


def _answer(call: Call, state: JobState) -> JobAnswer:
    is_seen = call.caller.sees_all or (state.topic is not None and call.caller.covers(state.topic))
    if state.status == "unknown" or not is_seen:
        raise Problem(
            "not-found",
            f'no job with the id "{state.id[:80]}" is stored; an id that you chose, or of a flow,'
            " needs ?topic=",
        )
    result = _json_of(state.result) if call.shows_bodies else NULL
    return JobAnswer(
        id=state.id,
        topic=state.topic,
        status=state.status,
        result=result,
        info=_json_of(state.info) if call.shows_bodies else NULL,
        error=state.error,
        attempts=state.attempts,
        published_at=_time(state.published_at),
        finished_at=_time(state.finished_at),
    )


def _time(seconds: float | None) -> Any:
    return None if seconds is None else moment(round(seconds * SECOND))


def _json_of(value: Any) -> msgspec.Raw:
    """A result as JSON; one that JSON cannot hold as its text."""
    try:
        return msgspec.Raw(encode(value))
    except (TypeError, ValueError, RecursionError):
        return msgspec.Raw(encode(f"{value!r:.1000}"))


# Schedules


def list_schedules(call: Call) -> SchedulesAnswer:
    """List the schedules by name: rule, next firing, and whether they are paused."""
    query: ListQuery = call.query
    page = store.planned(call.engine, query.limit, query.after)
    return SchedulesAnswer(
        [_schedule(each) for each in page],
        page[-1].name if len(page) == query.limit else None,
    )


def set_schedule(call: Call) -> StoredAnswer:
    """
    Store a schedule that publishes a message again and again.

    Give one of `every`, `cron` and `at`. `is_new` is false if the store has exactly this schedule.
    """
    body: ScheduleBody = call.body
    content = msgspec.json.decode(checked_json(body.topic, body.body))
    message = Message(check_topic(body.topic), content, body.key, headers=body.headers)
    given = {name: getattr(body, name) for name in ("every", "cron", "at", "timezone", "missed")}
    options: store.Options = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    schedule = store.declared("schedule", call.parameters["name"], message, options)
    return StoredAnswer(store.put(call.engine, schedule))


def remove_schedule(call: Call) -> RemovedAnswer:
    """Remove a schedule. A program that declares it stores it again when its worker starts."""
    return RemovedAnswer(store.remove(call.engine, _name(call)))


def pause_schedule(call: Call) -> ScheduleAnswer:
    """Pause a schedule."""
    return _set_paused(call, paused=True)


def resume_schedule(call: Call) -> ScheduleAnswer:
    """Resume a schedule; its `missed` decides about the firings in between."""
    return _set_paused(call, paused=None)


def run_schedule(call: Call) -> ReceiptAnswer:
    """Publish a schedule's message once, now. Its next firing stays as it is."""
    name = _name(call)
    receipt = store.run_now(call.engine, name)
    if receipt is None:
        raise _no_schedule(name)
    return ReceiptAnswer(receipt.id, receipt.outcome, receipt.joined, receipt.reason)


def _set_paused(call: Call, *, paused: bool | None) -> ScheduleAnswer:
    name = _name(call)
    _found(call, name)
    store.set_paused(call.engine, name, paused=paused)
    return _schedule(_found(call, name), is_paused=bool(paused))


def _found(call: Call, name: str) -> store.Planned:
    found = store.find(call.engine, name)
    if found is None:
        raise _no_schedule(name)
    return found


def _no_schedule(name: str) -> Problem:
    return Problem("not-found", f'there is no schedule "{name[:80]}"')


def _name(call: Call) -> str:
    name = arguments.name("schedule", "the name", call.parameters["name"])
    check_topic(store.PREFIX + name)
    return name


def _schedule(planned: store.Planned, *, is_paused: bool | None = None) -> ScheduleAnswer:
    fields = msgspec.structs.asdict(planned)
    if is_paused is not None:
        fields["is_paused"] = is_paused
    return ScheduleAnswer(**fields)
