"""
Streams of deliveries as server-sent events, with at most the client's credit unsettled: for any
lease, and for the one consumer of a subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from laneway import subscriptions
from laneway.cluster.consumer import Consumer
from laneway.delivery import Wanted, lease_batch, priorities as priorities_of
from laneway.engines.base import Queue
from laneway.errors import TermLost
from laneway.gateway.call import Call
from laneway.gateway.http import Stream
from laneway.gateway.problems import Problem
from laneway.gateway.routes.consuming import check_shared, seen, wanted_of
from laneway.gateway.schema import MAX_LEASE, HeldEvent, LostEvent, StreamQuery
from laneway.gateway.waiting.credits import Credit
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
                    yield _event("delivery", delivery_of(each, key))
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


# The one consumer of an exclusive or failover subscription, for as long as its stream is open
#
# The gateway holds the subscription's term for the client. It renews the term, and the leases of
# what the client has not settled. When the client goes, the next consumer takes over immediately.


T = TypeVar("T")

TERM_SECONDS = 10.0
"""How long the gateway may be out of reach of the store before another consumer takes over."""

MOST_CONSUMERS = 64
"""Most such streams of one gateway, because each has a thread."""


async def consume_subscription(call: Call) -> Stream:
    """
    Consume an exclusive or failover subscription, as its one consumer, while the stream is open.

    Server-sent events: `held`, with the `fence`, once it is; then `delivery`, as in
    `/v1/lease/stream`; `lost` at the end, if another consumer has taken over. An exclusive
    subscription that has a consumer is refused (409); for a failover one the stream waits.
    """
    services, name = call.services, call.parameters["name"]
    topic = subscriptions.topic_of(call.pattern, subscriptions.check_name(name))
    services.waits.check(call.caller)
    if services.waits.by_kind["consumer"] >= MOST_CONSUMERS:
        raise Problem(
            "rate-limited",
            f"this gateway has {MOST_CONSUMERS} consumers already; ask another one",
            headers=(("retry-after", "5"),),
        )
    consumer = Consumer(
        lambda: services.runtime.engine,
        services.runtime.threads,
        topic,
        term=TERM_SECONDS,
        wait=0.0,
        holder=call.holder,
    )
    kind = await services.run(consumer.kind)
    holder: str | None = ""
    if call.request.method != "HEAD":
        holder = await services.run(consumer.claim)
        if holder is not None and kind == "exclusive":
            raise Problem(
                "refused", f"subscription {topic}: {holder} consumes it, and it is exclusive"
            )
    return Stream(_events_of_consumer(call, consumer, is_held=holder is None), b"text/event-stream")


async def _events_of_consumer(
    call: Call, consumer: Consumer, *, is_held: bool
) -> AsyncIterator[bytes]:
    services, request = call.services, call.request
    key = await services.receipt_key(call.caller)
    credit = services.credits.open(call.query.credit)
    thread = ThreadPoolExecutor(1, thread_name_prefix="laneway-consumer")
    loop = asyncio.get_running_loop()
    with services.waits.of(call.caller, "consumer"):
        try:
            yield PING  # the client sees that it is connected
            while not (is_held or services.is_stopping):
                await request.while_there(_unless_stopped(call, asyncio.sleep(consumer.look)))
                is_held = await services.run(consumer.claim) is None
                yield PING
            if is_held:
                yield _event("held", HeldEvent(consumer.fence))
            while not services.is_stopping:
                room = _room(credit, consumer)
                if not room:
                    with services.ended_by(credit.note):
                        await request.while_there(credit.wait(consumer.look))
                    yield PING
                    continue
                lease = functools.partial(consumer.lease, min(room, MAX_LEASE), wait=PING_SECONDS)
                work = loop.run_in_executor(thread, lease)
                deliveries = await request.while_there(_unless_stopped(call, work)) or []
                for each in deliveries:
                    credit.ends[each.lease.handle, each.lease.fence] = math.inf
                for each in deliveries:
                    yield _event("delivery", delivery_of(each.lease, key))
                if not deliveries:
                    yield PING
        except TermLost as error:
            yield _event("lost", LostEvent(str(error)))
        finally:
            services.credits.close(credit)
            thread.shutdown(wait=False)
            services.threads.submit(consumer.close)


def _room(credit: Credit, consumer: Consumer) -> int:
    """How many more messages may be sent. Raises TermLost."""
    consumer.term.check()
    unsettled = consumer.unsettled()  # without those that were settled at another gateway
    credit.ends = {lease: end for lease, end in credit.ends.items() if lease in unsettled}
    return credit.room()


async def _unless_stopped(call: Call, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None if the gateway stops."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            with call.services.ended_by(functools.partial(limit.reschedule, 0.0)):
                return await work
    return None


def _event(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode(data))
