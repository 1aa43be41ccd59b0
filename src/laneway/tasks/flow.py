"""
How tasks follow each other: a task that others come before is a message that waits for their
signals, put into the store before they begin.

Whoever ends, signals those behind it in the same step as its own end, so a crash between the two
neither loses nor doubles a step. A signal carries the result; it counts once for each number. A
failure is a signal too: those behind fail with it, and pass it on.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from laneway import codec
from laneway.engines.base import ENDED, FLOW_HEADER, SIGNALS_HEADER
from laneway.errors import DependencyFailed
from laneway.message import Draft
from laneway.tasks import outcomes
from laneway.working.error_details import Details
from laneway.working.handler import Handler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway.message import Lease, Settlement
    from laneway.tasks.outcomes import Outcome


OPEN = "laneway.open"
"""The task of messages that open a flow, or end it."""

OPENED = 0
"""Number of a signal that carries no result."""

log = logging.getLogger("laneway.worker")


class Target(msgspec.Struct, array_like=True, frozen=True):
    """
    A message that waits: where it is, and as the how manieth of its signals this one counts. `key`:
    it finds its partition.
    """

    topic: str
    id: str
    number: int
    key: str | None = None
    allows_failure: bool = False


class Follower(msgspec.Struct, omit_defaults=True):
    """A call that is published when a task fails for good; its id makes it once."""

    topic: str
    id: str
    body: Any
    headers: dict[str, str] = {}
    key: str | None = None


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """
    A call with which a flow begins: it waits for one signal until the flow opens, see `whole`. With
    its own delay, time and ttl.
    """

    topic: str
    id: str
    key: str | None = None
    delay_us: int = 0
    at_us: int | None = None
    ttl_us: int | None = None


class Flow(msgspec.Struct, omit_defaults=True):
    """
    What a task's body says of the others around it.

    `then`: who is signalled when it ends. `takes`: what of those before it goes first among its
    arguments: "one" result, "all" as a list, or nothing; `shape`: how that list is nested, None for
    each result. `allows_failure`: it runs also where one of them failed. `errors`: what is called
    when it fails.
    """

    then: list[Target] = []
    takes: str | None = None
    shape: list[Any] | None = None
    allows_failure: bool = False
    errors: list[Follower] = []
    opens: list[Opening] = []
    """Of an opener: what begins when it has run."""
    others: list[Target] = []
    """Of an opener: what ends, as `opens` do, if the flow never opens."""


class Opener(msgspec.Struct, omit_defaults=True):
    """
    The body of a message that opens a flow. `fails`: why it does not. `size`: of the root, the
    calls of the flow.
    """

    flow: Flow
    fails: str | None = None
    size: int = 0


class Signal(msgspec.Struct, omit_defaults=True):
    """How one before it ended."""

    number: int
    id: str
    status: str
    result: Any = None
    pickled: str | None = None
    error: Details | None = None
    reason: str | None = None
    tagged: bool = False


class _Body(msgspec.Struct):
    flow: Flow | None = None


_flow_of_body = msgspec.json.Decoder(_Body).decode
_signal = msgspec.json.Decoder(Signal).decode
_opener = msgspec.json.Decoder(Opener).decode
encode = msgspec.json.Encoder(enc_hook=codec.plain).encode


def of(body: bytes, headers: dict[str, str] | None) -> Flow | None:
    """What a body says of its flow; None where it belongs to none."""
    if headers is None or FLOW_HEADER not in headers:
        return None
    try:
        return _flow_of_body(body).flow
    except (ValueError, RecursionError):  # the body is not JSON, or not ours
        return None


def signals_of(lease: Lease) -> list[Signal]:
    """What came of those before it, in their order."""
    if lease.headers is None or SIGNALS_HEADER not in lease.headers or lease.bodies is None:
        return []
    signals = sorted(map(_signal, lease.bodies[1:]), key=lambda signal: signal.number)
    return [
        signal for signal in signals if signal.number != OPENED or signal.status != outcomes.SUCCESS
    ]


def results_of(flow: Flow, signals: Sequence[Signal], read: Any) -> tuple[Any, ...]:
    """What of them goes first among the arguments. Raises DependencyFailed."""
    failed = next((signal for signal in signals if signal.status != outcomes.SUCCESS), None)
    if failed is not None and not flow.allows_failure:
        raise failed_before(failed)
    if flow.takes is None:
        return ()
    found = [read(signal) for signal in signals]
    if flow.shape is not None:
        found = shaped(flow.shape, iter(found))
    return (found,) if flow.takes == "all" else (found[0],)


def shaped(shape: list[Any], values: Iterator[Any]) -> list[Any]:
    """The values nested as the shape is, which has a None for each."""
    return [
        shaped(each, values) if isinstance(each, list) else next(values, None) for each in shape
    ]


def failed_before(signal: Signal) -> DependencyFailed:
    """What a task fails with whose dependency did."""
    details = signal.error
    if details is None:
        told = f"job {signal.id}: {signal.reason or signal.status}"
        details = Details(_ENDS.get(signal.status, "laneway.errors:JobFailed"), told, args=[told])
    return DependencyFailed(
        f"job {signal.id} before it ended with {signal.status}: {details.message}", details
    )


_ENDS = {
    "cancelled": "laneway.errors:JobCancelled",
    "expired": "laneway.errors:JobExpired",
    "dead": "laneway.errors:JobDead",
}


def following(
    job_id: str, flow: Flow, ended: Outcome, *, is_own_failure: bool = True, published_us: int = 0
) -> list[Draft]:
    """
    What is put into the store with the end of a task: signals for those behind it, calls of what
    handles its error.
    """
    drafts = [signal(target, job_id, ended) for target in flow.then]
    if flow.opens or flow.others:
        drafts += _opened(job_id, flow, ended, published_us)
    if ended.status != outcomes.SUCCESS and is_own_failure:
        for follower in flow.errors:
            body = _errback(job_id, ended, follower.body)
            drafts.append(
                Draft(
                    follower.topic,
                    encode(body),
                    key=follower.key,
                    id=follower.id,
                    headers=dict(follower.headers),
                    sticky=True,
                )
            )
    return drafts


def _errback(job_id: str, ended: Outcome, body: Any) -> Any:
    """
    The body of a call that is made when a task fails: its own arguments stand behind what is told
    of the failure.
    """
    told = [job_id, *_told(ended)]
    if body is None:
        return {"args": told, "kwargs": {}}
    if not isinstance(body, dict) or "errback" not in body:
        return body
    error = msgspec.to_builtins(ended.error) if ended.error is not None else None
    return {**body, "args": [*told[: body["errback"]], *body["args"]], "error": error}


def _opened(opener_id: str, flow: Flow, ended: Outcome, published_us: int) -> list[Draft]:
    if ended.status == outcomes.SUCCESS:
        return [opening_signal(opening, opener_id, published_us) for opening in flow.opens]
    targets = [Target(opening.topic, opening.id, 1, opening.key) for opening in flow.opens]
    return [signal(target, opener_id, ended) for target in (*targets, *flow.others)]


def opening_signal(opening: Opening, opener_id: str, published_us: int = 0) -> Draft:
    """
    The one signal for which a call waits with which a flow begins. A delay counts from when the
    flow was published.
    """
    body = encode(Signal(OPENED, opener_id, outcomes.SUCCESS))
    made = Draft(opening.topic, body, key=opening.key, id=opening.id, signal=1)
    made.at_us, made.ttl_us = opening.at_us, opening.ttl_us
    if opening.delay_us and made.at_us is None:
        made.at_us = published_us + opening.delay_us
    return made


def _told(ended: Outcome) -> tuple[str, str]:
    """
    What an error handler is called with behind the job's id: the error in one line, and its
    traceback.
    """
    if ended.error is None:
        return ended.reason or ended.status, ""
    return f"{ended.error.type.rpartition(':')[2]}: {ended.error.message}", ended.error.traceback


def signal(target: Target, job_id: str, ended: Outcome) -> Draft:
    """What a target is told; a failure that it does not allow ends its waiting at once."""
    number = target.number if ended.status == outcomes.SUCCESS or target.allows_failure else 0
    said = Signal(
        target.number,
        job_id,
        ended.status,
        ended.result,
        ended.pickled,
        ended.error,
        ended.reason,
        ended.tagged,
    )
    return Draft(target.topic, encode(said), key=target.key, id=target.id, signal=number)


class _EndNotice(msgspec.Struct):
    """The body of a message that says how another message ended."""

    id: str
    outcome: outcomes.Outcome
    body: _Body | None = None
    followers: list[Target] = []


_end_notice = msgspec.json.Decoder(_EndNotice).decode


class FlowHandler(Handler):
    """
    Handles messages of the flows themselves. Running them does nothing; their end publishes signals
    in the same step.
    """

    what: str
    """What the body is, for the reason of a dead letter whose body cannot be read."""

    def __init__(self, topic: str, name: str) -> None:
        super().__init__(_do_nothing, topic, name=name)

    def arguments(self, lease: Lease) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """No arguments."""
        del lease
        return (), {}

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> list[Draft]:
        """The signals to publish with the end; a body that cannot be read is a dead letter."""
        del returned, error
        try:
            return self.signals(lease)
        except (ValueError, RecursionError) as fault:
            settlement.action, settlement.reason = "dead", f"the body is no {self.what}: {fault}"
            return []

    def signals(self, lease: Lease) -> list[Draft]:
        """The signals to publish. Raises ValueError or RecursionError for a wrong body."""
        raise NotImplementedError


class EndedHandler(FlowHandler):
    """
    Signals the end of a message to its followers, if no handler did it, or if they were added after
    the message was published.
    """

    what = "end notice"

    def __init__(self) -> None:
        super().__init__("laneway.ended", ENDED)

    def signals(self, lease: Lease) -> list[Draft]:
        """Signals for the followers, and for the calls behind it in its flow."""
        notice = _end_notice(lease.body)
        drafts = [signal(target, notice.id, notice.outcome) for target in notice.followers]
        if notice.body is not None and notice.body.flow is not None:
            drafts += following(
                notice.id,
                notice.body.flow,
                notice.outcome,
                is_own_failure=notice.outcome.status != outcomes.CANCELLED,
            )
        return drafts


class OpenHandler(FlowHandler):
    """Opens a flow that was stored in several steps, or ends it; see `laneway.tasks.whole`."""

    what = "opener of a flow"

    def __init__(self) -> None:
        super().__init__(OPEN, OPEN)

    def signals(self, lease: Lease) -> list[Draft]:
        """Signals for the calls that begin the flow, or for all calls if it does not open."""
        opener, received = _opener(lease.body), signals_of(lease)
        failed = next((signal for signal in received if signal.status != outcomes.SUCCESS), None)
        if failed is not None:
            ended = outcomes.Outcome(status=failed.status, error=failed.error, reason=failed.reason)
        elif opener.fails is not None:
            ended = outcomes.Outcome(status=outcomes.EXPIRED, reason=opener.fails)
        else:
            ended = outcomes.Outcome(status=outcomes.SUCCESS)
        if opener.size and ended.status != outcomes.SUCCESS:
            log.warning(
                "flow %s of %d calls, topic %s: %s",
                lease.id,
                opener.size,
                lease.topic,
                ended.reason or ended.status,
            )
        return following(lease.id, opener.flow, ended, published_us=lease.published_us)


async def _do_nothing() -> None:
    """The handler's function; the signals are published with its end."""
