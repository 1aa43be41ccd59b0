"""A stream of deliveries: server-sent events, with at most the client's credit unsettled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from laneway.delivery import Wanted, lease_batch, priorities as priorities_of
from laneway.engines.base import Queue
from laneway.gateway.call import Call
from laneway.gateway.http import Stream
from laneway.gateway.routes.consuming import check_shared, seen, wanted_of
from laneway.gateway.schema import MAX_LEASE, StreamQuery
from laneway.gateway.wire import delivery_of, encode
from laneway.message import Batch, Settlement

PING_SECONDS = 15.0
"""How often something is sent, so that proxies keep the connection."""

PING = b": ping\n\n"


async def stream(call: Call) -> Stream:
    """
    Lease messages as they come, as server-sent events `delivery`.

    At most `credit` are unsettled at any time; settling them at this gateway makes room. When the
    client goes, what it has not settled is released.
    """
    query: StreamQuery = call.query
    topics = None if query.topics is None else query.topics.split(",")
    wanted = wanted_of(
        call, query.pool, topics, query.lease, priorities_of(query.priority, query.max_priority)
    )
    await check_shared(call, wanted)
    call.services.waits.check(call.caller)
    return Stream(_events(call, wanted, query.credit), b"text/event-stream")


async def _events(call: Call, wanted: Wanted, size: int) -> AsyncIterator[bytes]:
    services, request = call.services, call.request
    key = await services.receipt_key(call.caller)
    credit = services.credits.open(size)
    with services.waits.of(call.caller, "stream"):
        try:
            yield PING  # the client sees that it is connected
            while not services.is_stopping:
                room = credit.room()
                if not room:
                    with services.ended_by(credit.note):
                        await request.while_there(credit.wait(PING_SECONDS))
                    if not credit.room():
                        yield PING
                    continue
                batch = await request.while_there(_lease(call, wanted, min(room, MAX_LEASE)))
                if not batch.leases:
                    yield PING
                    continue
                credit.add(batch)
                for each in batch.leases:
                    yield b"event: delivery\ndata: " + encode(delivery_of(each, key)) + b"\n\n"
        finally:
            left = services.credits.close(credit)
            if left:
                services.threads.submit(_release, services.runtime.engine, left)


async def _lease(call: Call, wanted: Wanted, count: int) -> Batch:
    services = call.services
    batch = await services.run(lease_batch, call.engine, wanted, count, call.holder)
    if not batch.leases:
        polls = services.long_polls
        batch = await polls.lease(wanted, count, PING_SECONDS, call.caller, call.holder)
    return batch if call.caller.sees_all else seen(call, batch)


def _release(engine: Queue, leases: Sequence[tuple[int, int]]) -> None:
    engine.settle([Settlement(handle, fence, "release") for handle, fence in leases])
