"""Errors are one line that says what cannot work, and nothing is lost."""

from __future__ import annotations

import http.server
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from laneway.engines.base import FullEngine, ResultListener
from laneway.engines.valkey import connection, server_check
from laneway.engines.valkey.address import parse
from laneway.engines.valkey.doctor import check_server
from laneway.engines.valkey.server_check import Facts
from laneway.errors import (
    BadMessage,
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    NoNamespace,
    SchemaMismatch,
    UsageError,
)
from laneway.message import Draft
from laneway.policy import Gate
from laneway.testing.servers import Server, free_port, until
from tests.conformance.valkey_setups import acl_rule, cluster, guarded, sentinels, server
from tests.server_groups import Cluster, Replicated, end_listening
from tests.valkey.conftest import drain, some

Opened = Callable[..., FullEngine]


def refusal(opened: Opened, url: str, **settings: object) -> LanewayError:
    with pytest.raises(LanewayError) as caught:
        opened(url, **settings)
    text = str(caught.value)
    assert "\n" not in text
    assert "secret" not in text, "no password in an error"
    return caught.value


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("valky://localhost", 'there is no engine "valky".*did you mean "valkey"'),
        ("valkey+clustre://localhost", 'did you mean "valkey\\+cluster"'),
        ("valkey://u:secret@localhost?timout=3", 'unknown option "timout"; did you mean "timeout"'),
        ("valkey://u:secret@localhost?shards=3", "shards: expected a power of two"),
        ("valkey://u:secret@localhost?timeout=soon", "timeout: expected seconds"),
        ("valkey://u:secret@localhost:port", "expected a port from 1 to 65535"),
        ("valkey://u:secret@localhost/db", 'expected the number of a database, got "db"'),
        ("valkey+cluster://localhost/3", "a cluster has only database 0"),
        ("valkey+sentinel://u:secret@localhost", "the name of the master is missing"),
        ("valkey://a:1,b:2", "write valkey\\+cluster:// or valkey\\+sentinel://"),
        ("unix://", "the path is missing"),
        (
            "nope://localhost",
            r"only .*valkey, valkey\+cluster, valkey\+sentinel.*valkeys\+sentinel",
        ),
        (
            "rediss://localhost?ca=/nope",
            (
                r"\?ca=/nope: the file of certificates cannot be read \(No such file or"
                r" directory\); check the path"
            ),
        ),
        (f"valkeys://localhost?ca={__file__}", "there are no certificates in this file"),
        ("unix:///there/is/none", "nothing listens there"),
        ("valkey://no.such.host.invalid", "no such host|no answer"),
    ],
)
def test_a_wrong_url(opened: Opened, url: str, expected: str) -> None:
    error = refusal(opened, url)
    assert re.search(expected, str(error)), error


def test_nothing_listens(opened: Opened) -> None:
    assert "nothing listens there; start the server" in str(
        refusal(opened, f"valkey://127.0.0.1:{free_port()}")
    )


def test_wrong_and_missing_passwords(opened: Opened) -> None:
    with Server(requirepass="secret") as own:
        port = own.port
        assert "asks for a password" in str(refusal(opened, f"valkey://127.0.0.1:{port}"))
        assert "wrong password for the default user" in str(
            refusal(opened, f"valkey://:wrong@127.0.0.1:{port}")
        )
        assert 'wrong password for user "nobody"' in str(
            refusal(opened, f"valkey://nobody:secret@127.0.0.1:{port}")
        )
        own.run("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+get", "+info", "+client")
        error = refusal(opened, f"valkey://reader:secret@127.0.0.1:{port}")
        assert "the user may not do this" in str(error)
        assert "docs/engines.md" in str(error)


@contextmanager
def speaking(answer: bytes) -> Iterator[int]:
    """A server that says one thing to everybody."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client:
                client.recv(1000)
                client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    end_listening(listener)


def test_something_else_listens(opened: Opened) -> None:
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler
    ) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        error = refusal(opened, f"valkey://127.0.0.1:{web.server_port}?timeout=20")
        web.shutdown()
    assert "this is not a Valkey or Redis server" in str(error) or "hung up" in str(error)


def test_protected_mode(opened: Opened) -> None:
    denied = (
        b"-DENIED Running in protected mode because protected mode is enabled and no password is"
        b" set\r\n"
    )
    with speaking(denied) as port:
        assert "protected mode" in str(refusal(opened, f"valkey://127.0.0.1:{port}"))


def test_tls_where_there_is_none(opened: Opened) -> None:
    assert "if the server speaks no TLS, write valkey://" in str(
        refusal(opened, server().url.replace("valkey://", "valkeys://") + "?timeout=1")
    )


def test_a_silent_server_is_asked_once(opened: Opened) -> None:
    """An attempt that used up the time for an answer is not repeated."""
    callers = 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"valkeys://127.0.0.1:{listener.getsockname()[1]}?timeout=0.6"
        assert "no answer within 0.6 s" in str(refusal(opened, url))
        listener.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                listener.accept()[0].close()
                callers += 1
    assert callers == 1


@pytest.mark.parametrize(
    ("product", "version", "expected"),
    [("valkey", (7, 2, 5), "Valkey 7.2.5 is too old"), ("redis", (6, 2), "Redis 6.2 is too old")],
)
def test_too_old(product: str, version: tuple[int, ...], expected: str) -> None:
    facts = Facts(product, version, "master", False, "noeviction", False, "", 0)
    assert expected in server_check.problems(facts, parse("valkey://localhost"), "memory")[0]


def test_waitaof_came_with_redis_7_2() -> None:
    facts = Facts("redis", (7, 0, 15), "master", False, "noeviction", True, "always", 0)
    assert server_check.problems(facts, parse("redis://localhost"), "memory") == []
    assert "has no WAITAOF" in server_check.problems(facts, parse("redis://localhost"), "fsync")[0]
    assert (
        server_check.problems(
            msgspec.structs.replace(facts, version=(7, 2, 0)), parse("redis://localhost"), "fsync"
        )
        == []
    )


def test_a_replica_and_the_wrong_topology(opened: Opened) -> None:
    with Replicated(1) as group:
        assert "this is a replica" in str(refusal(opened, group.replicas[0].url))
        assert "this is no cluster" in str(
            refusal(opened, group.url.replace("valkey://", "valkey+cluster://"))
        )
    with Cluster(1, 0) as own:
        assert "write valkey+cluster:// instead" in str(refusal(opened, own.masters[0].url))


def test_a_cluster_that_is_away(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls on one shard and on several say so, and go on when it is back."""
    monkeypatch.setattr(connection, "PATIENCE", 0.1)
    with Cluster(1, 0) as own:
        engine = opened(f"{own.url}?shards=8", durability="memory")
        engine.put(some(10))
        own.masters[0].kill()
        for count in (1, 100):
            with pytest.raises(EngineUnavailable, match="nothing listens there"):
                engine.put(some(count))
        own.masters[0].start()
        until(lambda: own.is_ok(own.masters[0]), "the cluster")
        engine.put(some(10))


def test_a_slot_that_no_node_has_for_a_moment(opened: Opened) -> None:
    """A call on several shards waits for it."""
    engine = opened(f"{cluster()}?shards=8")
    engine.put(some(100))
    nodes = engine._space.server._nodes._client.nodes_manager  # type: ignore[attr-defined]
    nodes.slots_cache = {}
    assert engine.overview().waiting == 100
    assert len(nodes.slots_cache) == Cluster.SLOTS


def test_no_such_master(opened: Opened) -> None:
    assert "this is no sentinel" in str(
        refusal(opened, f"valkey+sentinel://127.0.0.1:{server().port}/nobody")
    )
    assert 'the sentinels know no master "nobody"' in str(
        refusal(opened, sentinels().replace("/mine", "/nobody"))
    )


def test_memory_that_has_run_out(opened: Opened) -> None:
    """Nothing more is taken in, nothing is lost, and consuming makes room."""
    with Server(maxmemory="6mb") as small:
        engine = opened(small.url)
        accepted = 0
        with pytest.raises(  # noqa: PT012
            EngineUnavailable, match=r"out of memory \(maxmemory\).*nothing was changed"
        ) as caught:
            while True:
                accepted += len(engine.put([Draft(f"t.{n}", b"x" * 2000) for n in range(100)]))
        assert caught.value.applied is False
        assert engine.overview().waiting == accepted
        # What a worker does when it starts goes on.
        engine.policy_set("code", "t.*", {"rate": "1000000/s"})
        engine.gate_set("g", Gate(concurrency=5), layer="code")
        accepted += len(engine.put([Draft("laneway.schedule.hourly", b"x")]))
        accepted -= engine.topic_purge("t.0")
        assert len(drain(engine)) == accepted
        engine.put(some(10))
        assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("size", [1_100_000, 9_000_000])
def test_a_value_that_the_server_never_takes(opened: Opened, size: int) -> None:
    """
    It is refused as a bad message, so that buffers and spools go on without it. A server closes the
    connection in the middle of a long one, and after the answer to a short one: the next call uses
    another connection, as the end of this one may not have arrived.
    """
    with Server(**{"proto-max-bulk-len": "1mb"}) as small:
        engine = opened(small.url)
        engine.policy_set("code", "a", {"max_body": 10_000_000})
        with pytest.raises(BadMessage, match=r"larger than the server takes .proto-max-bulk-len"):
            engine.put([Draft("a", bytes(size)), Draft("a", b"1")])
        assert not any(engine._space.server._idle._stacks.values())  # type: ignore[attr-defined]
        assert engine.put([Draft("a", b"2")])[0].outcome == "accepted"
        assert engine.topic_stats("a").waiting == 1


def test_a_key_of_another_program(opened: Opened) -> None:
    with Server() as shared:
        engine = opened(shared.url, namespace="mine")
        engine.close()
        shared.run("DEL", "laneway:{mine/0}:shard")
        shared.run("RPUSH", "laneway:{mine/0}:shard", "something else")
        error = refusal(opened, shared.url, namespace="mine")
        assert isinstance(error, EngineCorrupt)
        assert "a key of another program is in the way" in str(error)


def test_another_number_of_shards_and_another_layout(opened: Opened) -> None:
    url = server().url
    opened(f"{url}?shards=4", namespace="four-shards")
    assert opened(url, namespace="four-shards").capabilities.shards == 4
    error = refusal(opened, f"{url}?shards=8", namespace="four-shards")
    assert "was created with 4 shards, the URL asks for 8" in str(error)
    assert "laneway migrate" in str(error)
    for layout, advice in (("1", "use another namespace"), ("99", "upgrade Laneway")):
        server().run("HSET", "laneway:{four-shards/0}:settings", "layout", layout)
        error = refusal(opened, url, namespace="four-shards")
        assert isinstance(error, SchemaMismatch)
        assert f"has layout {layout}" in str(error)
        assert advice in str(error)


def test_a_missing_namespace(opened: Opened) -> None:
    assert isinstance(
        refusal(opened, server().url, namespace="nobody-was-here", create=False), NoNamespace
    )
    assert isinstance(refusal(opened, server().url, namespace="no/slash"), UsageError)


def test_a_namespace_whose_maker_died_is_finished_by_the_next(opened: Opened) -> None:
    for _ in range(2):  # also one that has been finished like that before
        namespace = "half-made"
        first = opened(f"{server().url}?shards=2", namespace=namespace)
        first.put(some(4))
        prefix = f"laneway:{{{namespace}/"
        server().run("HDEL", f"{prefix}0}}:settings", "layout")  # which is written last
        server().run("DEL", f"{prefix}1}}:shard", f"{prefix}1}}:resolved")
        engine = opened(server().url, namespace=namespace)
        assert engine.capabilities.shards == 2
        engine.put(some(20, start=10))
        assert [
            check for check in engine.doctor() if check.name == "policies" and not check.ok
        ] == []


def test_a_user_who_may_load_no_scripts(opened: Opened) -> None:
    with Server(requirepass="secret") as own:
        own.run(
            "ACL",
            "SETUSER",
            "half",
            "on",
            ">secret",
            *acl_rule().split(),
            "-function|load",
        )
        error = refusal(opened, f"valkey://half:secret@127.0.0.1:{own.port}")
        assert "the user may not do this" in str(error)


def test_two_applications_do_not_meet(opened: Opened) -> None:
    ours, theirs = opened(server().url), opened(server().url)
    ours.put(some(5))
    ours.policy_set("code", "t.*", {"paused": True})
    assert theirs.lease(10).leases == []
    assert theirs.overview().waiting == 0
    assert theirs.policies().rows() == []


def test_a_user_with_few_rights_on_several_shards(opened: Opened) -> None:
    """Grants of gates are moved, and a listener that stops to listen for a job goes on."""
    engine = opened(f"{guarded()}?shards=4")
    engine.gate_set("g", Gate(concurrency=8))
    engine.policy_set("code", "t.*", {"gate": "g"})
    engine.put(some(20))
    assert engine.lease(20).leases
    with closing(engine.result_listener()) as listener:
        listener.subscribe("a", "b")
        assert sorted(reported(listener, 2)) == ["a", "b"]
        listener.unsubscribe("a")
        listener.subscribe("c")
        assert reported(listener, 1) == ["c"]


def reported(listener: ResultListener, count: int) -> list[str]:
    """What a listener reports whose connection is not lost."""
    found: list[str] = []
    while len(found) < count:
        page = listener.poll(4.0)
        assert page is not None
        found += page
    return found


def test_a_user_may_run_every_command() -> None:
    """Those of the functions too: the server asks for each."""
    allowed = {name.partition("|")[0] for name in server_check.COMMANDS}
    folder = Path(server_check.__file__).parent
    used = set()
    for file in folder.rglob("*.lua"):
        used |= set(re.findall(r"\b(?:call|run)(?:_many)?\(\s*'([A-Z]+)'", file.read_text()))
    for file in folder.glob("*.py"):
        used |= set(re.findall(r"(?:\bread|packed)\((?:\w+, )?\"([A-Z]+)\"", file.read_text()))
        used |= set(re.findall(r"\(\"([HZ][A-Z]+)\", ", file.read_text()))  # of several
    assert {"ZADD", "HSCAN", "FUNCTION", "ZRANDMEMBER"} <= used
    assert {name.lower() for name in used} <= allowed


def test_the_docs_list_the_rights_of_a_user() -> None:
    """Exactly those with which the whole suite was run."""
    text = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    block = text.partition("ACL SETUSER laneway on >PASSWORD ")[2].partition("```")[0]
    assert block.split() == acl_rule().split()


def test_the_doctor_does_not_wait_for_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody sits before it: it has no more patience than a program that starts."""
    monkeypatch.setattr("laneway.engines.valkey.connection.PATIENCE", 1e9)
    with pytest.raises(EngineUnavailable, match="nothing listens there"):
        check_server(f"valkey://127.0.0.1:{free_port()}")
