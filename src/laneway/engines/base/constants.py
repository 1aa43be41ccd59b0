"""Headers, prefixes and limits that all engines share; a test compares the copies in Lua."""

from __future__ import annotations

from laneway import headers

RESULT_TTL_HEADER = headers.RESULT_TTL
"""
A message with this header has a stored result. The value gives the seconds for which its outcome is
kept after an ack and after any other end: "600,86400".
"""

SIGNALS_HEADER = headers.SIGNALS
"""
A message with this header waits for signals (`Draft.signal`); the value is their number. It is
delayed until all of them have arrived. Their bodies follow its own in `Lease.bodies`.
"""

FLOW_HEADER = headers.FLOW
"""
A message with this header is part of a flow; its body is JSON.
If it ends and no handler reported that, the engine puts an end notice (`ENDED`) into its topic.
"""

TASK_HEADER = headers.TASK
"""Names the task that a message calls."""

ENDED = "laneway.ended"
"""
The `TASK_HEADER` of an end notice.

Its body is the JSON object `{"id", "outcome", "body"}`, with the body of the message that ended.
For messages with followers (`Results.on_end`) it is `{"id", "outcome", "followers"}`.
"""

UNTIL_SIGNALLED_US = 7_258_118_400_000_000
"""The due time of a message that waits for signals, in microseconds: the year 2200."""

ABORT = "!"
"""
A `ResultListener` that subscribes to this learns which leases were ended by `Results.cancel`.
`poll` then returns this prefix followed by the message's `result_name`.
"""

CHANGED = "="
"""The prefix of the names that `Wakeup.watch_topic` returns, for `ResultListener.subscribe`."""


def result_name(message_id: str, topic: str) -> str:
    """The name of a message's result, for `ResultListener.subscribe`."""
    return f"{topic}\x1f{message_id}"


HOUSEKEEPING_LIMIT = 1000
"""Most due messages, expired messages, woken lanes and swept lanes that one call handles, each."""


def housekeeping_of_lease(n: int) -> int:
    """
    The same of a lease of `n` messages: `n`, but at least 100. So many arrive as it delivers, and a
    topic whose messages are due at one time gets its share; more would delay other topics. A lease
    that delivers nothing does up to `HOUSEKEEPING_LIMIT`, as one does while lanes of a changed
    pattern are placed: else a share would be wrong for as long as some lanes are not.
    """
    return min(max(n, 100), HOUSEKEEPING_LIMIT)


MOST_SPARE_DROPS = 250
"""
Most messages that one call drops from full backlogs, besides one for each message that it
publishes. After a limit was lowered, the next calls drop what is still above it.
"""

BACK_OFF_FIRST_US, BACK_OFF_MAX_US = 1_000_000, 300_000_000
"""
How long a topic backs off if its destination named no time: 1 s, doubled by each failing probe, at
most 5 min.
"""

MAX_PASSED_OVER = 1_000
"""Most lanes that one lease call with `only` passes over."""

UNHANDLED_FIRST_US, UNHANDLED_MAX_US = 5_000_000, 300_000_000
"""The delay of a message for which a worker has no handler: 5 s, doubled up to 5 min."""

FORWARD_AT_ONCE = 250
"""Most messages of one batch that a spool forwards."""

FORWARDED_US = 400 * 86_400_000_000
"""How long the last batch of a spool is known after it was put: 400 days."""

STICKY_US = 24 * 3_600_000_000
"""How long a sticky id is known after its message ended: 24 h."""

HEARTBEAT_TIMEOUT = 9.0
"""
Seconds without a heartbeat after which a worker counts as dead by default, and its leases end.
"""
