"""The doctor: check the store in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from laneway.admin import subscriptions, workers
from laneway.engines.base import DoctorStep, FullEngine
from laneway.gateway import operations
from laneway.gateway.problems import Problem
from laneway.gateway.routes.operations import begun
from laneway.gateway.schema import OperationBegun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laneway.gateway.call import Call
    from laneway.gateway.http import Response
    from laneway.gateway.operations import Pause

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
        operation_id = call.services.operations.begin(call.caller, "doctor", _steps)
    return begun(call, operation_id, OperationBegun(operation_id))


def _running(engine: FullEngine) -> str | None:
    for operation_id, operation in operations.newest(engine):
        if operation.kind == "doctor" and operation.state == "running":
            return operation_id
    return None


def _steps(engine: FullEngine, pause: Pause) -> Iterator[DoctorStep]:
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
