"""What one process changes, another one that has the store open sees in its next call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Settlement
from tests.conformance.conftest import ENGINES, SHARDED
from tests.conformance.test_reopened import PERSISTENT


@pytest.fixture(params=PERSISTENT)
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[FullEngine]]:
    engines = [(ENGINES | SHARDED)[request.param](tmp_path, Settings()) for _ in range(2)]
    yield engines
    for engine in engines:
        engine.close()


def test_single_messages_are_leased_by_another_process(two: list[FullEngine]) -> None:
    """Even if that one has just seen that the store is empty."""
    ours, theirs = two
    for n in range(8):
        ours.put([Draft(f"t{n % 3}", b"%d" % n)])
        (lease,) = theirs.lease(10).leases
        assert lease.body == b"%d" % n
        assert theirs.settle([Settlement(lease.handle, lease.fence, "ack")]) == ["acked"]
        assert theirs.lease(10).leases == []


def test_totals_are_plain_numbers(two: list[FullEngine]) -> None:
    ours, theirs = two
    ours.put([Draft("t", b"x")])
    overview = theirs.overview()
    assert [type(tier.runnable) for tier in overview.tiers] == [int] * len(overview.tiers)
    assert [check for check in theirs.doctor() if not check.ok] == []


@pytest.mark.parametrize("comes_again", [False, True])
def test_leases_of_a_topic_that_another_process_deleted(
    two: list[FullEngine], *, comes_again: bool
) -> None:
    """They have ended, although the process that holds them remembers them and their lane."""
    ours, theirs = two
    ours.put([Draft("t", b"1"), Draft("t", b"2")])
    leases = ours.lease(10).leases
    assert theirs.topic_delete("t") == 2
    if comes_again:
        theirs.put([Draft("t", b"3")])
    ends = [Settlement(lease.handle, lease.fence) for lease in leases]
    assert ours.settle(ends) == ["gone", "gone"]
    assert [lease.body for lease in ours.lease(10).leases] == [b"3"] * comes_again
    assert [check for check in ours.doctor() if not check.ok] == []
