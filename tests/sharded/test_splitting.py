"""Batches, numbers and visits over several shards, without any server."""

from __future__ import annotations

import pytest

from laneway.engines.sharded.splitting import (
    CallSize,
    Numbers,
    by_shard,
    group,
    pages,
    part_of,
    partial_call,
)
from laneway.errors import BadMessage, EngineUnavailable


def test_positions_stay_in_order() -> None:
    """Each shard gets its positions in the order of the batch."""
    assert by_shard([2, 0, 2, 1, 0]) == {2: [0, 2], 0: [1, 4], 1: [3]}
    assert group([(1, "a"), (0, "b"), (1, "c")]) == {1: ["a", "c"], 0: ["b"]}
    assert list(pages([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(pages([], 2)) == []


@pytest.mark.parametrize("shards", [1, 2, 64])
def test_numbers_name_their_shard(shards: int) -> None:
    """A joined number has the shard and the shard's own number in it."""
    numbers = Numbers(shards)
    for shard in {0, shards // 2, shards - 1}:
        for number in (0, 1, 12_345, 2**47):
            joined = numbers.join(shard, number)
            assert (numbers.shard(joined), numbers.number(joined)) == (shard, number)
            assert numbers.number_on(shard, joined) == number
            first = numbers.first_beyond(shard, joined)
            assert numbers.join(shard, first) > joined >= numbers.join(shard, first - 1)


def test_a_number_of_another_shard_is_no_number_here() -> None:
    """A fence of another shard never matches a lease."""
    numbers = Numbers(4)
    assert numbers.number_on(2, numbers.join(3, 7)) == -1


def test_numbers_are_split_by_their_shard() -> None:
    numbers = Numbers(4)
    joined = [numbers.join(shard, n) for n, shard in enumerate((3, 0, 3))]
    assert numbers.by_shard(joined) == {3: [0, 2], 0: [1]}
    assert {shard: list(all_) for shard, all_ in Numbers(1).by_shard([5, 6]).items()} == {0: [0, 1]}


def test_parts_of_a_limit_are_rounded_up() -> None:
    assert part_of(10, 4) == 3
    assert part_of(0, 4) == 0
    assert part_of(None, 4) is None


@pytest.mark.parametrize("error", [EngineUnavailable("away", applied=False), BadMessage("bad")])
def test_an_error_after_the_first_part_says_that_the_effect_is_unknown(error: Exception) -> None:
    with pytest.raises(type(error)), partial_call(is_first=True):
        raise error
    assert getattr(error, "applied", False) is False
    with pytest.raises(type(error)), partial_call(is_first=False):
        raise error
    assert getattr(error, "applied", False) is None


def test_a_call_size_adapts_to_the_last_call() -> None:
    """It shrinks after a slow call, grows after a fast one that was full, and has bounds."""
    size = CallSize(250, 6_000, least=60)
    assert size.limit == 60
    size.fit(155, 3_999)
    assert size.limit == 193
    size.fit(193, 4_000)  # neither slow nor fast
    size.fit(20, 100)  # a small call says nothing about large ones
    size.fit(193, 100, is_full=False)
    assert size.limit == 193
    size.fit(193, 6_001)
    assert size.limit == 144
    size.fit(250, 6_001)  # a call that could not be split does not raise the limit
    assert size.limit == 144
    size.fit(10, 6_001)
    assert size.limit == 60
    for _ in range(10):
        size.fit(size.limit, 1)
    assert size.limit == 250
    size.fit(250, 15_000)
    assert size.limit == 100, "what would have been in time"


@pytest.mark.parametrize("call_us", [0, -5])
def test_a_call_size_stays_if_the_time_is_not_known(call_us: int) -> None:
    """As on a server where no time passes inside a call, or after its clock was set back."""
    size = CallSize(250, 6_000, least=60)
    size.fit(60, call_us)
    assert size.limit == 60


def test_each_page_has_the_limit_of_its_time() -> None:
    size = CallSize(6, 6_000)
    found = []
    for page in size.pages(range(24)):
        found.append(len(page))
        size.fit(len(page), 9_000 if len(found) == 3 else 1)
    assert found == [6, 6, 6, 4, 2]
