"""
Refusals and reasons: what is refused, why a message died, and the constants that decide it.

Every engine answers with these texts; the Lua scripts have some of them too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from laneway import headers as control
from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER
from laneway.errors import BadMessage, UsageError
from laneway.message import Action, Draft, Receipt
from laneway.policy import Gate, Resolved
from laneway.topic_groups import GROUP
from laneway.units import SECOND, counted

MAX_WAIT_WINDOWS = 10
"""Default of `max_wait`, in windows."""

HISTORY = 20
"""Length of a message's history: its last entries are stored."""

LINGER_US = {"messages": SECOND, "time": 60 * SECOND}
"""How long an idle lane is stored, by its tier's `fair_by`."""

MAX_NAMESPACE_BYTES = 100

OWN_TOPICS = "laneway."
"""Topics of Laneway itself begin with this."""

STEP = 16
"""
Deliveries beyond what the caller can start are divided between tiers in steps of this size, so that
tiers get nearly their shares.
"""

DEFAULT_MEAN_US = SECOND
"""The duration that a message is charged in a tier that is fair by time before any is known."""

RETRIES_USED_UP = "retries used up"
"""The beginning of a dead letter's reason; the attempts and the last failure follow."""

BRIEF_BYTES = 300
"""Most bytes of an error's first line in a dead letter's reason."""

STARTED_AND_LOST = "lease ran out after its start was recorded"
DROPPED = "dropped: the backlog was full"
EXPIRED = "expired: its ttl ended before it was delivered"
NO_HANDLER = "no handler: no worker had a handler for it within on_unhandled"
REFUSED = "the handler refused it"
"""Reasons of dead letters."""

AT_MOST_ONCE = "delivered at most once, and its worker reported no result"
"""The reason in the outcome of a message whose only lease ended without an ack."""


def result_ttls_us(headers: Mapping[str, str] | None) -> tuple[int, int] | None:
    """
    How many microseconds a message's outcome is stored: after an ack, and after any other end;
    None: it is not stored.
    """
    ttls = control.result_ttls(headers)
    return None if ttls is None else (max(1, ttls[0] * SECOND), max(1, ttls[1] * SECOND))


def nobody_follows(message_id: str) -> UsageError:
    """The error for waiting for a message that does not exist or stores no outcome."""
    return UsageError(
        f"job {message_id}: it is unknown, or its result is not stored; only a job whose result is"
        " stored can be waited for"
    )


def ended(status: str, topic: str, published_us: int, reason: str | None = None) -> bytes:
    """The outcome of a message that no handler ended: "expired", "dead" or "cancelled"."""
    why = {} if reason is None else {"reason": reason}
    return msgspec.json.encode(
        {"status": status, **why, "topic": topic, "published_us": published_us}
    )


def needs(draft: Draft) -> int:
    """For how many signals a message waits. Raises BadMessage."""
    if draft.headers is None or SIGNALS_HEADER not in draft.headers:
        return 0
    control.check(draft.topic, SIGNALS_HEADER, draft.headers[SIGNALS_HEADER])
    return control.signals_needed(draft.headers)


def explicit_due(draft: Draft, now_us: int) -> int | None:
    """The due time that the publisher set; None: it set none."""
    if draft.at_us is not None:
        return max(draft.at_us, now_us)
    return now_us + draft.delay_us if draft.delay_us > 0 else None


def check_names(draft: Draft) -> None:
    """Raise BadMessage for a key or an id with NUL, which not every database can keep."""
    if "\0" in (draft.key or "") or "\0" in (draft.id or ""):
        raise BadMessage(f"message to {draft.topic}: its key and id must not contain NUL")


def may_merge(draft: Draft) -> bool:
    """
    Whether a policy may merge the message: not if it waits for signals, and not if it is a step of
    a flow, because the steps after it would never run.
    """
    headers = draft.headers
    return headers is None or not (SIGNALS_HEADER in headers or FLOW_HEADER in headers)


def check_draft(draft: Draft, policy: Resolved, now_us: int | None) -> None:
    """
    Raise BadMessage if the message cannot be published. `now_us` None: the engine checks what
    depends on its time.
    """
    if draft.key is not None or draft.id is not None:
        check_names(draft)
    if draft.signal is not None or draft.own:
        return  # small, and must not be lost
    if len(draft.body) > policy.max_body:
        raise BadMessage(
            f"message to {draft.topic}: the body has {len(draft.body):,} bytes, its policy allows"
            f" {policy.max_body:,}; send a reference to it, or raise max_body"
        )
    if draft.headers is not None and needs(draft):
        return  # its ttl begins when it has its signals
    ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
    if ttl is None or now_us is None:
        return
    expires = now_us + ttl
    due = explicit_due(draft, now_us)
    if due is not None and due >= expires:
        raise BadMessage(delay_outlasts_ttl(draft, due - now_us, expires - now_us))


def delay_outlasts_ttl(draft: Draft, delay_us: int, ttl_us: int) -> str:
    """The error of a message that expires before it is due."""
    return (
        f"message to {draft.topic}: its delay ({delay_us / 1e6:g} s) outlasts its ttl"
        f" ({ttl_us / 1e6:g} s); it would expire before it is due"
    )


def check_cost(draft: Draft, policy: Resolved, gates: Iterable[tuple[str, Gate]]) -> None:
    """
    Raise BadMessage if the message costs more than its policy or one of these gates allows.
    """
    most, name = policy.largest_cost, ""
    for gate, limits in gates:
        if limits.largest_cost < most:
            most, name = limits.largest_cost, gate
    if control.cost(draft.headers) > most:
        raise BadMessage(costs_too_much(draft, most, name))


def costs_too_much(draft: Draft, most: int, gate: str) -> str:
    """The error of a message that costs more than a gate allows, or ("") its topic's policy."""
    whose, cure = f'gate "{gate}"', "the gate's max_cost"
    if gate.startswith(GROUP):
        whose, cure = f'topic group "{gate.removeprefix(GROUP)}"', "the group's rate or burst"
    elif not gate:
        whose, cure = "its policy", "the policy's max_cost"
    return (
        f"message to {draft.topic}: its cost is {control.cost(draft.headers):,}, {whose} allows"
        f" {most:,}; divide its work among several messages, or raise {cure}"
    )


def full(whose: str, waiting: int, unit: str, limit: int) -> str:
    """
    The reason of a refusal for a backlog limit. `whose`: "topic a" or "the namespace"; `unit`:
    "messages" or "bytes".
    """
    wait = counted(waiting, f"{unit.removesuffix('s')} waits", f"{unit} wait")
    return f"{whose}: {wait}, its max_backlog is {limit:,}; consume faster, or raise the limit"


def backlog_full_with_ack(receipt: Receipt) -> str:
    """The error of a settle whose published message is refused."""
    return f"message {receipt.id}, published with an ack: {receipt.reason}; nothing was changed"


def check_namespace(name: str) -> None:
    """Raises UsageError for a name that no namespace can have."""
    if (
        not isinstance(name, str)
        or not name
        or not all(sign.isalnum() or sign in "-_" for sign in name)
    ):
        raise UsageError(f"namespace {name!r:.80}: use letters, digits, - and _ only")
    if len(name.encode()) > MAX_NAMESPACE_BYTES:  # it is part of a file name
        raise UsageError(
            f"namespace {name[:40]!r}…: the name has {len(name.encode())} bytes, at most"
            f" {MAX_NAMESPACE_BYTES} are allowed"
        )


def retries_used_up(attempts: int, error: str | None, reason: str | None = None) -> str:
    """
    The reason of a dead letter that used up its retries, with the last failure: the settlement's
    reason, else the first line of its error.
    """
    failure = reason or (brief(error) if error else "") or "failed"
    return f"{RETRIES_USED_UP} ({attempts} {'attempt' if attempts == 1 else 'attempts'}): {failure}"


def finished_without_ack(action: Action, error: str | None, reason: str | None) -> str:
    """The reason in the outcome of a message that was delivered at most once and not acked."""
    if action == "retry":
        return retries_used_up(1, error, reason)
    return reason or REFUSED if action == "dead" else AT_MOST_ONCE


def brief(error: str) -> str:
    """
    The first line of an error, cut at `BRIEF_BYTES`; as `brief` in settling.lua, which counts
    bytes.
    """
    line = error.partition("\n")[0].encode(errors="replace")
    if len(line) > BRIEF_BYTES:
        line = re.sub(rb"[\xc0-\xff][\x80-\xbf]*$", b"", line[:BRIEF_BYTES])
    return line.decode(errors="replace")


def uses_reserve(draft: Draft) -> bool:
    """
    Whether a store takes the message although its memory or its disk is used up: others end by it,
    or a worker puts it when it starts, such as a schedule.
    """
    return draft.signal is not None or draft.topic.startswith(OWN_TOPICS)
