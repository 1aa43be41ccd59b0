"""Which settlements one call of the engine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from laneway.message import Draft, Settlement
from laneway.working.settler import MAX_BYTES_PER_CALL, MAX_FOLLOWERS_PER_CALL, Settler

THIRD = bytes(MAX_BYTES_PER_CALL // 3)


class Engine:
    """Notes the size of each call."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def settle(
        self,
        settlements: Sequence[Settlement],
        publish: Mapping[int, Sequence[Draft]] | None = None,
    ) -> list[str]:
        del publish
        self.sizes.append(len(settlements))
        return ["acked"] * len(settlements)


@pytest.mark.parametrize(
    ("outcome", "followers", "sizes"),
    [
        (None, [], [10]),
        (b"x", [], [10]),
        (THIRD, [], [3, 3, 3, 1]),
        (3 * THIRD + b"xxx", [], [1] * 10),
        (None, [Draft("t", THIRD)], [3, 3, 3, 1]),
        (None, [Draft("t", b"")] * (MAX_FOLLOWERS_PER_CALL // 4), [4, 4, 2]),
    ],
)
def test_sizes_of_calls(outcome: bytes | None, followers: list[Draft], sizes: list[int]) -> None:
    engine: Any = Engine()
    settler = Settler(engine, {}, is_burst=False, report=lambda *_: None, settled=lambda *_: None)
    for n in range(10):
        settler.settlements.append(Settlement(n, n, outcome=outcome))
        if followers:
            settler.followers[n] = followers
    settler.settle()
    assert engine.sizes == sizes
