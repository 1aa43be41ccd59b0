"""Operations: what they have done so far, and how to stop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.gateway import operations
from laneway.gateway.http import Response
from laneway.gateway.problems import Problem
from laneway.gateway.schema import OperationAnswer, OperationsAnswer
from laneway.gateway.wire import encode, operation_answer

if TYPE_CHECKING:
    import msgspec

    from laneway.gateway.call import Call
    from laneway.gateway.login.access import Scope
    from laneway.gateway.operations import Operation


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


def _found(call: Call, scope: Scope) -> Operation:
    operation_id = call.parameters["id"]
    is_id = operation_id.isascii() and operation_id.isalnum() and len(operation_id) <= 40
    operation = operations.find(call.engine, operation_id) if is_id else None
    if operation is None or not _is_allowed(call, operation, scope):
        raise _missing(operation_id)
    return operation


def _is_allowed(call: Call, operation: Operation, scope: Scope) -> bool:
    """Whether the caller has begun the operation, or its scope and topics include it."""
    caller = call.caller
    if caller.token is not None and operation.token == caller.token:
        return True
    if scope not in caller.scopes:
        return False
    return caller.sees_all or (operation.topic is not None and caller.covers(operation.topic))


def _missing(operation_id: str) -> Problem:
    return Problem("not-found", f'there is no operation with the id "{operation_id[:80]}"')
