"""
Size classes: the values that the top lists are indexed by.

A lane's backlog, age, rate and throttling change at every visit; an index on the numbers would cost
more than the queue. Classes about 9 % apart (eight for each doubling) change rarely. In small
namespaces the lists are exact, because all lanes are read.
"""

from __future__ import annotations

SMALLEST = 32
"""
Smaller numbers have no class: such lanes are in a top list only if there are few lanes.
"""

AGE_SHIFT = 23
"""The class of an age is the age in units of 2^23 µs, about 8 seconds."""

WINDOW_US = 10_000_000
"""Deliveries are counted in windows of ten seconds."""


def size_class(number: int) -> int | None:
    """The class of a number: grows with it, eight classes to a doubling."""
    if number < SMALLEST:
        return None
    bits = number.bit_length()
    return bits * 8 + ((number >> (bits - 4)) & 7)


def rate(now: int, seen: int, lately: int, before: int) -> float:
    """Deliveries a second over about the last window."""
    elapsed = now - seen
    if elapsed >= 2 * WINDOW_US:
        return 0.0
    if elapsed >= WINDOW_US:
        return lately * (2 * WINDOW_US - elapsed) / WINDOW_US * 1_000_000 / WINDOW_US
    return (before * (WINDOW_US - elapsed) / WINDOW_US + lately) * 1_000_000 / WINDOW_US
