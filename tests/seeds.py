"""Seeds of tests that draw: fixed in `make test`, random in the targets that run tests longer."""

from __future__ import annotations

import os
import random

FIXED = 20_261_122


def seed_for(longer: str, variable: str = "LANEWAY_SEED") -> int:
    """
    The seed that the environment's `variable` names, which repeats a run. Without it: a random one
    if the environment has `longer`, by which a target of make asks for more rounds; else FIXED.
    """
    if given := os.environ.get(variable):
        return int(given)
    return random.SystemRandom().randrange(1, 1 << 30) if longer in os.environ else FIXED


def seeds_of_histories(fixed: list[int]) -> list[int]:
    """
    The seed in LANEWAY_SEED, or as many random ones as the number in LANEWAY_HISTORIES, or these.
    """
    if given := os.environ.get("LANEWAY_SEED"):
        return [int(given)]
    chance = random.SystemRandom()
    count = int(os.environ.get("LANEWAY_HISTORIES") or 0)
    return [chance.randrange(1 << 32) for _ in range(count)] or fixed
