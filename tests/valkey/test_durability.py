"""
What lasts: nothing that was accepted is lost by the failures that the durability covers;
docs/engines.md says the same in a table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from laneway.cluster.term_store import Candidate, Claim, EngineTerms
from laneway.engines.base import FullEngine
from laneway.engines.valkey import server_check
from laneway.errors import EngineUnavailable
from laneway.testing.servers import Server, until
from tests.server_groups import Cluster, Proxy, Replicated, Sentinels
from tests.valkey.conftest import drain, some

BATCH = 20


class Publisher(threading.Thread):
    """
    Publishes until it is stopped, and publishes again with the same ids where it has no answer.
    """

    def __init__(self, engine: FullEngine) -> None:
        super().__init__(daemon=True)
        self.engine = engine
        self.accepted: set[str] = set()
        self.failures = 0
        self.last_failure = "nothing failed"
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        n = 0
        while not self._ends.is_set():
            drafts = some(BATCH, start=n)
            try:
                receipts = self.engine.put(drafts)
            except EngineUnavailable as error:
                self.failures, self.last_failure = self.failures + 1, str(error)
                continue
            assert {receipt.outcome for receipt in receipts} <= {"accepted", "duplicate"}
            self.accepted |= {receipt.id for receipt in receipts}
            n += BATCH

    def end(self) -> set[str]:
        self._ends.set()
        self.join(60)
        assert not self.is_alive()
        return self.accepted

    def wait_for(self, more: int) -> None:
        """Until so many more are accepted."""
        wanted = len(self.accepted) + more
        try:
            until(lambda: len(self.accepted) >= wanted, f"{more} more accepted messages", 100)
        except TimeoutError as error:
            error.add_note(
                f"publishing goes on: {self.is_alive()}; the last of {self.failures} failures:"
                f" {self.last_failure}"
            )
            raise


def test_kill_9_loses_nothing_that_the_file_has(opened: Callable[..., FullEngine]) -> None:
    """fsync: killed under load, started again on the same file."""
    with Server(appendonly="yes", appendfsync="always") as server:
        engine = opened(server.url, durability="fsync")
        publisher = Publisher(engine)
        for _ in range(2):
            publisher.wait_for(5 * BATCH)
            server.kill()
            server.start()
        publisher.wait_for(5 * BATCH)
        accepted = publisher.end()
        ids = drain(engine)
        assert set(ids) >= accepted
        assert len(ids) == len(set(ids)), "and none twice: what was published again is a duplicate"
        assert [check for check in engine.doctor() if not check.ok] == []


def test_fsync_every_second_is_waited_for(opened: Callable[..., FullEngine]) -> None:
    with Server(appendonly="yes", appendfsync="everysec") as server:
        engine = opened(server.url, durability="fsync")
        engine.put(some(10))
        server.kill()
        server.start()
        assert len(drain(opened(server.url, durability="fsync", namespace=engine.namespace))) == 10  # type: ignore[attr-defined]


def test_a_replica_confirms_as_soon_as_it_has_written_to_its_disk(
    opened: Callable[..., FullEngine],
) -> None:
    """Not with its next report, which a replica sends once a second."""
    took: list[float] = []
    with Replicated(1, appendonly="yes", appendfsync="always") as group:
        engine = opened(group.url, durability="replicated")
        for n in range(10):
            began = time.monotonic()
            engine.put(some(1, start=n))
            took.append(time.monotonic() - began)
        # Puts that wait for reports take a second each; a busy machine may hold up some of them.
        assert sorted(took)[4] < 0.8, took
        assert len(drain(engine)) == 10


def test_a_replica_that_takes_over_has_everything(opened: Callable[..., FullEngine]) -> None:
    """
    replicated: the master is killed under load, the sentinels promote the replica, everybody goes
    on.
    """
    with Sentinels(1) as group:
        engine = opened(f"{group.url}?timeout=3", durability="replicated")
        publisher = Publisher(engine)
        publisher.wait_for(5 * BATCH)
        group.master.kill()
        # Until it follows the new one nothing is accepted: that has no replica. A master without a
        # file would replicate its empty store to all, so it begins as a replica.
        with (group.master.folder / "server.conf").open("a") as config:
            config.write(f"replicaof 127.0.0.1 {group.replaced()}\n")
        group.master.start()
        publisher.wait_for(5 * BATCH)
        accepted = publisher.end()
        assert set(drain(engine)) >= accepted


@pytest.mark.parametrize("durability", ["memory", "replicated"])
def test_a_master_that_came_back_empty_is_left(
    opened: Callable[..., FullEngine], durability: str
) -> None:
    """
    It was replaced, and has a connection of ours: a client that it refuses, because it is empty,
    asks the sentinels again.
    """
    with Sentinels(1) as group, Server() as empty:
        group.never_replace()
        # The empty server refuses after a wait for replicas, of which it has none.
        engine = opened(f"{group.url}?timeout=3", durability=durability)
        engine.put(some(1))
        connections = engine._space.server  # type: ignore[attr-defined]
        stale = redis.Connection(port=empty.port, protocol=2)
        stale.connect()
        connections._idle.give_back(connections._nodes.pool(""), stale)
        assert engine.put(some(2))[0].outcome == "duplicate"
        assert drain(engine) == ["m0", "m1"]
        assert empty.run("KEYS", "*") == []


def test_a_master_that_pauses_is_replaced(opened: Callable[..., FullEngine]) -> None:
    """
    SIGSTOP, as when a machine hangs: the replica takes over, and what the old master wakes up with
    counts no more.
    """
    with Sentinels(1) as group:
        engine = opened(f"{group.url}?timeout=3", durability="replicated")
        publisher = Publisher(engine)
        publisher.wait_for(5 * BATCH)
        group.master.pause()
        group.replaced()
        group.master.resume()
        until(
            lambda: group.master.info("role") == "slave", "the old master to follow the new one", 30
        )
        publisher.wait_for(5 * BATCH)
        accepted = publisher.end()
        assert set(drain(engine)) >= accepted


def test_a_node_of_a_cluster_that_dies_is_replaced(opened: Callable[..., FullEngine]) -> None:
    with Cluster(3, 1) as cluster:
        engine = opened(f"{cluster.url}?shards=8", durability="replicated")
        publisher = Publisher(engine)
        publisher.wait_for(5 * BATCH)
        victim = cluster.masters[1]
        slot = cluster.slots_of(1)[0]
        victim.kill()
        until(lambda: cluster.owner(slot) is not victim, "another master", 30)
        victim.start()
        publisher.wait_for(20 * BATCH)
        accepted = publisher.end()
        assert set(drain(engine)) >= accepted


@pytest.mark.parametrize("way", ["key by key", "in one step"])
def test_a_slot_moves_under_load(opened: Callable[..., FullEngine], way: str) -> None:
    """Nothing is lost, nothing doubled, and every client finds the new master by itself."""
    with Cluster(3, 0) as cluster:
        cluster.never_replace()  # a node that pauses is waited for
        engine = opened(f"{cluster.url}?shards=1&timeout=60")
        publisher = Publisher(engine)
        publisher.wait_for(5 * BATCH)
        slot = int(cluster.masters[0].run("CLUSTER", "KEYSLOT", engine._space.key(0, "shard")))  # type: ignore[attr-defined]
        source = cluster.owner(slot)
        for target in [server for server in cluster.masters if server is not source]:
            if way == "key by key":
                cluster.move_keys(slot, target)
            elif not cluster.move_slot(slot, target):
                pytest.skip("this server has no CLUSTER MIGRATESLOTS: Valkey 9 was the first")
            publisher.wait_for(5 * BATCH)
        accepted = publisher.end()
        ids = drain(engine)
        assert sorted(ids) == sorted(accepted)
        assert publisher.failures == 0
        assert [check for check in engine.doctor() if not check.ok] == []


def test_a_cut_network_heals(opened: Callable[..., FullEngine]) -> None:
    """The error says whether it may have happened; publishing again with the same ids is safe."""
    with Server() as server, Proxy(server.port) as proxy:
        engine = opened(f"valkey://127.0.0.1:{proxy.port}?timeout=3")
        publisher = Publisher(engine)
        for _ in range(3):
            publisher.wait_for(5 * BATCH)
            proxy.cut()
            time.sleep(0.05)  # how long the network is cut
            proxy.heal()
        publisher.wait_for(5 * BATCH)
        accepted = publisher.end()
        ids = drain(engine)
        assert set(ids) >= accepted
        assert len(ids) == len(set(ids))


def test_an_answer_that_never_comes_is_unknown(opened: Callable[..., FullEngine]) -> None:
    with Server() as server, Proxy(server.port) as proxy:
        engine = opened(f"valkey://127.0.0.1:{proxy.port}?timeout=3")
        proxy.hang()
        with pytest.raises(
            EngineUnavailable,
            match=r"no answer within 3 s; whether the change happened is not known",
        ) as caught:
            engine.put(some(1))
        assert caught.value.applied is None
        proxy.heal()


def test_functions_are_loaded_again(opened: Callable[..., FullEngine]) -> None:
    with Server() as server:
        engine = opened(server.url)
        engine.put(some(1))
        server.run("FUNCTION", "FLUSH")
        assert drain(engine) == ["m0"]


def test_many_find_at_once_that_functions_are_missing(opened: Callable[..., FullEngine]) -> None:
    """One of them loads the library; to the others it is there already."""
    with Server() as server, ThreadPoolExecutor(8) as threads:
        engine = opened(server.url)
        for turn in range(20):
            server.run("FUNCTION", "FLUSH")
            list(threads.map(lambda n: engine.put(some(1, start=n)), range(8 * turn, 8 * turn + 8)))
        assert len(drain(engine)) == 160


def test_a_library_of_another_version_stays(opened: Callable[..., FullEngine]) -> None:
    other = (
        "#!lua name=laneway_0123456789ab\nredis.register_function('laneway_0123456789ab_put',"
        " function() return 'theirs' end)"
    )
    with Server() as server:
        server.run("FUNCTION", "LOAD", other)
        opened(server.url).put(some(1))
        assert server.run("FCALL", "laneway_0123456789ab_put", 0) == "theirs"


def test_a_server_that_stores_nothing_begins_again(
    opened: Callable[..., FullEngine], caplog: pytest.LogCaptureFixture
) -> None:
    """
    memory: a restart loses what waited, as the docs say; the policies are known still, and ids are
    never given twice.
    """
    with Server() as server:
        engine = opened(server.url)
        engine.policy_set("code", "t.*", {"rate": 5})
        (first,) = engine.put(some(1))
        server.kill()
        server.start()
        engine.put(some(2, start=1))
        assert "has forgotten namespace" in caplog.text
        assert engine.policy_of("t.1").rate == 5
        assert first.id not in drain(engine)


@pytest.mark.parametrize(
    ("config", "durability", "advice"),
    [
        ({}, "fsync", "CONFIG SET appendonly yes appendfsync always"),
        ({}, "replicated", 'durability "replicated" needs 1 or more replicas, it has 0'),
        ({"maxmemory_policy": "allkeys-lru"}, "memory", "CONFIG SET maxmemory-policy noeviction"),
    ],
)
def test_what_the_server_cannot_keep_is_refused_at_the_start(
    opened: Callable[..., FullEngine], config: dict[str, str], durability: str, advice: str
) -> None:
    with Server(**config) as server, pytest.raises(EngineUnavailable, match=advice):
        opened(server.url, durability=durability)


@pytest.fixture
def _patient_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a timeout of 40 s, servers wait 4 s for replicas, and the client waits for them."""
    monkeypatch.setattr(server_check, "CONFIRM_PART", 0.1)


@pytest.mark.usefixtures("_patient_client")
def test_replicas_that_do_not_confirm_in_time_are_an_error(
    opened: Callable[..., FullEngine],
) -> None:
    with Replicated(1) as group:
        engine = opened(f"{group.url}?timeout=40", durability="replicated")
        engine.put(some(1))
        group.replicas[0].pause()
        with pytest.raises(
            EngineUnavailable, match=r"0 of 1 replicas confirmed the write within 4 s"
        ) as caught:
            engine.put(some(1, start=1))
        assert caught.value.applied is None
        group.replicas[0].resume()


@pytest.mark.usefixtures("_patient_client")
def test_a_renewal_that_no_replica_has(opened: Callable[..., FullEngine]) -> None:
    """It fails: if the replica took over, another candidate would hold the term, too."""
    with Replicated(1) as group:
        engine = opened(f"{group.url}?timeout=40", durability="replicated")
        terms = EngineTerms(lambda: engine, "a")
        claim = terms.claim(Candidate("one", "web-1:1"), 60)
        assert isinstance(claim, Claim)
        assert terms.renew(claim.number, 60, 60) is not None
        group.replicas[0].pause()
        with pytest.raises(EngineUnavailable, match="0 of 1 replicas"):
            terms.renew(claim.number, 60, 60)
        group.replicas[0].resume()
