"""
The states of messages, the places of lanes and the kinds of events: their numbers and names.

The numbers are stored, and every engine stores the same ones, whatever language its rules are in.

States of a message (a leased message has the number READY, and a lease):

      +---------+  due   +-------+  key busy   +--------+ (serial key, or limits per key)
      | DELAYED | -----> | READY | ----------> | PARKED |
      +---------+        |       | <---------- |        |
           ^             +-------+  key free   +--------+
           |   deliver    |     ^
           |              |     |  release, back off, retry without delay,
           |              v     |  the lease ran out
           |  retry,    +--------+   reject, retries used up,      +------+
           +----------- | leased | ------------------------------> | DEAD |
              release   +--------+   no handler for too long       +------+
              for later   | ack                                      | redrive: READY
                          v                                          v
                         gone                      gone: its retention is over, or dropped

A put makes a message DELAYED (due later, or it waits for signals), READY or PARKED.
What waits may also end there: its ttl is over (DEAD, or gone with `on_expiry` "drop"), a full
backlog drops it (DEAD), or it is purged, cancelled or merged into another (gone).

Places of a lane; the rule is in docs/specification.md, "Placing", and the first that applies holds:

      paused, and something waits                 PAUSED
      nothing is ready                            IDLE       (forgotten after a moment)
      the topic backs off, until then             ASLEEP     (until then)
      as many leases as its concurrency           FULL       (until a lease ends)
      its rate admits none yet                    ASLEEP     (until the next permit)
      its policy names a gate                     AT_GATE    (served while the gate is open)
      else                                        RUNNABLE   (served in the order of virtual time)

      +------+  a message arrives   +----------+  permits used up   +--------+
      | IDLE | -------------------> | RUNNABLE | -----------------> | ASLEEP |
      +------+ <------------------- | or       | <----------------- +--------+
                last one delivered  | AT_GATE  |    its time came
                                    |          |  concurrency used  +------+
                                    |          | -----------------> | FULL |
                                    |          | <----------------- +------+
                                    +----------+    a lease ended
                                       |    ^
                                 pause |    | resume
                                       v    |
                                    +--------+
                                    | PAUSED |   from and to every place
                                    +--------+
"""

from __future__ import annotations

from laneway.engines.base import LaneState, MessageState

READY, DELAYED, PARKED, DEAD = range(4)
"""States of a message."""

STATE_NAMES: dict[int, MessageState] = {
    READY: "ready",
    DELAYED: "delayed",
    PARKED: "parked",
    DEAD: "dead",
}
"""As `MessageView.state` has them; a message with a lease is "leased"."""

IDLE, RUNNABLE, ASLEEP, AT_GATE, FULL, PAUSED = range(6)
"""Places of a lane."""

PLACE_NAMES: dict[int, LaneState] = {
    IDLE: "idle",
    RUNNABLE: "runnable",
    ASLEEP: "asleep",
    AT_GATE: "at_gate",
    FULL: "full",
    PAUSED: "paused",
}
"""As `TopicStats.state` has them."""

EXPIRES, RETENTION_ENDS = 1, 2
"""Kinds of events: what housekeeping does at a time."""

HOLD, YIELD = 1, 2
"""
How a message treats its serial key while it waits for a retry, by the policy at its publish; 0: the
message is not serial.
"""
