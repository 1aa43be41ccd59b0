"""What views of one topic read of a server while other topics have many leases."""

from __future__ import annotations

from collections.abc import Callable

from laneway.engines.base import FullEngine
from laneway.message import Draft
from laneway.testing.servers import Server
from tests.valkey.commands import commands


def test_a_topic_without_leases_reads_no_leases(opened: Callable[..., FullEngine]) -> None:
    with Server() as server:
        engine = opened(server.url)
        engine.put([Draft("leased", b"x"), Draft("waiting", b"x")])
        assert len(engine.lease(1, topics=["leased"]).leases) == 1

        def scans(topic: str) -> int:
            def read() -> None:
                engine.topic_stats(topic)
                engine.topic_peek(topic, state="leased")

            return commands(server, read).get("hscan", 0)

        assert scans("leased") == 2
        assert scans("waiting") == 0
