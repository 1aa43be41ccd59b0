"""
Holders that die, stop, or are cut off: a successor takes over, and never do two holders pass the
fence.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing

from laneway.testing.servers import Server
from tests.cluster.conftest import TERM, Candidates, Store
from tests.cluster.zookeeper_server import ZooKeeper
from tests.server_groups import Proxy


def two(candidates: Candidates, store: Store) -> tuple[int, int]:
    """Process ids of the holder and of a candidate."""
    first = candidates.start(store)
    candidates.wait_for(lambda: candidates.holder() == first.pid, "the first holder")
    return first.pid, candidates.start(store).pid


def test_killed_holder(store: Store, candidates: Candidates) -> None:
    """A holder that is killed is followed after its term, by one who knows that it did not hand
    over."""
    first, second = two(candidates, store)
    os.kill(first, signal.SIGKILL)
    candidates.wait_for(lambda: candidates.holder() == second, "the successor")
    candidates.fenced.check()
    *_, last = candidates.fenced.terms().values()
    assert last[0][1] == "begin, not handed over"


def test_stopped_process(store: Store, candidates: Candidates) -> None:
    """A holder that is stopped past its term and goes on does not write any more in that term."""
    first, second = two(candidates, store)
    candidates.stop(first, store)
    candidates.wait_for(lambda: candidates.holder() == second, "the successor")
    number = candidates.fenced.rows()[-1][0]
    began = time.monotonic()
    os.kill(first, signal.SIGCONT)
    state = len(candidates.fenced.rows())
    candidates.wait_for(lambda: len(candidates.fenced.rows()) > state + 20, "further work")
    candidates.fenced.check()
    late = [row for row in candidates.fenced.rows() if row[0] < number and row[3] > began]
    assert late == []
    os.kill(second, signal.SIGTERM)
    candidates.wait_for(lambda: candidates.holder() == first, "the first one again")
    candidates.fenced.check()


def test_terminated_holder(store: Store, candidates: Candidates) -> None:
    """SIGTERM: the holder hands over, and the successor does not wait for the term's end."""
    first = candidates.start(store, term=60)
    candidates.wait_for(lambda: candidates.holder() == first.pid, "the first holder")
    second = candidates.start(store, term=60)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    candidates.wait_for(lambda: candidates.holder() == second.pid, "the successor")
    one, other = candidates.fenced.terms().values()
    assert one[-1][1] == "handed over"
    assert other[0][1] == "begin, handed over"
    candidates.fenced.check()


def cut_off(candidates: Candidates, near: Store, far: Store, proxy: Proxy) -> None:
    """The holder behind the proxy is cut off: it stops before the other one begins."""
    first = candidates.start(near)
    candidates.wait_for(lambda: candidates.holder() == first.pid, "the first holder")
    second = candidates.start(far)
    proxy.hang()
    candidates.wait_for(lambda: candidates.holder() == second.pid, "the successor")
    terms = list(candidates.fenced.terms().values())
    proxy.cut()
    proxy.heal()
    candidates.fenced.check()
    last = max(n for n, term in enumerate(terms) if term[0][0] == first.pid)
    one, other = terms[last : last + 2]
    assert one[-1][2] < other[0][2], "it has stopped by its own clock"
    assert "handed over" not in [what for _, what, _ in one]
    os.kill(second.pid, signal.SIGTERM)
    candidates.wait_for(lambda: candidates.holder() == first.pid, "the first one again")
    candidates.fenced.check()


def test_cut_off_from_valkey(candidates: Candidates) -> None:
    """A network that forwards nothing any more."""
    with Server() as server, Proxy(server.port) as proxy:
        near = Store("valkey", f"valkey://127.0.0.1:{proxy.port}?timeout=1", namespace="n")
        far = Store("valkey", f"{server.url}?timeout=1", namespace="n")
        cut_off(candidates, near, far, proxy)


def test_cut_off_from_zookeeper(
    candidates: Candidates, zookeeper: ZooKeeper, tmp_path: object
) -> None:
    """The same; its session expires."""
    url, root = f"sqlite:///{tmp_path}/q.db", f"/cut-{time.time_ns()}"
    with Proxy(zookeeper.port) as proxy:
        near = Store("zookeeper", url, f"127.0.0.1:{proxy.port}{root}", "n")
        cut_off(candidates, near, Store("zookeeper", url, zookeeper.address + root, "n"), proxy)


def test_store_that_does_not_answer(candidates: Candidates, tmp_path: object) -> None:
    """A holder whose file is locked stops by its own clock, and goes on with a new term later."""
    path = f"{tmp_path}/q.db"
    first = candidates.start(Store("sqlite", f"sqlite:///{path}", namespace="default"))
    candidates.wait_for(lambda: candidates.holder() == first.pid, "the first holder")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        locked = time.monotonic()
        rows = -1
        while rows != (rows := len(candidates.fenced.rows())) or time.monotonic() - locked < TERM:
            time.sleep(0.2)
        late = [row for row in candidates.fenced.rows() if row[3] - locked >= TERM]
        assert len(late) <= 1, "within its term; one write may be on its way for a while"
        count = len(candidates.fenced.terms())
        connection.execute("ROLLBACK")
    candidates.wait_for(lambda: len(candidates.fenced.terms()) > count, "another term")
    candidates.fenced.check()


def test_valkey_that_loses_its_data(candidates: Candidates) -> None:
    """Numbers grow also if the store forgets the last one."""
    with Server() as server:
        first = candidates.start(Store("valkey", server.url))
        candidates.wait_for(lambda: candidates.holder() == first.pid, "the first holder")
        server.kill()
        count = len(candidates.fenced.terms())
        server.start()  # empty
        candidates.wait_for(lambda: len(candidates.fenced.terms()) > count, "another term")
        candidates.fenced.check()
