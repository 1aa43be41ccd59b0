"""
A server that lost its data: what was delivered before is lost, and nothing of it touches what comes
after.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway import Laneway
from laneway.engines.base import Durability, FullEngine
from laneway.errors import EngineUnavailable
from laneway.message import Action, Draft, Lease, ProgressReport, Settlement
from laneway.testing.servers import Server

ACTIONS: list[Action] = ["ack", "retry", "dead", "release", "back_off", "unhandled"]


def flushed(server: Server) -> None:
    server.run("FLUSHALL")


def killed(server: Server) -> None:
    server.kill()
    server.start()


def place(lease: Lease) -> tuple[int, int]:
    return lease.handle, lease.fence


def all_lost(engine: FullEngine, leases: list[Lease]) -> None:
    """Whatever is done with these leases, they are lost."""
    places = [place(lease) for lease in leases]
    assert engine.extend(places, 60_000_000) == [False] * len(leases)
    assert engine.start(places) == [False] * len(leases)
    assert engine.report_progress(
        [
            ProgressReport(lease.id, lease.topic, b"{}", 60_000_000, *place(lease))
            for lease in leases
        ]
    ) == [False] * len(leases)
    for action in ACTIONS:
        assert engine.settle([Settlement(*place(lease), action) for lease in leases]) == [
            "lost"
        ] * len(leases), action
    follow = {0: [Draft("followed", b"x")]}
    assert engine.settle([Settlement(*place(leases[0]))], publish=follow) == ["lost"]
    assert engine.topic_stats("followed").waiting == 0


@pytest.mark.parametrize("shards", [1, 8])
@pytest.mark.parametrize(  # a kill loses nothing with fsync
    ("lose", "durability"), [(flushed, "memory"), (flushed, "fsync"), (killed, "memory")]
)
def test_a_delivery_from_before_is_lost(
    opened: Callable[..., FullEngine], lose: Callable[[Server], None], shards: int, durability: str
) -> None:
    more = {"appendonly": "yes", "appendfsync": "always"} if durability == "fsync" else {}
    with Server(**more) as server:
        url = f"{server.url}?shards={shards}"
        old = opened(url, durability=durability)
        name = old.namespace  # type: ignore[attr-defined]
        drafts = [Draft(f"t.{n}", b"old") for n in range(20)]
        ids_before = {receipt.id for receipt in old.put(drafts)}
        before = old.lease(20).leases
        lose(server)
        new = opened(url, durability=durability, namespace=name)
        ids_after = {receipt.id for receipt in new.put(drafts)}
        after = new.lease(20).leases
        assert len(before) == len(after) == 20
        assert not ids_before & ids_after
        assert not {lease.handle for lease in before} & {lease.handle for lease in after}
        assert min(lease.fence for lease in after) > max(lease.fence for lease in before)
        all_lost(old, before)
        assert new.extend([place(lease) for lease in after], 60_000_000) == [True] * 20
        assert new.settle([Settlement(*place(lease)) for lease in after]) == ["acked"] * 20
        assert new.overview().waiting == new.overview().leased == new.overview().dead == 0
        assert [check for check in new.doctor() if not check.ok] == []


def test_a_server_put_back_to_an_earlier_state_repeats_no_number(
    opened: Callable[..., FullEngine],
) -> None:
    """As by a dump that is some minutes old, or a replica that had not got the last writes."""
    with Server() as server:
        engine = opened(server.url)
        engine.put([Draft("a", b"%d" % n) for n in range(10)])
        early = engine.lease(3).leases
        server.run("SAVE")
        late = engine.lease(3).leases
        ids = {receipt.id for receipt in engine.put([Draft("a", b"late")] * 5)}
        killed(server)
        assert engine.settle([Settlement(*place(lease)) for lease in early]) == ["acked"] * 3, (
            "these it knows"
        )
        again = engine.lease(3).leases
        assert [lease.body for lease in again] == [lease.body for lease in late]
        assert engine.settle([Settlement(*place(lease), "dead") for lease in late]) == ["lost"] * 3
        assert engine.settle([Settlement(*place(lease)) for lease in again]) == ["acked"] * 3
        assert not ids & {receipt.id for receipt in engine.put([Draft("a", b"late")] * 5)}


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_of_a_job_from_before_the_status_is_unknown(durability: Durability) -> None:
    with Server(appendonly="yes") as server, Laneway(server.url, durability=durability) as app:

        @app.task
        def work() -> None: ...

        job = work.delay()
        server.run("FLUSHDB")
        assert job.status == "unknown"
        assert app.lookup("work", [job.id]) == {job.id: "unknown"}
        assert app.explain(job.id).state == "unknown"
        assert job.cancel() is False
        if durability == "memory":
            assert app.engine.overview().waiting == 0
            assert work.delay().status == "pending"
            return
        with pytest.raises(EngineUnavailable, match="the server has lost its data"):
            app.engine.overview()
        with pytest.raises(EngineUnavailable, match="the server has lost its data"):
            work.delay()
