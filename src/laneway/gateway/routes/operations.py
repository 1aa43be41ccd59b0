"""Operations: what they have done so far, how to stop them, and the one that checks the store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from laneway.admin import subscriptions, workers
from laneway.engines.base import DoctorStep, FullEngine
from laneway.gateway import operations
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.login.access import Scope
from laneway.gateway.problems import Problem
from laneway.gateway.schema import OperationAnswer, OperationBegun, OperationsAnswer
from laneway.gateway.wire import encode, operation_answer


def list_operations(call: Call) -> OperationsAnswer:
    """
    List operations, the newest first: those that run, and the last 100.

    A token without the scope sees those that it began.
    """
    found = [
        operation_answer(operation_id, operation)
        for operation_id, operation in operations.newest(call.engine)
        if _is_allowed(call, operation, "read")
    ]
    limit: int = call.query.limit
    return OperationsAnswer(found[:limit], len(found) > limit)


def show_operation(call: Call) -> OperationAnswer:
    """Show how far an operation is."""
    operation_id = call.parameters["id"]
    return operation_answer(operation_id, _found(call, "read"))


def stop_operation(call: Call) -> OperationAnswer:
    """
    Stop an operation after its present step. What it has done stays. One that has ended stays as
    it is.
    """
    _found(call, "operate")
    operation_id = call.parameters["id"]
    operation = operations.stop(call.engine, operation_id)
    if operation is None:
        raise _missing(operation_id)
    return operation_answer(operation_id, operation)


def begun(call: Call, operation_id: str, answer: msgspec.Struct) -> Response:
    """The answer (202) to a request that has begun an operation, with its URL."""
    return Response(
        202,
        encode(answer),
        headers=[(b"location", call.request.url(f"/v1/operations/{operation_id}").encode())],
    )


def _found(call: Call, scope: Scope) -> operations.Operation:
    operation_id = call.parameters["id"]
    is_id = operation_id.isascii() and operation_id.isalnum() and len(operation_id) <= 40
    operation = operations.find(call.engine, operation_id) if is_id else None
    if operation is None or not _is_allowed(call, operation, scope):
        raise _missing(operation_id)
    return operation


def _is_allowed(call: Call, operation: operations.Operation, scope: Scope) -> bool:
    """Whether the caller has begun the operation, or its scope and topics include it."""
    caller = call.caller
    if caller.token is not None and operation.token == caller.token:
        return True
    if scope not in caller.scopes:
        return False
    return caller.sees_all or (operation.topic is not None and caller.covers(operation.topic))


def _missing(operation_id: str) -> Problem:
    return Problem("not-found", f'there is no operation with the id "{operation_id[:80]}"')


# The doctor


WRITTEN_SECONDS = 0.5
"""How often the progress is stored."""


def begin_doctor(call: Call) -> Response:
    """
    Check in the background (202) that the store's counters and indexes agree, as `laneway doctor`.

    It reads during normal work, in small steps, and repairs nothing. `/v1/operations/{id}` shows
    how far it is, and its findings. One at a time: if one runs, the answer is its id.
    """
    if not hasattr(call.engine, "doctor_steps"):
        raise Problem("bad-request", "this engine cannot be checked in steps; run `laneway doctor`")
    operation_id = _running(call.engine)
    if operation_id is None:
        operation_id = call.services.operations.begin(call.caller, "doctor", _doctor_steps)
    return begun(call, operation_id, OperationBegun(operation_id))


def _running(engine: FullEngine) -> str | None:
    for operation_id, operation in operations.newest(engine):
        if operation.kind == "doctor" and operation.state == "running":
            return operation_id
    return None


def _doctor_steps(engine: FullEngine, pause: operations.Pause) -> Iterator[DoctorStep]:
    written_at = 0.0
    for step in engine.doctor_steps(pause):
        if step.checks:
            checks = list(step.checks)
            if all(check.ok for check in checks):  # else the list may not be readable
                checks += [workers.check(engine), *subscriptions.check(engine)]
            yield DoctorStep(step.done, step.total, checks)
        elif time.monotonic() - written_at >= WRITTEN_SECONDS:
            written_at = time.monotonic()
            yield step
