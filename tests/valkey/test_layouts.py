"""Namespaces of other layouts."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import redis

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey import layouts, record_formats
from laneway.engines.valkey.connection import Connections
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import SchemaMismatch
from laneway.message import Draft
from laneway.testing.servers import Server

Opened = Callable[..., FullEngine]

BEFORE = record_formats.LAYOUT - 2
"""The layout that two made-up steps begin at."""

COPYING_AT = record_formats.Counters.__struct_fields__.index("copying")


def client(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url.replace("valkey://", "redis://"))


def make_older(server: Server, opened: Opened) -> None:
    """
    The namespace `before` of two shards, as a program of the layout `BEFORE` could have left it:
    its shards have no counter of copies.
    """
    engine = opened(f"{server.url}?shards=2", namespace="before")
    engine.put([Draft(f"t.{n}", b"kept") for n in range(9)])
    engine.close()
    names = record_formats.Counters.__struct_fields__
    with client(server) as raw:
        for shard in range(2):
            key = f"laneway:{{before/{shard}}}:shard"
            values = record_formats.unpack_values(raw.get(key), len(names))
            values[0] = BEFORE
            del values[COPYING_AT]
            raw.set(key, record_formats.pack_values(*values))
        raw.hset("laneway:{before/0}:settings", "layout", BEFORE)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two made-up steps; the layouts whose functions have run."""
    done: list[int] = []

    def fill(space: Namespace, layout: int) -> None:
        space.run("policies_read", 0, None)  # today's functions can be called
        done.append(layout)

    first = layouts.Step([(COPYING_AT + 1, 0)], lambda space: fill(space, BEFORE))
    monkeypatch.setitem(layouts.STEPS, BEFORE, first)
    second = layouts.Step([], lambda space: fill(space, BEFORE + 1))
    monkeypatch.setitem(layouts.STEPS, BEFORE + 1, second)
    return done


def check_holds_all(engine: FullEngine) -> None:
    assert sum(stats.waiting for stats in engine.topic_list()) == 9
    assert [check for check in engine.doctor() if not check.ok] == []


def test_steps_follow_one_another(opened: Opened, filled: list[int]) -> None:
    """All that the namespace holds stays."""
    with Server() as server:
        make_older(server, opened)
        engine = opened(server.url, namespace="before")
        check_holds_all(engine)
        assert len(engine.lease(100).leases) == 9
        assert filled == [BEFORE, BEFORE + 1]


@pytest.mark.parametrize("calls", range(1, 15))
def test_bringing_up_may_break_off_anywhere(
    opened: Opened, filled: list[int], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next program that opens the namespace continues."""
    with Server() as server:
        make_older(server, opened)
        left = calls
        call = Connections.call

        def breaking(self: Connections, *arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return call(self, *arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(Connections, "call", breaking)
            try:
                opened(server.url, namespace="before").close()
            except KeyboardInterrupt:
                pass
        check_holds_all(opened(server.url, namespace="before"))
        assert set(filled) == {BEFORE, BEFORE + 1}


def test_programs_that_open_an_older_namespace_at_once(opened: Opened, filled: list[int]) -> None:
    """One brings it up, the others wait for it."""
    with Server() as server:
        make_older(server, opened)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                engine = open_engine(server.url, Settings(namespace="before"))
                check_holds_all(engine)
                engine.close()
            except BaseException as error:  # checked below
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []
        assert filled == [BEFORE, BEFORE + 1]


def test_a_layout_that_no_step_begins_at_is_refused(opened: Opened) -> None:
    """The error has the layout, and what to do with its messages."""
    with Server() as server:
        make_older(server, opened)
        with client(server) as raw:
            raw.hdel("laneway:{before/0}:settings", "tier_layers")  # the first ones had none
        with pytest.raises(
            SchemaMismatch, match=rf"layout {BEFORE},.* handle its messages with that version"
        ):
            opened(server.url, namespace="before")


def test_a_program_of_an_older_layout_is_refused_while_it_runs(opened: Opened) -> None:
    """Its next call says so: here one that meets a newer layout."""
    with Server() as server:
        engine = opened(server.url, namespace="mine")
        with client(server) as raw:
            raw.set("laneway:{mine/0}:shard", b"\x63" + raw.get("laneway:{mine/0}:shard")[1:])
        with pytest.raises(SchemaMismatch, match=r"layout 99.*upgrade"):
            engine.lease(1)
