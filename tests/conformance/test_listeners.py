"""What notifies nobody: two idle workers would notify each other forever."""

from __future__ import annotations

import pytest

from laneway.testing.engine_driver import EngineDriver

SOON, NOT_YET = 60.0, 0.2


def test_a_lease_that_finds_nothing(driver: EngineDriver, request: pytest.FixtureRequest) -> None:
    """A worker that leases by patterns finds only topics that it does not handle."""
    if "pgbouncer" in request.node.name:
        pytest.skip("a listener behind a pooler is not notified: its caller looks often")
    driver.put("a", "1")
    listener = driver.engine.work_listener(topics=[])
    try:
        assert listener.poll(SOON) is True
        for _ in range(3):
            assert not driver.engine.lease(10, only=["b.*"]).leases
        assert listener.poll(NOT_YET) is False
        driver.put("b.x", "1")
        assert listener.poll(SOON) is True
        assert len(driver.engine.lease(1, only=["b.*"]).leases) == 1, "a full batch"
        assert listener.poll(NOT_YET) is False
    finally:
        listener.pause()
        listener.close()
