"""The file: what is refused, what survives, and what other processes meet."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite import store
from laneway.engines.sqlite.connection import SQL, Connection
from laneway.errors import (
    BadMessage,
    BadPolicy,
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    SchemaMismatch,
    UsageError,
)
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.units import SECOND


def engine_at(path: Path, **settings: object) -> FullEngine:
    return open_engine(f"sqlite:///{path}", Settings(**settings))  # type: ignore[arg-type]


def test_a_value_that_sqlite_never_takes(tmp_path: Path) -> None:
    """It is refused as a bad message, so that buffers and spools go on without it."""
    with closing(open_engine(f"sqlite:///{tmp_path}/q.db", Settings())) as engine:
        held = engine._store.connection  # type: ignore[attr-defined]
        held.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        with pytest.raises(BadMessage, match=r"q\.db: .*larger than SQLite takes"):
            engine.put([Draft("a", bytes(200_000)), Draft("a", b"1")])
        assert engine.put([Draft("a", b"2")])[0].outcome == "accepted"
        assert engine.topic_stats("a").waiting == 1


def test_messages_survive_reopening(tmp_path: Path) -> None:
    """With bodies, keys, priorities, ids and policies."""
    first = engine_at(tmp_path / "q.db")
    first.policy_set("operator", "a", {"rate": 5})
    first.put([Draft("a", b"\x00\xff", key="k", priority=7, id="mine", headers={"h": "v"})])
    first.close()
    again = engine_at(tmp_path / "q.db")
    (lease,) = again.lease(5).leases
    assert (lease.id, lease.body, lease.key, lease.priority, lease.headers) == (
        "mine",
        b"\x00\xff",
        "k",
        7,
        {"h": "v"},
    )
    assert again.policy_of("a").rate == 5
    again.close()


def test_an_exact_policy_makes_no_other_process_reload_policies(tmp_path: Path) -> None:
    """
    The version that others look at stays; what it costs in statements does not grow with their
    number.
    """
    with (
        closing(engine_at(tmp_path / "q.db")) as first,
        closing(engine_at(tmp_path / "q.db")) as other,
    ):
        first.policy_set("code", "t.*", {"retries": 1})
        first.put([Draft("t.1", b"1")])
        other.lease(1)
        read: list[str] = []
        other._store.connection.set_trace_callback(read.append)  # type: ignore[attr-defined]
        first.policy_set("code", "t.1", {"paused": True})
        first.policy_set_many("code", [(f"t.{n}", {"rate": 5}) for n in range(2, 1000)])
        first.put([Draft("t.1", b"2")])
        assert other.lease(1).leases == []
        assert [statement for statement in read if "FROM policy" in statement] == []
        sets = []
        for topic in ("t.5", "t.new"):
            statements: list[str] = []
            first._store.connection.set_trace_callback(statements.append)  # type: ignore[attr-defined]
            first.policy_set("code", topic, {"rate": 6})
            sets.append(len(statements))
        assert max(sets) < 20


def test_namespaces_share_nothing(tmp_path: Path) -> None:
    """Messages of one namespace cannot be leased in another."""
    online = engine_at(tmp_path / "q.db", namespace="online")
    sandbox = engine_at(tmp_path / "q.db", namespace="sandbox")
    online.put([Draft("a", b"1")])
    assert sandbox.lease(5).leases == []
    assert len(online.lease(5).leases) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"this is not a database at all, but long enough to look at" * 50,
        b"SQLite format 3\x00" + b"\xff" * 5000,
    ],
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    """The file stays unchanged."""
    path = tmp_path / "q.db"
    path.write_bytes(content)
    with pytest.raises(EngineCorrupt, match=r"q\.db"):
        engine_at(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """Its tables stay unchanged."""
    path = tmp_path / "q.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    with pytest.raises(EngineCorrupt, match="another program"):
        engine_at(path)


def test_only_the_owner_can_read_a_new_file(tmp_path: Path) -> None:
    """The messages are customers' data; a file that exists keeps its mode."""
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    for name, real in (("q.db", "q.db"), ("link.db", "real.db")):
        with closing(engine_at(tmp_path / name)) as engine:
            engine.put([Draft("a", b"1")])
            modes = {file.stat().st_mode & 0o777 for file in tmp_path.glob(f"{real}*")}
            assert modes == {0o600}
    (tmp_path / "q.db").chmod(0o640)
    with closing(engine_at(tmp_path / "q.db")) as engine:
        engine.put([Draft("a", b"1")])
        assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("q.db*")} == {0o640}


def test_program_of_an_older_version_beside_a_newer_one(tmp_path: Path) -> None:
    """It changes nothing in a file that was upgraded while it had it open."""
    path = tmp_path / "q.db"
    with closing(engine_at(path)) as old:
        old.put([Draft("a", b"1")])
        (lease,) = old.lease(1).leases
        with closing(sqlite3.connect(path)) as newer, newer:
            newer.execute("UPDATE shard SET policy_version = policy_version + 1")
            newer.execute(f"PRAGMA user_version = {store.SCHEMA_VERSION + 1}")
        calls: list[Callable[[], object]] = [
            lambda: old.put([Draft("a", b"1")]),
            lambda: old.put([Draft("a", b"2"), Draft("b", b"3")]),
            lambda: old.lease(1),
            lambda: old.settle([Settlement(lease.handle, lease.fence)]),
            lambda: old.policy_set("code", "a", {"rate": 1}),
        ]
        for call in calls:
            with pytest.raises(SchemaMismatch, match="nothing was changed: upgrade Laneway"):
                call()
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT waiting, leased FROM shard").fetchone() == (0, 1)


def test_a_step_brings_a_file_to_the_next_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction, with all that it holds, while a program of the older layout has it."""
    path, next_layout = tmp_path / "q.db", store.SCHEMA_VERSION + 1
    step = tmp_path / f"{next_layout:04d}_step.sql"
    step.write_text("ALTER TABLE gate ADD COLUMN made_up INTEGER NOT NULL DEFAULT 7;\nBROKEN;\n")
    with closing(engine_at(path)) as old:
        old.put([Draft("a", b"1"), Draft("a", b"2")])
        old.gate_set("g", Gate(concurrency=1))
        with monkeypatch.context() as patched:
            patched.setattr(store, "SCHEMA_VERSION", next_layout)
            patched.setattr(store, "MIGRATIONS", tmp_path)
            with pytest.raises(LanewayError, match="syntax error"):
                engine_at(path)
            assert schema_version(path) == next_layout - 1
            step.write_text(step.read_text().replace("BROKEN;", ""))
            with closing(engine_at(path)) as engine:
                assert schema_version(path) == next_layout
                with closing(sqlite3.connect(path)) as raw:
                    assert raw.execute("SELECT made_up FROM gate").fetchall() == [(7,)]
                (first, _) = engine.lease(2).leases
                assert first.body == b"1"
                assert [check for check in engine.doctor() if not check.ok] == []
        with pytest.raises(SchemaMismatch, match="nothing was changed: upgrade Laneway"):
            old.put([Draft("a", b"3")])


def schema_version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        (version,) = raw.execute("PRAGMA user_version").fetchone()
    return int(version)


@pytest.mark.parametrize("layout", [1, store.SCHEMA_VERSION - 1])
def test_a_layout_that_no_step_begins_at_is_refused(tmp_path: Path, layout: int) -> None:
    """The error has the layout, and what to do with its messages."""
    path = tmp_path / "q.db"
    engine_at(path).close()
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {layout}")
    with pytest.raises(SchemaMismatch, match=rf"layout {layout},.* handle its messages with"):
        engine_at(path)
    assert schema_version(path) == layout


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    """The error has both versions, and what to do."""
    path = tmp_path / "q.db"
    engine_at(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(SchemaMismatch, match=r"layout 99.*upgrade"):
        engine_at(path)


def test_missing_folders_and_folders_instead_of_files_are_errors(tmp_path: Path) -> None:
    """Each error says what to do."""
    with pytest.raises(EngineUnavailable, match="does not exist; make it first"):
        engine_at(tmp_path / "nowhere" / "q.db")
    with pytest.raises(EngineUnavailable, match="folder"):
        engine_at(tmp_path)
    with pytest.raises(EngineUnavailable, match="no such file"):
        engine_at(tmp_path / "q.db", create=False)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """
    A folder that other users may enter; pytest closes its own, also those of a run beside this one.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def opened_by_another_user(path: Path) -> str:
    """What an ordinary user is told: root may do everything."""
    # The interpreter's own folder may be closed to others: import first, drop the rights
    # afterwards.
    program = (
        "import msgspec, sqlite3, importlib.metadata, laneway.engines.sql.admin,"
        " laneway.engines.base\nimport os, sys\nfrom laneway.engines import check_server,"
        " open_engine\nfrom laneway.engines.base import Settings\ncheck_server('sqlite://')\nif"
        " os.getuid() == 0: os.setuid(65534)\ntry:"
        " open_engine('sqlite:///' + sys.argv[1], Settings())\nexcept Exception as error:"
        " print(type(error).__name__, error)\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    return subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    ).stdout


def test_a_file_that_cannot_be_written_is_an_error(open_folder: Path) -> None:
    path = open_folder / "q.db"
    engine_at(path).close()
    path.chmod(0o444)
    assert (
        opened_by_another_user(path)
        == f"EngineUnavailable {path}: the file cannot be written by this user, as even reading it"
        f" needs; run this as user {path.owner()}, or change its permissions\n"
    )


def test_a_folder_that_cannot_be_entered_is_an_error(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir()
    engine_at(closed / "q.db").close()
    closed.chmod(0o700 if os.getuid() == 0 else 0)
    output = opened_by_another_user(closed / "q.db")
    closed.chmod(0o700)
    assert (
        output
        == f"EngineUnavailable {closed}/q.db: Permission denied; check the permissions of the"
        " folders on the way to it\n"
    )


def test_processes_may_create_the_file_at_once(tmp_path: Path) -> None:
    """The first process creates it, the others wait; all of them can use it."""
    program = (
        "import sys\n"
        "from laneway.engines import open_engine\n"
        "from laneway.engines.base import Settings\n"
        "from laneway.message import Draft\n"
        "for n in range(40):\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
        "    engine = open_engine(f'sqlite:///{sys.argv[1]}/{n}.db', Settings())\n"
        "    engine.put([Draft('a', b'1')])\n"
        "    engine.overview()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(4)
    ]
    for _ in range(40):
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()
        for process in started:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it failed; the error is asserted below
                process.stdin.write("go\n")
                process.stdin.flush()
    reports = [process.communicate(timeout=60) for process in started]
    assert [error for _, error in reports] == [""] * 4
    for number in range(40):
        assert engine_at(tmp_path / f"{number}.db").overview().waiting == 4


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """Accepted messages stay; once there is room again, more are accepted."""
    path = tmp_path / "q.db"
    program = (
        "import resource, signal, sys\n"
        "from laneway.engines import open_engine\n"
        "from laneway.engines.base import Settings\n"
        "from laneway.errors import EngineUnavailable\n"
        "from laneway.message import Draft\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "engine = open_engine('sqlite:///' + sys.argv[1], Settings())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))\n"
        "accepted = 0\n"
        "try:\n"
        "    while accepted < 100_000:\n"
        "        accepted += len(engine.put([Draft('a', b'x' * 1000)] * 50))\n"
        "except EngineUnavailable as error:\n"
        "    print(accepted, error)\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    output = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    accepted, _, text = output.stdout.partition(" ")
    assert int(accepted) > 0
    assert text.count("\n") == 1
    engine = engine_at(path)
    assert engine.overview().waiting == int(accepted)
    assert all(check.ok for check in engine.doctor())
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2_000_000


def test_an_index_finds_own_policies_that_name_a_tier(tmp_path: Path) -> None:
    """The cost is the same at one and at a million such policies."""
    with closing(engine_at(tmp_path / "q.db")) as engine:
        engine.policy_set_many("code", [(f"t.{n}", {"rate": n + 1}) for n in range(500)])
        engine.policy_set("operator", "t.7", {"tier": "low"})
        with pytest.raises(BadPolicy, match=r"policy t\.7 names it"):
            engine.tier_set("code", {"low": None})
        connection = engine._store.connection  # type: ignore[attr-defined]
        for layer in ("code", "operator"):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN {SQL[f'own_set_with_{layer}_tier']}", ("low",)
            ).fetchall()
            assert f"own_set_{layer}_tier" in plan[0][3]


@pytest.mark.parametrize("url", ["laneway.db", "sqlit:///x.db", "sqlite://x.db", "mongodb://x"])
def test_urls_that_name_no_engine_are_refused(url: str) -> None:
    """The error names the likely correction."""
    with pytest.raises(UsageError, match="engine URL"):
        open_engine(url, Settings())


def test_replicated_durability_is_refused_at_once(tmp_path: Path) -> None:
    """Opening the engine raises UsageError."""
    with pytest.raises(UsageError, match="replicas"):
        engine_at(tmp_path / "q.db", durability="replicated")


def test_many_threads_share_one_engine_object(tmp_path: Path) -> None:
    """Every message is delivered once."""
    engine = engine_at(tmp_path / "q.db", durability="memory")
    seen: list[str] = []

    def work(number: int) -> None:
        for n in range(50):
            engine.put([Draft(f"t.{number}", str(n).encode())])
            for lease in engine.lease(3).leases:
                seen.append(lease.id)
                engine.settle([Settlement(lease.handle, lease.fence)])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while leases := engine.lease(100).leases:
        seen += [lease.id for lease in leases]
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    assert len(seen) == len(set(seen)) == 300


def test_using_a_closed_engine_is_an_error(tmp_path: Path) -> None:
    """The error says that it is closed; it may be closed twice."""
    engine = engine_at(tmp_path / "q.db")
    engine.close()
    engine.close()
    with pytest.raises(LanewayError, match="closed"):
        engine.put([Draft("a", b"1")])


def test_the_doctor_repairs_disagreements(tmp_path: Path) -> None:
    """An entry without its message, a message that waits nowhere, wrong counts."""
    path = tmp_path / "q.db"
    engine = engine_at(path)
    engine.put([Draft("a", str(n).encode()) for n in range(10)])
    engine.close()
    raw = sqlite3.connect(path)
    (first,) = raw.execute("SELECT min(mid) FROM message").fetchone()
    raw.execute("DELETE FROM message WHERE mid = ?", (first + 2,))
    raw.execute("DELETE FROM ready WHERE mid = ?", (first + 4,))
    raw.execute("UPDATE lane SET ready = 77")
    raw.commit()
    raw.close()
    engine = engine_at(path)
    assert [check.name for check in engine.doctor() if not check.ok] == [
        "order",
        "messages",
        "counts",
        "totals",
        "history",
    ]
    engine.doctor(repair=True)
    assert all(check.ok for check in engine.doctor())
    assert sorted(lease.body for lease in engine.lease(100).leases) == [
        str(n).encode() for n in range(10) if n != 2
    ]


def test_the_doctor_repairs_timers(tmp_path: Path) -> None:
    """Without the timer of its lane a delayed message would never arrive."""
    path, due = tmp_path / "q.db", time.time_ns() // 1000 + 3_600_000_000
    with closing(engine_at(path)) as engine:
        engine.put([Draft("a", b"1", at_us=due)])
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DELETE FROM timer")
        raw.commit()
    with closing(engine_at(path)) as engine:
        assert [check.name for check in engine.doctor() if not check.ok] == ["messages"]
        engine.doctor(repair=True)
        assert all(check.ok for check in engine.doctor())
        assert engine.lease(1, now_us=due - 1).leases == []
        assert len(engine.lease(1, now_us=due).leases) == 1


def test_first_places_that_a_put_has_read_are_stored(tmp_path: Path) -> None:
    """A put that drops from one partition also learns where the others begin."""
    with closing(engine_at(tmp_path / "q.db")) as engine:
        engine.policy_set(
            "code", "a", {"max_backlog": 6, "on_full": "drop_oldest", "partitions": 2}
        )
        for n in range(12):
            engine.put([Draft("a", b"x", key=f"k{n}")])
        engine.lease(2)
        for n in range(4):
            engine.put([Draft("a", b"x", key=f"y{n}")])
            assert [check.name for check in engine.doctor() if not check.ok] == []


def test_a_recreated_file_repeats_no_number(tmp_path: Path) -> None:
    """Leases of a deleted file are "lost" in the file that replaces it."""
    path = tmp_path / "q.db"
    drafts = [Draft("a", b"%d" % n) for n in range(5)]
    before = engine_at(path)
    ids = {receipt.id for receipt in before.put(drafts)}
    old = before.lease(5).leases
    before.close()
    for each in tmp_path.glob("q.db*"):
        each.unlink()
    engine = engine_at(path)
    assert not ids & {receipt.id for receipt in engine.put(drafts)}
    new = engine.lease(5).leases
    assert min(lease.fence for lease in new) > max(lease.fence for lease in old)
    assert engine.extend([(lease.handle, lease.fence) for lease in old], 60_000_000) == [False] * 5
    for action in ("ack", "retry", "dead", "release"):
        assert (
            engine.settle([Settlement(lease.handle, lease.fence, action) for lease in old])
            == ["lost"] * 5
        )
    assert engine.settle([Settlement(lease.handle, lease.fence) for lease in new]) == ["acked"] * 5
    engine.close()


def test_close_does_not_wait_for_another_process(tmp_path: Path) -> None:
    """A call that waits for the write lock ends with an error, and `close` goes on."""
    errors: list[EngineUnavailable] = []
    engine = engine_at(tmp_path / "q.db")

    def put() -> None:
        try:
            engine.put([Draft("a", b"1")])
        except EngineUnavailable as error:
            errors.append(error)

    with closing(sqlite3.connect(tmp_path / "q.db")) as raw:
        raw.execute("BEGIN IMMEDIATE")
        thread = threading.Thread(target=put)
        thread.start()
        lock = engine._store.lock  # type: ignore[attr-defined]
        while lock.acquire(blocking=False):  # until the thread has it, and waits
            lock.release()
        engine.close()
        thread.join(store.BUSY_TIMEOUT / 2)
        assert not thread.is_alive()
    assert "closed" in str(errors[0])
    assert errors[0].applied is False


def test_a_read_after_the_commit_that_fails_fails_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is stored: an error would make its publisher repeat it."""
    reads: list[str] = []

    class Damaged(Connection):
        def all(self, name: str, *values: object) -> list[object]:
            if name == "next_wake" and not self.in_transaction:
                reads.append(name)
                raise sqlite3.OperationalError("disk I/O error")
            return super().all(name, *values)

    monkeypatch.setattr(store, "Connection", Damaged)
    with closing(engine_at(tmp_path / "q.db")) as engine:
        assert [each.outcome for each in engine.put([Draft("a", b"1", delay_us=1)] * 2)] == [
            "accepted"
        ] * 2
        assert len(engine.lease(10).leases) == 2
    assert len(reads) == 2


def test_ids_of_another_store_are_deleted_when_their_windows_end(tmp_path: Path) -> None:
    """A migration brings the ids of finished messages, and when each is forgotten."""
    path = tmp_path / "q.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.tick()  # nothing is due
        end = time.time_ns() // 1000 + 3600 * SECOND
        engine.import_finished([("a", "x", end), ("a", "y", None)])
        assert [check for check in engine.doctor() if not check.ok] == []
        assert [receipt.outcome for receipt in engine.put([Draft("a", b"", id="x")])] == [
            "duplicate"
        ]
        engine.tick(now_us=end)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("SELECT id FROM ident").fetchall() == [("y",)]


@pytest.mark.parametrize("damage", ["DELETE FROM serial_key", "DELETE FROM parked"])
def test_the_doctor_finds_messages_behind_a_lost_key(tmp_path: Path, damage: str) -> None:
    """Messages that waited behind the head of their serial key are delivered after a repair."""
    path = tmp_path / "q.db"
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        engine.policy_set("code", "a", {"serial": True})
        engine.put([Draft("a", b"%d" % n, key="k") for n in range(3)])
        held = engine.lease(10).leases
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute(damage)
    with closing(open_engine(f"sqlite:///{path}", Settings())) as engine:
        assert "messages" in [check.name for check in engine.doctor() if not check.ok]
        engine.doctor(repair=True)
        assert [check for check in engine.doctor() if not check.ok] == []
        bodies = []
        while held:
            bodies += [lease.body for lease in held]
            engine.settle([Settlement(lease.handle, lease.fence) for lease in held])
            held = engine.lease(10).leases
        assert bodies == [b"0", b"1", b"2"]
