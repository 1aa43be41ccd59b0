"""
Limits per key inside a topic: how much of `key_concurrency` and `key_rate` a key has used.

A message whose key is at a limit when its lane is visited is parked: the messages behind it are
delivered. What is parked becomes ready again when a lease of the key ends, at the key's next
permit, when a ready message of the key is removed, or when the limits change. Each visit looks
again, so a message that became ready too early is only parked again.

With `key_concurrency=1` a topic has the messages x1, x2 and y1 of two keys. A lease delivers x1 and
y1, and parks x2. The ack of x1 makes x2 ready. With `key_rate=10` (its burst is 1.5) the ack does
not help, because the key has no permit for 50 ms; it wakes then:

>>> from laneway.policy import Resolved
>>> policy = Resolved(key_rate=10.0)
>>> x = KeyState()
>>> x.room(policy, now=0)
1
>>> x.take(policy, now=0)
>>> x.leased, x.parked = 0, 1
>>> x.room(policy, now=0), x.rest(policy, now=0), x.wake
(0, False, 50000)

Why this is correct. Each delivery looks at its key's leases and permits and counts itself, in one
step, so a key never exceeds its limits. A parked message is not forgotten: its key has a lease,
whose end looks at it, or it has no permit, and wakes by the clock. A state that says nothing has
neither leases nor parked messages, so deleting it loses nothing.
"""

from __future__ import annotations

import msgspec

from laneway.engines.shared import fairness
from laneway.policy import Resolved

MOST_PARKED = 1000
"""Messages that one visit parks, or one change makes ready, at most."""

UNLIMITED = 1 << 30


class KeyState(msgspec.Struct, gc=False):
    """What a key of a lane has used. It is stored only while it says something."""

    leased: int = 0
    parked: int = 0
    """Messages that its limits have parked."""
    tat: int = 0
    """The clock of its rate, see `fairness`."""
    wake: int = 0
    """When it has a permit for what is parked, or is deleted; 0: an end of a lease comes first."""

    def room(self, policy: Resolved, now: int) -> int:
        """How many of its messages may be delivered now."""
        room = UNLIMITED
        if policy.key_concurrency is not None:
            room = policy.key_concurrency - self.leased
        if policy.key_rate is not None and room > 0:
            tat = self._clock(policy.key_rate, policy.key_burst, now)
            room = min(room, fairness.permits(tat, now, policy.key_rate, policy.key_burst))
        return max(room, 0)

    def take(self, policy: Resolved, now: int, count: int = 1) -> None:
        """So many of its messages are delivered."""
        self.leased += count
        if policy.key_rate is not None:
            tat = self._clock(policy.key_rate, policy.key_burst, now)
            self.tat = fairness.take_permits(tat, now, policy.key_rate, count)

    def give_back(self, rate: float, since_us: int) -> None:
        """A delivery never began: return its permit of the key's rate, taken `since_us` ago."""
        self.tat = fairness.return_permits(self.tat, rate, 1, since_us)

    def permit_us(self, policy: Resolved, now: int) -> int:
        """When its rate admits the next message."""
        if policy.key_rate is None:
            return now
        tat = self._clock(policy.key_rate, policy.key_burst, now)
        return fairness.next_permit_us(tat, now, policy.key_rate, policy.key_burst)

    def rest(self, policy: Resolved, now: int) -> bool:
        """
        Set its clock and when it wakes. Returns whether it says nothing: it is deleted then.

        A time to wake that has come stays until what is parked was looked at: see `woken`.
        """
        before, self.wake = self.wake, 0
        is_used = policy.key_rate is not None and not fairness.recovered(self.tat, now)
        if policy.key_rate is None:
            self.tat = 0
        elif is_used:
            self.tat = self._clock(policy.key_rate, policy.key_burst, now)
        if self.parked and (permit := self.permit_us(policy, now)) > now:
            self.wake = permit
        elif self.parked and before:
            self.wake = before
        elif not self.leased and is_used:
            self.wake = recovered_us(self.tat)
        return not (self.leased or self.parked or is_used)

    def woken(self) -> None:
        """What is parked is looked at now."""
        self.wake = 0

    def _clock(self, rate: float, burst: float, now: int) -> int:
        return fairness.rebase(self.tat, now, rate, burst)


def recovered_us(tat: int) -> int:
    """When the whole burst is available again."""
    return -(-tat // fairness.TICKS)
