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
