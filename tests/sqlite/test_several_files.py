"""A namespace of several files: how it is created and opened, and its invariants."""

from __future__ import annotations

import random
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sql import housekeeping
from laneway.engines.sqlite import store
from laneway.engines.sqlite.folder import FilesEngine, ShardFile
from laneway.errors import (
    BadMessage,
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    TopicInUse,
    UsageError,
)
from laneway.message import Action, Draft, Lease, Settlement, SettlementAnswer
from laneway.policy import Gate
from laneway.tiers import Tier

Opened = Callable[..., FilesEngine]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens the namespace in a folder, several times if need be, and closes it."""
    engines: list[FullEngine] = []

    def open_(options: str = "?shards=4", **settings: object) -> FilesEngine:
        url = f"sqlite:///{tmp_path}/q{options}"
        engine = open_engine(url, Settings(**settings))  # type: ignore[arg-type]
        assert isinstance(engine, FilesEngine)
        engines.append(engine)
        return engine

    yield open_
    for engine in engines:
        engine.close()


def files(engine: FilesEngine) -> list[ShardFile]:
    return engine._space.stores


def end(engine: FullEngine, leases: list[Lease], action: Action = "ack") -> list[SettlementAnswer]:
    return engine.settle([Settlement(lease.handle, lease.fence, action) for lease in leases])


def drain(engine: FullEngine) -> list[Lease]:
    found: list[Lease] = []
    while leases := engine.lease(500).leases:
        found += leases
        end(engine, leases)
    return found


def some(count: int, topics: int = 40) -> list[Draft]:
    return [Draft(f"t.{n % topics}", b"%d" % n) for n in range(count)]


def wrong(engine: FullEngine) -> list[str]:
    return [check.name for check in engine.doctor() if not check.ok]


def refusal(url: str, **settings: object) -> LanewayError:
    with pytest.raises(LanewayError) as caught:
        open_engine(url, Settings(**settings))  # type: ignore[arg-type]
    return caught.value


# Opening


def test_the_number_of_files_is_fixed_and_found_again(opened: Opened, tmp_path: Path) -> None:
    opened().put(some(50))
    assert sorted(path.name for path in (tmp_path / "q").glob("*.db")) == [
        f"default.{n}.db" for n in range(4)
    ]
    again = opened("")
    assert again.capabilities.shards == 4
    assert len(drain(again)) == 50
    error = refusal(f"sqlite:///{tmp_path}/q?shards=8")
    assert isinstance(error, UsageError)
    assert "was created with 4 files" in str(error)


@pytest.mark.parametrize("shards", ["0", "3", "2048", "-4", "four", "४", ""])
def test_a_number_that_is_no_power_of_two_is_refused(tmp_path: Path, shards: str) -> None:
    error = refusal(f"sqlite:///{tmp_path}/q?shards={shards}")
    assert isinstance(error, UsageError)
    assert "shards: expected a power of two up to 1024" in str(error)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("sqlite:///{}/q?shard=4", 'unknown option "shard"'),
        ("sqlite:///{}/q?", "unknown option"),
        ("sqlite://?shards=4", "a store in memory has no files"),
        ("sqlite:///{}/a.db?shards=4", "this is a file"),
        ("sqlite:///{}/no/folder?shards=4", "cannot be created"),
        ("sqlite:///{}", "this is a folder"),
    ],
)
def test_other_urls_are_refused(tmp_path: Path, url: str, what: str) -> None:
    open_engine(f"sqlite:///{tmp_path}/a.db", Settings()).close()
    assert what in str(refusal(url.format(tmp_path)))


def test_a_relative_folder_is_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_engine("sqlite:///q?shards=2", Settings()).close()
    assert (tmp_path / "q" / "default.1.db").exists()


def test_a_folder_that_must_exist_is_not_created(tmp_path: Path) -> None:
    error = refusal(f"sqlite:///{tmp_path}/q?shards=4", create=False)
    assert isinstance(error, EngineUnavailable)
    assert not (tmp_path / "q").exists()


def test_each_namespace_has_files_of_its_own(opened: Opened) -> None:
    opened().put(some(10))
    other = opened("?shards=2", namespace="other")
    assert other.capabilities.shards == 2
    assert other.overview().waiting == 0
    assert opened("", namespace="other").capabilities.shards == 2


def test_one_of_the_files_is_not_opened_by_itself(opened: Opened, tmp_path: Path) -> None:
    opened()
    error = refusal(f"sqlite:///{tmp_path}/q/default.2.db")
    assert isinstance(error, UsageError)
    assert f"name their folder: sqlite:///{tmp_path}/q" in str(error)


@pytest.mark.parametrize("missing", [0, 3])
@pytest.mark.parametrize("options", ["", "?shards=4"])
def test_a_missing_file_is_not_created_again(
    opened: Opened, tmp_path: Path, missing: int, options: str
) -> None:
    opened().close()
    path = tmp_path / "q" / f"default.{missing}.db"
    path.unlink()
    error = refusal(f"sqlite:///{tmp_path}/q{options}")
    assert isinstance(error, EngineUnavailable)
    assert f"default.{missing}.db: this file of namespace default is missing" in str(error)
    assert not path.exists()
    opened("?shards=2", namespace="other")


def test_a_file_in_the_place_of_another_is_refused(opened: Opened, tmp_path: Path) -> None:
    opened().close()
    folder = tmp_path / "q"
    shutil.copy(folder / "default.1.db", folder / "default.2.db")
    error = refusal(f"sqlite:///{folder}")
    assert isinstance(error, EngineCorrupt)
    assert "expected file 2 of 4 of this namespace, found file 1 of 4" in str(error)


def test_a_creation_that_broke_off_goes_on(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number of files is known from the first one on."""

    def fail(self: ShardFile) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "nonce", property(fail))
        with pytest.raises(KeyboardInterrupt):
            open_engine(f"sqlite:///{tmp_path}/q?shards=4", Settings())
    engine = opened("")
    engine.put(some(50))
    assert len(drain(engine)) == 50


def test_processes_may_create_the_files_at_once(opened: Opened) -> None:
    with ThreadPoolExecutor(4) as threads:
        engines = [each.result() for each in [threads.submit(opened) for _ in range(4)]]
    for engine in engines:
        engine.put(some(25))
    assert len(drain(engines[0])) == 100


def test_tiers_and_backlog_limits_are_those_of_the_program(opened: Opened) -> None:
    tiers = {"a": Tier(6), "b": Tier(1)}
    engine = opened(tiers=tiers, default_tier="b", max_backlog=40)
    assert engine.tiers == tiers
    assert {file.tiers["a"] for file in files(engine)} == {Tier(6)}
    receipts = engine.put(some(100))
    assert Counter(each.outcome for each in receipts)["accepted"] <= 40
    assert opened("", tiers={"a": Tier(2)}).tiers["a"] == Tier(2)


# Shards


def test_everything_comes_once_and_in_order_inside_a_topic(opened: Opened) -> None:
    engine = opened()
    engine.put(some(2_000))
    order: dict[str, list[int]] = {}
    while leases := engine.lease(100).leases:
        for lease in leases:
            order.setdefault(lease.topic, []).append(int(lease.body))
        assert set(end(engine, leases)) == {"acked"}
    assert sum(map(len, order.values())) == 2_000
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert wrong(engine) == []


def test_ids_and_handles_name_their_file(opened: Opened) -> None:
    engine = opened()
    receipts = engine.put(some(50, topics=50))
    assert len({receipt.id for receipt in receipts}) == 50
    for receipt in receipts:
        view = engine.find(receipt.id)
        assert view is not None
        assert view.topic == receipt.topic
        assert engine.explain(receipt.id).state == "ready"
    leases = engine.lease(50).leases
    assert len({lease.fence for lease in leases}) == 50
    assert {lease.id for lease in leases} == {receipt.id for receipt in receipts}
    stale = [Settlement(lease.handle, lease.fence + 1) for lease in leases[:4]]
    assert engine.settle(stale) == ["lost"] * 4
    assert engine.extend([(lease.handle, lease.fence) for lease in leases], 1) == [True] * 50
    assert engine.start([(lease.handle, lease.fence) for lease in leases]) == [True] * 50
    assert set(end(engine, leases)) == {"acked"}
    assert engine.find(receipts[0].id) is None


def test_handles_of_no_file_are_lost(opened: Opened) -> None:
    assert opened().settle([Settlement((1 << 53) + 5, 1)]) == ["lost"]


def test_partitions_are_in_several_files(opened: Opened) -> None:
    """The topic counts as one, and its rate holds for all together."""
    engine = opened()
    engine.policy_set("code", "hot", {"partitions": 8, "rate": 8, "burst": 8})
    engine.put([Draft("hot", b"x", key=f"k{n}") for n in range(100)])
    engine.put([Draft("hot", b"x") for n in range(100)])
    assert engine.topic_stats("hot").waiting == 200
    assert all(file.overview().waiting for file in files(engine))
    assert sum(file.overview().topics for file in files(engine)) == 8
    leases = engine.lease(100).leases
    assert len(leases) <= 8 + 1, "the burst of all its lanes"
    assert [stats.topic for stats in engine.topic_list()] == ["hot"]
    assert [stats.waiting for stats in engine.topic_list(order="backlog")] == [200 - len(leases)]
    assert len(engine.topic_peek("hot", limit=50)) == 50
    with pytest.raises(TopicInUse):
        engine.policy_set("code", "hot", {"partitions": 4})
    assert wrong(engine) == []
    assert engine.topic_purge("hot") == 200 - len(leases)
    end(engine, leases)
    engine.policy_set("code", "hot", {"partitions": None})
    assert engine.policy_own("hot") == {"code": {"rate": 8.0, "burst": 8}}
    assert wrong(engine) == []


def test_files_whose_tiers_were_read_again_agree(opened: Opened) -> None:
    """After a refusal a file reads its tiers again, others still have them as they were set."""
    engine = opened()
    engine.tier_set("code", {"huge": Tier(1_000)})
    engine.put([Draft("hot", b"x")])
    with pytest.raises(TopicInUse):
        engine.policy_set("code", "hot", {"partitions": 4})
    assert wrong(engine) == []


def test_a_serial_key_of_a_partitioned_topic_is_in_one_file(opened: Opened) -> None:
    engine = opened()
    engine.policy_set("code", "hot", {"partitions": 4, "serial": True})
    engine.put([Draft("hot", b"%d" % n, key="k") for n in range(4)])
    for n in range(4):
        (lease,) = engine.lease(10).leases
        assert lease.body == b"%d" % n
        end(engine, [lease])


def test_own_ids_are_known_wherever_a_partition_is(opened: Opened) -> None:
    engine = opened()
    engine.policy_set("code", "hot", {"partitions": 4, "dedupe": 60})
    drafts = [Draft("hot", b"x", id=f"i{n}") for n in range(20)]
    assert {each.outcome for each in engine.put(drafts)} == {"accepted"}
    assert {each.outcome for each in engine.put(drafts)} == {"duplicate"}
    drain(engine)
    assert set(engine.lookup("hot", [draft.id or "" for draft in drafts]).values()) == {"finished"}
    assert engine.cancel("i1", "hot") == "unknown"


def test_a_bucket_is_in_one_file(opened: Opened) -> None:
    engine = opened()
    engine.policy_set("code", "b.*", {"buckets": 1, "concurrency": 2})
    engine.put([Draft(f"b.{n}", b"x") for n in range(20)])
    assert len(engine.lease(100).leases) == 2
    assert engine.overview().topics == 1
    assert len(engine.topic_list(pattern="b.*", limit=50)) == 20


@pytest.mark.parametrize("second", [None, 1])
def test_gates_are_never_passed_by_more_than_they_admit(opened: Opened, second: int | None) -> None:
    """
    Fewer slots than files, and topics in all of them: every file has its turn.

    A topic with two gates, too, gets grants of both at a time, whatever their order.
    """
    engine = opened()
    engine.gate_set("g", Gate(concurrency=3))
    engine.gate_set("h", Gate(concurrency=second))
    engine.policy_set("code", "*", {"gate": ["g", "h"]})
    engine.policy_set("code", "t.1", {"gate": ["h", "g"]})
    engine.put(some(12 if second else 40))
    served: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    while sum(served.values()) < (12 if second else 40):
        assert time.monotonic() < deadline, served
        leases = engine.lease(100).leases
        assert len(leases) <= (second or 3)
        for gate in engine.gate_list():
            assert gate["leased"] <= (gate["concurrency"] or 3)
        served.update(lease.topic for lease in leases)
        end(engine, leases)
        if not leases:
            engine.wait(1.0)
    assert set(served.values()) == {1}


def test_policies_reach_all_files_also_where_their_writer_died(opened: Opened) -> None:
    engine = opened()
    engine.put(some(40))
    engine.policy_set("code", "t.*", {"paused": True})
    assert engine.lease(100).leases == []
    with files(engine)[0].transaction(None) as tx:  # it died after the first file
        tx.run("policy_delete", "code", "t.*")
        housekeeping.begin_sweep(tx, "t.*")
        tx.shard.policy_version += 1
    assert wrong(engine) == ["policies"]
    other = opened()
    other.put(some(40))
    assert wrong(other) == []
    assert len(drain(other)) == 80


def test_the_doctor_brings_all_files_to_the_same_policies(opened: Opened) -> None:
    engine = opened()
    with files(engine)[0].transaction(None) as tx:
        tx.run("policy_write", "code", "t.*", '{"paused":true}')
        tx.shard.policy_version += 1
    assert wrong(engine) == ["policies"]
    engine.doctor(repair=True)
    assert wrong(engine) == []
    assert all(file.policy_of("t.1").paused for file in files(engine))


def test_another_process_follows_a_change_of_routes(opened: Opened) -> None:
    first, second = opened(), opened()
    first.put([Draft("hot", b"x")])
    drain(first)
    first.tick(now_us=time.time_ns() // 1000 + 2_000_000)  # forgets the empty lane
    second.policy_set("code", "hot", {"partitions": 4})
    first.put([Draft("hot", b"x", key=f"k{n}") for n in range(40)])
    assert first.topic_stats("hot").waiting == second.topic_stats("hot").waiting == 40
    assert sum(file.overview().waiting > 0 for file in files(second)) > 1
    second.policy_set("code", "t.1", {"max_body": 5})
    with pytest.raises(BadMessage, match="its policy allows 5"):
        first.put([Draft("t.1", b"longer than that")])
    second.policy_set("code", "big", {"max_body": 2 << 20})
    assert first.put([Draft("big", b"x" * (1 << 20) + b"x"), *some(10)])[0].outcome == "accepted"


@pytest.mark.parametrize("count", [1, 3])
def test_a_key_stays_in_one_file_after_a_change_of_routes(opened: Opened, count: int) -> None:
    """Another process does not know the change yet when it publishes."""
    first, second = opened(), opened()
    for n in range(12):
        topic, key = f"hot.{n}", f"k{n}"
        second.policy_set("code", topic, {"partitions": 4, "serial": "hold"})
        first.put([Draft(topic, b"", key=key), *some(count - 1)])
        second.put([Draft(topic, b"", key=key)])
    keys = [lease.key for lease in first.lease(200, now_us=time.time_ns() // 1000).leases]
    assert sorted(filter(None, keys)) == sorted(f"k{n}" for n in range(12))


def test_what_an_ack_publishes_stays_in_one_file_after_a_change_of_routes(
    opened: Opened,
) -> None:
    """The topic was in the acked message's file when the process read the policies."""
    first, second = opened(), opened()
    topic_of_file = {first._space.routes.route(f"p.{n}").shard: f"p.{n}" for n in range(40)}
    for n in range(12):
        topic = f"hot.{n}"
        first.put([Draft(topic_of_file[first._space.routes.route(topic).shard], b"")])
        (parent,) = first.lease(1, now_us=time.time_ns() // 1000).leases
        second.policy_set("code", topic, {"partitions": 4, "serial": "hold"})
        draft = Draft(topic, b"", key=f"k{n}")
        ack = Settlement(parent.handle, parent.fence)
        assert first.settle([ack], publish={0: [draft]}) == ["acked"]
        second.put([draft])
        leases = first.lease(5, now_us=time.time_ns() // 1000).leases
        assert [lease.id for lease in leases] == [f"{parent.id}:0"]
        end(first, leases)
        end(first, first.lease(5, now_us=time.time_ns() // 1000).leases)


def test_a_wrong_number_of_files_changes_no_limit(opened: Opened, tmp_path: Path) -> None:
    opened("?shards=2", max_backlog=200)
    refusal(f"sqlite:///{tmp_path}/q?shards=64", max_backlog=200)
    again = opened("")
    receipts = again.put(some(60))
    assert {receipt.outcome for receipt in receipts} == {"accepted"}


def test_a_file_that_lost_everything_is_not_taken_for_a_new_one(
    opened: Opened, tmp_path: Path
) -> None:
    opened().close()
    for end_ in ("", "-wal", "-shm"):
        (tmp_path / f"q/default.2.db{end_}").unlink(missing_ok=True)
    (tmp_path / "q/default.2.db").touch()
    for _ in range(2):
        error = refusal(f"sqlite:///{tmp_path}/q")
        assert isinstance(error, EngineCorrupt)
        assert "default.2.db: this file of the namespace is empty" in str(error)


def test_a_namespace_that_the_folder_does_not_have_is_an_error(
    opened: Opened, tmp_path: Path
) -> None:
    """It would be a file beside the folder, which nobody else uses."""
    opened()
    error = refusal(f"sqlite:///{tmp_path}/q", namespace="other")
    assert "this folder has no files of namespace other" in str(error)
    opened(namespace="other")
    opened("", namespace="other")


def test_a_file_that_fails_takes_no_leases_of_the_others(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is leased already is answered; the next call, which has nothing else, reports it."""
    engine = opened()
    engine.put(some(40))
    monkeypatch.setattr(store, "BUSY_TIMEOUT", 0.2)
    with closing(sqlite3.connect(files(engine)[1].place.path or "")) as raw:
        raw.execute("BEGIN IMMEDIATE")
        leases = engine.lease(100).leases
        assert len(leases) == engine.overview().leased > 20
        with pytest.raises(EngineUnavailable, match="held the write lock"):
            engine.lease(100)
    assert len(engine.lease(100).leases) == 40 - len(leases)


def test_an_error_of_one_file_says_that_others_have_their_part(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened()
    engine.put(some(1))
    monkeypatch.setattr(store, "BUSY_TIMEOUT", 0.2)
    last = list(engine._split(some(40)))[-1]
    with closing(sqlite3.connect(files(engine)[last].place.path or "")) as raw:
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(EngineUnavailable, match="others have done their part") as caught:
            engine.put(some(40))
    assert caught.value.applied is None
    assert engine.overview().waiting > 1


def test_namespaces_of_a_folder_wake_their_own_workers(opened: Opened) -> None:
    engine, other = opened(), opened(namespace="other")
    assert engine._wakeup._folder != other._wakeup._folder


def test_acks_publish_into_other_files(opened: Opened) -> None:
    engine = opened()
    engine.put([Draft("first", b"1")])
    (lease,) = engine.lease(1).leases
    follow = {0: [Draft(f"next.{n}", b"2") for n in range(8)]}
    assert engine.settle([Settlement(lease.handle, lease.fence)], publish=follow) == ["acked"]
    assert [engine.topic_stats(f"next.{n}").waiting for n in range(8)] == [1] * 8
    again = engine.put([Draft("next.3", b"2", id=f"{lease.id}:3")])
    assert {receipt.outcome for receipt in again} == {"duplicate"}
    assert engine.settle([Settlement(lease.handle, lease.fence)], publish=follow) == ["lost"]
    assert len(drain(engine)) == 8


def test_dead_letters_are_listed_page_by_page(opened: Opened) -> None:
    engine = opened()
    engine.put(some(40))
    leases = engine.lease(40).leases
    assert set(end(engine, leases, "dead")) == {"died"}
    found: list[str] = []
    after = 0
    while page := engine.dead_list(limit=7, after=after):
        found += [view.id for _, view in page]
        after = page[-1][0]
    assert sorted(found) == sorted(lease.id for lease in leases)
    assert engine.dead_redrive(ids=found[:5]) == 5
    assert engine.dead_drop(limit=30) == 30
    assert engine.overview().dead == 5
    assert engine.dead_redrive() == 5
    assert len(drain(engine)) == 10


def test_a_lease_passes_over_files_that_others_write_to(opened: Opened, tmp_path: Path) -> None:
    """It waits for none of them as long as it finds something elsewhere."""
    engine = opened()
    engine.put(some(40))
    busy = [sqlite3.connect(tmp_path / "q" / f"default.{n}.db") for n in range(3)]
    for connection in busy:
        connection.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        leases = engine.lease(5).leases
        assert time.monotonic() - began < store.BUSY_TIMEOUT, "it waits for a lock"
        assert len(leases) == 5
        assert {engine._numbers.shard(lease.handle) for lease in leases} == {3}
    finally:
        for connection in busy:
            connection.close()


def test_one_folder_of_sockets_wakes_for_all_files(opened: Opened) -> None:
    engine, other = opened(), opened()
    for n in range(8):
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(engine.wait, 10.0)
            time.sleep(0.01)
            other.put([Draft(f"t.{n}", b"x")])
            assert waiting.result(10)
        assert len(drain(engine)) == 1


def test_results_of_generated_ids_are_found_without_the_topic(opened: Opened) -> None:
    """An id that was chosen needs its topic."""
    engine = opened()
    drafts = [Draft(f"t.{n}", b"x", id=f"i{n}" if n % 2 else None) for n in range(16)]
    receipts = engine.put(drafts)
    leases = {lease.id: lease for lease in engine.lease(16).leases}
    for receipt in receipts:
        lease = leases[receipt.id]
        ended = Settlement(lease.handle, lease.fence, "ack")
        ended.id, ended.topic = receipt.id, receipt.topic
        ended.outcome, ended.outcome_ttl_us = b"so", 60_000_000
        assert engine.settle([ended]) == ["acked"]
    found = engine.results([(receipt.id, None) for receipt in receipts])
    assert [each.outcome for each in found] == [b"so", None] * 8
    found = engine.results([(receipt.id, receipt.topic) for receipt in receipts])
    assert [each.outcome for each in found] == [b"so"] * 16
    engine.delete_result(receipts[0].id)
    assert engine.results([(receipts[0].id, receipts[0].topic)])[0].outcome is None


def test_a_forked_process_opens_the_files_itself(opened: Opened) -> None:
    import os

    engine = opened()
    engine.put(some(8))
    child = os.fork()
    if not child:
        try:
            engine.put(some(1))
        except EngineUnavailable:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(drain(engine)) == 8


def test_random_calls_lose_and_double_nothing(opened: Opened) -> None:
    """Two processes, policies that change, leases that are released, retried and run out."""
    for seed in range(6):
        chance = random.Random(seed)
        engines = [opened(namespace=f"n{seed}") for _ in range(2)]
        _history(engines, chance)


def _history(engines: list[FilesEngine], chance: random.Random) -> None:
    engine = engines[0]
    engine.gate_set("g", Gate(concurrency=5))
    engine.policy_set("code", "limited.*", {"concurrency": 2})
    engine.policy_set("code", "gated.*", {"gate": "g"})
    engine.policy_set("code", "serial.*", {"serial": True})
    engine.policy_set("code", "*", {"retries": 1000, "backoff": 0, "lease": 5})
    engine.policy_set("code", "hot", {"partitions": 8})
    engine.policy_set("code", "fold.*", {"buckets": 3})
    now = 2_200_000_000_000_000
    names = [
        f"{kind}.{n}" for kind in ("t", "limited", "gated", "serial", "fold") for n in range(5)
    ]
    published: set[str] = set()
    acked: Counter[str] = Counter()
    held: list[Lease] = []
    for step in range(150):
        engine = chance.choice(engines)
        now += chance.choice([0, 1000, 100_000, 2_000_000])
        kind = chance.choice(["put", "lease", "lease", "settle", "settle", "policy"])
        if kind == "put":
            topics = chance.choices([*names, "hot"], k=chance.randint(1, 12))
            drafts = [
                Draft(topic, b"x", key=chance.choice(["k", "l", None]), id=f"{step}.{n}")
                for n, topic in enumerate(topics)
            ]
            engine.put(drafts, now_us=now)
            published |= {draft.id or "" for draft in drafts}
        elif kind == "lease":
            held += engine.lease(chance.choice([1, 5, 40]), now_us=now).leases
            held = [lease for lease in held if lease.deadline_us > now]
            running = Counter(lease.topic for lease in held)
            assert all(count <= 2 for name, count in running.items() if name[0] == "l")
            assert sum(count for name, count in running.items() if name[0] == "g") <= 5
            keys = Counter((each.topic, each.key) for each in held if each.topic[0] == "s")
            assert all(count == 1 for (_, key), count in keys.items() if key is not None)
        elif kind == "settle":
            ending = chance.sample(held, k=min(len(held), chance.randint(1, 20)))
            action: Action = chance.choice(["ack", "ack", "release", "retry"])
            answers = engine.settle(
                [Settlement(lease.handle, lease.fence, action, 0) for lease in ending], now_us=now
            )
            acked.update(
                lease.id for lease, answer in zip(ending, answers, strict=True) if answer == "acked"
            )
            gone = {lease.fence for lease in ending}
            held = [lease for lease in held if lease.fence not in gone]
        else:
            fields = {"weight": chance.choice([1, 2, 7])}
            name = chance.choice([*(name for name in names if name[0] != "f"), "fold.*", "t.*"])
            engine.policy_set("code", name, fields, now_us=now)
    assert wrong(engines[0]) == []
    deadline = time.monotonic() + 60
    while len(acked) < len(published):
        assert time.monotonic() < deadline, published - acked.keys()
        now += 10_000_000
        leases = engines[1].lease(100, now_us=now).leases
        engines[1].settle([Settlement(each.handle, each.fence) for each in leases], now_us=now)
        acked.update(each.id for each in leases)
    assert acked.keys() == published
    assert set(acked.values()) == {1}
    assert engines[0].overview().waiting == engines[0].overview().leased == 0
    assert wrong(engines[0]) == []
