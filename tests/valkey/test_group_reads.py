"""How often calls read the groups of their lanes."""

from __future__ import annotations

from collections.abc import Callable

from laneway.engines.base import FullEngine
from laneway.message import Draft, Lease, Settlement
from laneway.testing.servers import Server
from tests.valkey.commands import commands

COUNT = 50
FEW = 15
"""Commands that read several fields at once."""


def test_groups_are_read_together(opened: Callable[..., FullEngine]) -> None:
    """One command reads those of all lanes, at a delivery, an ack and an arrival."""
    drafts = [Draft(f"c.{n}.t", b"x") for n in range(COUNT)]
    leases: list[Lease] = []
    with Server() as server:
        engine = opened(server.url)
        engine.policy_set("code", "c.*", {"group": "{1}"})
        for _ in range(2):
            engine.put(drafts)
            leases += engine.lease(COUNT).leases
        ends = [Settlement(lease.handle, lease.fence) for lease in leases]
        assert commands(server, lambda: engine.settle(ends[:COUNT]))["hmget"] < FEW
        assert commands(server, lambda: engine.put(drafts))["hmget"] < FEW
