"""
How tasks follow each other: a task that follows others is a message that waits for their signals.
It is stored before they start.

A task signals the tasks after it in the same step as its own end, so a crash neither loses nor
repeats a step. A signal carries the result and counts once for each number. A failure is a signal,
too: the tasks after it fail with it, and signal their own failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from laneway import codec
from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER
from laneway.errors import DependencyFailed
from laneway.message import Draft, Lease, Settlement
from laneway.policy import check_publish_topic
from laneway.tasks import outcomes
from laneway.tasks.outcomes import Outcome
from laneway.working.error_details import Details
from laneway.working.handler import Handler

OPEN = "laneway.open"
"""The task of messages that open a flow, or end it."""

OPENED = 0
"""The number of a signal without a result."""

log = logging.getLogger("laneway.worker")


class Target(msgspec.Struct, array_like=True, frozen=True):
    """
    A waiting message. `number`: which of its signals this one is. `key`: selects its partition.
    `allows_failure`: a failure counts as any signal.
    """

    topic: str
    id: str
    number: int
    key: str | None = None
    allows_failure: bool = False


class Follower(msgspec.Struct, omit_defaults=True):
    """A call that is published when a task fails permanently; its id makes the publish unique."""

    topic: str
    id: str
    body: Any
    headers: dict[str, str] = {}
    key: str | None = None


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """
    A call that starts a flow. It waits for one signal until the flow opens, see
    `laneway.tasks.flow_storage`. It has its own delay, time and ttl.
    """

    topic: str
    id: str
    key: str | None = None
    delay_us: int = 0
    at_us: int | None = None
    ttl_us: int | None = None


class Flow(msgspec.Struct, omit_defaults=True):
    """
    What a task's message stores about the other calls of its flow.

    `then`: the targets of the signals of its end. `takes`: the results that become its first
    arguments: "one" result, "all" as a list, or none. `shape`: how that list is nested, None for
    each result. `allows_failure`: it also runs if one before it failed. `errors`: the calls to make
    if it fails. `opens`: of an opener, the calls that start. `others`: of an opener, the other
    calls, which end with it if the flow never opens.
    """

    then: list[Target] = []
    takes: str | None = None
    shape: list[Any] | None = None
    allows_failure: bool = False
    errors: list[Follower] = []
    opens: list[Opening] = []
    """For an opener: the calls that start when it has run."""
    others: list[Target] = []
    """For an opener: the other calls. They end, as `opens` do, if the flow never opens."""


class Opener(msgspec.Struct, omit_defaults=True):
    """
    The body of a message that opens a flow. `fails`: why the flow does not open. `size`: of the
    root, the number of calls in the flow.
    """

    flow: Flow
    fails: str | None = None
    size: int = 0


class Signal(msgspec.Struct, omit_defaults=True):
    """How a call before this one ended."""

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
    """The flow of a body; None if the message is in no flow."""
    if headers is None or FLOW_HEADER not in headers:
        return None
    try:
        return _flow_of_body(body).flow
    except (ValueError, RecursionError):  # the body is not JSON, or not ours
        return None


def signals_of(lease: Lease) -> list[Signal]:
    """The signals that a message received, in the order of their numbers."""
    if lease.headers is None or SIGNALS_HEADER not in lease.headers or lease.bodies is None:
        return []
    signals = sorted(map(_signal, lease.bodies[1:]), key=lambda signal: signal.number)
    return [
        signal for signal in signals if signal.number != OPENED or signal.status != outcomes.SUCCESS
    ]


def results_of(flow: Flow, signals: Sequence[Signal], read: Any) -> tuple[Any, ...]:
    """The results that become the first arguments. Raises DependencyFailed."""
    failed = next((signal for signal in signals if signal.status != outcomes.SUCCESS), None)
    if failed is not None and not flow.allows_failure:
        raise failed_before(failed)
    if flow.takes is None:
        return ()
    results = [read(signal) for signal in signals]
    if flow.shape is not None:
        results = shaped(flow.shape, iter(results))
    return (results,) if flow.takes == "all" else (results[0],)


def shaped(shape: list[Any], values: Iterator[Any]) -> list[Any]:
    """The values, nested as the shape, which has a None for each."""
    return [
        shaped(each, values) if isinstance(each, list) else next(values, None) for each in shape
    ]


def failed_before(signal: Signal) -> DependencyFailed:
    """The error of a task behind a failed one."""
    details = signal.error
    if details is None:
        text = f"job {signal.id}: {signal.reason or signal.status}"
        details = Details(_ENDS.get(signal.status, "laneway.errors:JobFailed"), text, args=[text])
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
    The messages to publish with the end of a task: signals for the tasks after it, and calls of
    its error handlers. Raises BadMessage if one names no valid topic: another program wrote it.
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
    for draft in drafts:
        check_publish_topic(draft.topic)
    return drafts


def _errback(job_id: str, ended: Outcome, body: Any) -> Any:
    """The body of an error handler's call: arguments about the failure, then its own."""
    failure = [job_id, *_error_of(ended)]
    if body is None:
        return {"args": failure, "kwargs": {}}
    if not isinstance(body, dict) or "errback" not in body:
        return body
    error = msgspec.to_builtins(ended.error) if ended.error is not None else None
    return {**body, "args": [*failure[: body["errback"]], *body["args"]], "error": error}


def _opened(opener_id: str, flow: Flow, ended: Outcome, published_us: int) -> list[Draft]:
    if ended.status == outcomes.SUCCESS:
        return [opening_signal(opening, opener_id, published_us) for opening in flow.opens]
    targets = [Target(opening.topic, opening.id, 1, opening.key) for opening in flow.opens]
    return [signal(target, opener_id, ended) for target in (*targets, *flow.others)]


def opening_signal(opening: Opening, opener_id: str, published_us: int = 0) -> Draft:
    """
    The signal that starts a call of the flow. Its delay counts from when the flow was published.
    """
    body = encode(Signal(OPENED, opener_id, outcomes.SUCCESS))
    draft = Draft(opening.topic, body, key=opening.key, id=opening.id, signal=1)
    draft.at_us, draft.ttl_us = opening.at_us, opening.ttl_us
    if opening.delay_us and draft.at_us is None:
        draft.at_us = published_us + opening.delay_us
    return draft


def _error_of(ended: Outcome) -> tuple[str, str]:
    """
    The arguments of an error handler behind the job's id: the error in one line, and its traceback.
    """
    if ended.error is None:
        return ended.reason or ended.status, ""
    return f"{ended.error.type.rpartition(':')[2]}: {ended.error.message}", ended.error.traceback


def signal(target: Target, job_id: str, ended: Outcome) -> Draft:
    """
    The signal for a target. A failure that the target does not allow ends its wait immediately.
    """
    number = target.number if ended.status == outcomes.SUCCESS or target.allows_failure else 0
    end = Signal(
        target.number,
        job_id,
        ended.status,
        ended.result,
        ended.pickled,
        ended.error,
        ended.reason,
        ended.tagged,
    )
    return Draft(target.topic, encode(end), key=target.key, id=target.id, signal=number)


class _EndNotice(msgspec.Struct):
    """The body of a message that reports how another message ended."""

    id: str
    outcome: outcomes.Outcome
    body: _Body | None = None
    followers: list[Target] = []


_end_notice = msgspec.json.Decoder(_EndNotice).decode


class FlowHandler(Handler):
    """
    Handles messages of the flows themselves. Running them does nothing; their end publishes signals
    in the same step.

    `what`: what the body is, for the reason of a dead letter whose body cannot be read. `signals`:
    answers them; raises MsgspecError or RecursionError for a wrong body.
    """

    adding_headers: frozenset[str] | None = None

    def __init__(
        self, topic: str, name: str, what: str, signals: Callable[[Lease], list[Draft]]
    ) -> None:
        super().__init__(_do_nothing, topic, name=name)
        self.what = what
        self.signals = signals

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
        except (msgspec.MsgspecError, RecursionError) as fault:
            settlement.action, settlement.reason = "dead", f"the body is not a {self.what}: {fault}"
            return []


def ended_signals(lease: Lease) -> list[Draft]:
    """
    Signals for the followers of a message, and for the calls after it in its flow, if no handler
    sent them, or if they were added after the message was published.
    """
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


def open_signals(lease: Lease) -> list[Draft]:
    """
    Signals for the calls that begin a flow that was stored in several steps, or for all calls if it
    does not open; see `flow_storage`.
    """
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
