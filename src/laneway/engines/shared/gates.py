"""
The arithmetic of gates: what the limits of a gate admit.

The state of a gate is two numbers, the TAT of its rate (see `fairness`) and its leases. An engine
stores them; these functions compute what they admit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.engines.shared import fairness

if TYPE_CHECKING:
    from laneway.policy import Gate

UNLIMITED = 1 << 30
"""The room of a gate that limits nothing."""


def room(limits: Gate, tat: int, leased: int, now_us: int) -> int:
    """How many deliveries the gate admits now."""
    admitted = UNLIMITED
    if limits.rate is not None:
        burst = limits.effective_burst
        admitted = fairness.permits(rebase(limits, tat, now_us), now_us, limits.rate, burst)
    if limits.concurrency is not None:
        admitted = min(admitted, limits.concurrency - leased)
    return max(admitted, 0)


def rebase(limits: Gate, tat: int, now_us: int) -> int:
    """The TAT under these limits, which may have changed."""
    if limits.rate is None:
        return tat
    return fairness.rebase(tat, now_us, limits.rate, limits.effective_burst)


def take(limits: Gate, tat: int, taken: int, now_us: int) -> int:
    """The TAT after `taken` deliveries."""
    if limits.rate is None:
        return tat
    return fairness.take_permits(rebase(limits, tat, now_us), now_us, limits.rate, taken)


def give_back(limits: Gate, tat: int, returned: int) -> int:
    """The TAT after deliveries that never began were given back."""
    return tat if limits.rate is None else fairness.return_permits(tat, limits.rate, returned)


def next_permit_us(limits: Gate, tat: int, now_us: int) -> int | None:
    """When the rate admits the next delivery; None: the gate has no rate."""
    if limits.rate is None:
        return None
    burst = limits.effective_burst
    return fairness.next_permit_us(rebase(limits, tat, now_us), now_us, limits.rate, burst)


def opens_us(limits: Gate, tat: int, leased: int, now_us: int) -> int | None:
    """When a shut gate opens by the clock; None: it is open, or opens when a lease ends."""
    if limits.concurrency is not None and leased >= limits.concurrency:
        return None
    at = next_permit_us(limits, tat, now_us)
    return at if at is not None and at > now_us else None


def view(
    name: str, limits: Gate, *, tat: int, leased: int, waiting: int, now_us: int
) -> dict[str, Any]:
    """The gate as `Admin.gate_list` answers it; `waiting`: the lanes that wait at it."""
    return {
        "name": name,
        "rate": limits.rate,
        "burst": limits.effective_burst if limits.rate is not None else None,
        "concurrency": limits.concurrency,
        "leased": leased,
        "next_permit_us": next_permit_us(limits, tat, now_us),
        "waiting": waiting,
    }
