"""Careers in this process: what is called when, and what happens when it goes wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from laneway import Election, Laneway, StepAborted, Term, TermLost, UsageError
from laneway.cluster.term import AtomicStep, TermEvent, clock
from laneway.units import Duration
from tests.cluster.conftest import Store

LONG = 60.0
"""Seconds that no test waits: what happens sooner did not wait for them."""


class Log:
    """What careers did, in their order."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._changed = threading.Condition()

    def add(self, entry: str) -> None:
        with self._changed:
            self.entries.append(entry)
            self._changed.notify_all()

    def wait_for(self, entry: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.entries.count(entry) >= times, 30), (
                f"no {entry!r} in {self.entries}"
            )


@pytest.fixture
def log() -> Log:
    return Log()


@contextmanager
def running(election: Election, **options: Any) -> Iterator[threading.Thread]:
    """A candidate in a thread, which ends with the block."""
    thread = threading.Thread(target=election.run, kwargs=options)
    thread.start()
    try:
        yield thread
    finally:
        election.stop()
        thread.join(30)
        assert not thread.is_alive()


def plain(log: Log, execute: Callable[[Term], object]) -> Any:
    class Plain:
        def inaugurate(self) -> None:
            log.add("inaugurate")

        def execute(self, term: Term) -> None:
            log.add("execute")
            execute(term)

        def hand_over(self) -> None:
            log.add("hand over")

    return Plain


def until_ending(term: Term) -> None:
    term.ending.wait(30)


def test_order(store: Store, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A term is inaugurated, executed and handed over; the next one has a larger number."""
    terms: list[Term] = []
    with store.app() as app:
        election = app.election("a", plain(log, terms.append), term=LONG, zookeeper=store.zookeeper)
        assert election.run(terms=2) == 2
        assert log.entries == ["inaugurate", "execute", "hand over"] * 2
        assert [term.was_handed_over for term in terms] == [False, True]
        assert terms[0].number < terms[1].number
        state = election.state()
        assert (state.number, state.state, state.handed_over) == (terms[1].number, "free", True)
    with store.app() as app:
        again = app.election("a", plain(log, terms.append), term=LONG, zookeeper=store.zookeeper)
        again.run(terms=1)
        assert terms[2].number > terms[1].number, "also in a store that was closed"
    assert not any(term.is_held for term in terms)
    assert all(term.ending for term in terms)
    assert [record for record in caplog.records if record.name == "laneway.election"] == []


def test_coroutines(store: Store, log: Log) -> None:
    """Coroutine functions run on the caller's event loop; the methods may take the term."""

    class Career:
        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

        async def inaugurate(self, term: Term) -> None:
            log.add(f"inaugurate {term.name}")

        async def execute(self, term: Term) -> None:
            assert asyncio.get_running_loop() is self.loop
            log.add("execute")
            await term.ending

        async def hand_over(self, term: Term) -> None:
            assert term.is_held
            assert not await term.asleep(LONG)
            log.add("hand over")

    async def main(app: Laneway) -> int:
        election = app.election("b", Career, term=LONG, zookeeper=store.zookeeper)
        task = asyncio.create_task(election.arun(terms=1))
        await asyncio.to_thread(log.wait_for, "execute")
        assert (await election.astate()).state == "held"
        await election.astep_down(wait=30)
        return await task

    with store.app() as app:
        assert asyncio.run(main(app)) == 1
    assert log.entries == ["inaugurate b", "execute", "hand over"]


def test_execute_again_and_again(app: Laneway, log: Log) -> None:
    """While it returns True, until the term is ending."""

    class Career:
        def inaugurate(self) -> None:
            self.steps = 0

        def execute(self, term: Term) -> bool:
            self.steps += 1
            log.add(f"step {self.steps}")
            if self.steps == 5:
                app.election("a", Career).step_down()
                term.ending.wait(30)
            return self.steps < 3 or log.entries.count("hand over") == 1

        def hand_over(self) -> None:
            log.add("hand over")

    assert app.election("a", Career, term=LONG).run(terms=2) == 2
    assert log.entries == [
        *(f"step {n}" for n in range(1, 4)),
        "hand over",
        *(f"step {n}" for n in range(1, 6)),
        "hand over",
    ]


def test_step_down(store: Store, log: Log) -> None:
    """A holder that is asked to step down hands over, and another candidate is next."""
    with store.app() as app, store.app() as other:
        first = app.election("c", plain(log, until_ending), term=10.0, zookeeper=store.zookeeper)
        with running(first):
            log.wait_for("execute")
            held = first.state()
            assert held.state == "held"
            assert held.holder is not None
            second = other.election(
                "c", plain(log, until_ending), term=10.0, zookeeper=store.zookeeper
            )
            with running(second):
                after = app.election("c", zookeeper=store.zookeeper).step_down(wait=30)
                assert after.state == "free" or after.number > held.number
                log.wait_for("execute", 2)
                assert log.entries == ["inaugurate", "execute", "hand over", *log.entries[:2]]
                assert second.state().candidate != held.candidate
    assert log.entries == ["inaugurate", "execute", "hand over"] * 2


def test_successor_waits_for_the_bound(store: Store, log: Log) -> None:
    """A holder that does not hand over in time has lost its term, and the successor begins."""
    let_go = threading.Event()

    def stubborn(term: Term) -> None:
        if log.entries.count("execute") > 1:
            return until_ending(term)
        try:
            term.ending.wait(30)
            log.add("asked")
            while not let_go.wait(0.01):  # it does not stop
                pass
        except TermLost:
            log.add("lost")
            raise
        return None

    with store.app() as app, store.app() as other:
        options: Any = {"term": 10.0, "hand_over_within": 1.0, "zookeeper": store.zookeeper}
        with running(app.election("d", plain(log, stubborn), **options)):
            log.wait_for("execute")
            with running(other.election("d", plain(log, stubborn), **options)):
                asked = time.monotonic()
                app.election("d", zookeeper=store.zookeeper).step_down()
                log.wait_for("lost")
                assert time.monotonic() - asked >= 0.7
                log.wait_for("execute", 2)
                assert "hand over" not in log.entries
        let_go.set()


def spin(log: Log) -> None:
    """A step that ends only by being aborted."""
    log.add("step")
    while True:
        time.sleep(0.001)


def test_atomic_step(app: Laneway, log: Log) -> None:
    """An atomic step is aborted at once; it does not begin when the term is ending already."""

    def execute(term: Term) -> None:
        try:
            with term.atomic():
                spin(log)
        except StepAborted:
            log.add("aborted")
        with pytest.raises(StepAborted), term.atomic():
            log.add("never")
        assert term.is_held
        with term.atomic():
            log.add("nor this")

    with running(app.election("e", plain(log, execute), term=LONG)):
        log.wait_for("step")
        app.election("e").step_down(wait=30)
    assert log.entries == ["inaugurate", "execute", "step", "aborted", "hand over"]


def test_atomic_statement(app: Laneway, log: Log) -> None:
    """`cancel` interrupts a statement that does not return meanwhile; nothing of it remains."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.execute("CREATE TABLE t (n)")

    def execute(term: Term) -> None:
        with term.atomic(cancel=connection.interrupt), connection:
            connection.execute("INSERT INTO t VALUES (1)")
            log.add("step")
            connection.execute(
                "INSERT INTO t WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
                " SELECT n FROM c WHERE n < 0"
            )  # it never ends

    with closing(connection), running(app.election("e", plain(log, execute), term=LONG)):
        log.wait_for("step")
        app.election("e").step_down(wait=30)
        assert log.entries[-1] == "hand over"
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_atomic_coroutine(app: Laneway, log: Log) -> None:
    """`async with term.atomic()` is cancelled, and only that block."""

    class Career:
        async def inaugurate(self) -> None: ...

        async def execute(self, term: Term) -> None:
            async with term.atomic():
                log.add("complete")
            try:
                async with term.atomic():
                    log.add("step")
                    await asyncio.sleep(LONG)
            except StepAborted:
                log.add("aborted")
            await asyncio.sleep(0.01)
            log.add("finished")

        async def hand_over(self) -> None:
            log.add("hand over")

    with running(app.election("e", Career, term=LONG)):
        log.wait_for("step")
        app.election("e").step_down(wait=30)
    assert log.entries == ["complete", "step", "aborted", "finished", "hand over"]


class Awaited(TermEvent):
    """An event that says when it is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = threading.Event()

    def wait(self, timeout: Duration | None = None) -> bool:
        self.is_awaited.set()
        return super().wait(timeout)

    async def _awaited(self) -> None:
        self.is_awaited.set()
        await super()._awaited()


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_cancel_does_not_meet_what_follows_the_block(
    app: Laneway, log: Log, *, is_coroutine: bool
) -> None:
    """The block ends after `cancel` has returned, which may be slow."""

    awaited = Awaited()

    def cancel() -> None:
        assert awaited.is_awaited.wait(LONG), "the block is left meanwhile, and waits"
        log.add("cancelled")

    def step_of(term: Term) -> AtomicStep:
        step = term.atomic(cancel)
        step._cancelled = awaited
        return step

    def execute(term: Term) -> None:
        with pytest.raises(StepAborted), step_of(term):
            spin(log)
        log.add("after")

    class Coroutine:
        async def inaugurate(self) -> None: ...

        async def execute(self, term: Term) -> None:
            try:
                async with step_of(term):
                    log.add("step")
                    await asyncio.sleep(LONG)
            except StepAborted:
                log.add("after")

        async def hand_over(self) -> None: ...

    career = Coroutine if is_coroutine else plain(log, execute)
    with running(app.election("e", career, term=LONG)):
        log.wait_for("step")
        app.election("e").step_down(wait=30)
    steps = [entry for entry in log.entries if entry in ("step", "cancelled", "after")]
    assert steps == ["step", "cancelled", "after"]


def test_every_step_of_a_lost_term_is_aborted(log: Log) -> None:
    """Also when a thread with a step of its own is the first to see the loss."""
    term = Term("e", 1, clock() + LONG, was_handed_over=True)

    def execute() -> None:
        with pytest.raises(StepAborted), term.atomic():
            spin(log)
        log.add("aborted")

    threads = [threading.Thread(target=execute) for _ in range(5)]
    for thread in threads:
        thread.start()
    log.wait_for("step", times=5)
    with pytest.raises(StepAborted), term.atomic():
        term.lose("its time has passed")
    log.wait_for("aborted", times=5)
    for thread in threads:
        thread.join()


def test_other_steps_run_to_their_end(app: Laneway, log: Log) -> None:
    """A step that is not atomic is finished before `hand_over`."""
    go_on = threading.Event()

    def execute(term: Term) -> None:
        log.add("step")
        go_on.wait(30)
        log.add("finished")

    with running(app.election("f", plain(log, execute), term=LONG)):
        log.wait_for("step")
        app.election("f").step_down()
        app.election("f").step_down(wait=0.3)
        assert log.entries[-1] == "step"
        go_on.set()
    assert log.entries[-2:] == ["finished", "hand over"]


def test_failing_execute(app: Laneway, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """What `execute` raises ends the term in order, and is logged; another candidacy follows."""

    def execute(term: Term) -> None:
        raise ValueError("no index")

    assert app.election("g", plain(log, execute), term=LONG).run(terms=2) == 2
    assert log.entries == ["inaugurate", "execute", "hand over"] * 2
    failures = [record for record in caplog.records if "no index" in record.getMessage()]
    assert len(failures) == 2
    assert failures[0].exc_info is not None


@pytest.mark.parametrize("method", ["inaugurate", "hand_over"])
def test_other_failing_methods(app: Laneway, method: str) -> None:
    """A failing `inaugurate` or `hand_over` leaves a term that was not handed over."""
    calls: list[str] = []

    class Career:
        def __getattribute__(self, name: str) -> Any:
            def call(*_: object) -> None:
                calls.append(name)
                if name == method:
                    raise OSError("no disk")

            return call if name in ("inaugurate", "execute", "hand_over") else None

    assert app.election("h", partial(Career), term=LONG).run(terms=1) == 1
    called = [name for name in calls if name in ("inaugurate", "execute", "hand_over")]
    assert ("execute" in called) == (method == "hand_over")
    state = app.election("h").state()
    assert (state.state, state.handed_over) == ("free", False)


def test_candidates_back_off(app: Laneway, log: Log) -> None:
    """A career that fails at once is not repeated without a pause."""

    def execute(term: Term) -> None:
        raise ValueError("again")

    began = time.monotonic()
    app.election("i", plain(log, execute), term=LONG).run(terms=3)
    assert time.monotonic() - began > 2.0


def test_hanging_career(app: Laneway, log: Log) -> None:
    """A holder that does not look at its term for `stalled_after` is to step down."""

    def hang(term: Term) -> None:
        try:
            while True:
                time.sleep(0.01)
        except TermLost:
            log.add("lost")
            raise

    with running(
        app.election("j", plain(log, hang), term=20.0, hand_over_within=0.5, stalled_after=0.5)
    ):
        log.wait_for("lost")
        assert app.election("j").state().handed_over is False


def test_method_that_does_not_return(
    app: Laneway, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not keep a program that was stopped from ending, once the term is lost."""
    ended = threading.Event()
    election = app.election(
        "t", plain(log, lambda _: ended.wait()), term=20.0, hand_over_within=0.5
    )
    thread = election.start()
    log.wait_for("execute")
    election.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert "its holder has not handed over within 0.5 s" in caplog.text
    assert "its method does not return; it is abandoned" in caplog.text
    assert election.state().state == "free"
    ended.set()


def test_lost_coroutine(app: Laneway, log: Log) -> None:
    """A coroutine whose term is lost is cancelled, and `hand_over` is not called."""

    class Career:
        async def inaugurate(self) -> None: ...

        async def execute(self, term: Term) -> None:
            log.add("execute")
            app.engine.election_swap(
                "k", app.engine.election_read("k")[0], b'{"number":9999999999999}'
            )
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                assert not term.is_held
                with pytest.raises(TermLost):
                    term.check()
                log.add("cancelled")
                raise

        async def hand_over(self) -> None:
            log.add("hand over")

    assert app.election("k", Career, term=LONG).run(terms=1) == 1
    assert log.entries == ["execute", "cancelled"]
    assert app.election("k").state().number == 9999999999999


def test_cancelled_run(app: Laneway, log: Log) -> None:
    """`arun` that is cancelled hands over first."""

    async def main() -> None:
        task = asyncio.create_task(app.election("l", plain(log, until_ending)).arun())
        await asyncio.to_thread(log.wait_for, "execute")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert log.entries[-1] == "hand over"


def test_second_signal(app: Laneway, log: Log) -> None:
    """A second signal ends the holder at once; the term is not handed over."""

    def hang(term: Term) -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            log.add("ended")

    async def main(election: Election) -> int:
        task = asyncio.create_task(election.arun())
        await asyncio.to_thread(log.wait_for, "execute")
        assert election._campaign is not None
        for _ in range(2):
            election._campaign.stop_by_signal()
        return await task

    election = app.election("q", plain(log, hang), term=LONG)
    assert asyncio.run(main(election)) == 1
    log.wait_for("ended")
    assert (election.state().state, election.state().handed_over) == ("free", False)


def test_several_elections(app: Laneway) -> None:
    """One process may hold several terms; closing the application ends them in order."""
    logs = [Log() for _ in range(4)]
    threads = [
        app.election(f"m{n}", plain(log, until_ending)).start() for n, log in enumerate(logs)
    ]
    for log in logs:
        log.wait_for("execute")
    assert [state.state for state in app.elections.list()] == ["held"] * 4
    app.close()
    for thread, log in zip(threads, logs, strict=True):
        thread.join(30)
        assert log.entries[-1] == "hand over"


def test_beside_handlers(app: Laneway, log: Log) -> None:
    """A worker is a candidate beside its handlers, and hands over when it stops."""

    @app.handler("t")
    def handle(message: object) -> None:
        log.add("handled")

    app.election("n", plain(log, until_ending), in_workers=True)
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    log.wait_for("execute")
    app.publish("t", 1)
    log.wait_for("handled")
    assert "hand over" not in log.entries
    worker.stop()
    thread.join(30)
    assert log.entries[-1] == "hand over"


def test_beside_handlers_on_an_event_loop(app: Laneway, log: Log) -> None:
    """The same for a worker in a program's event loop, which goes on meanwhile."""

    @app.handler("t")
    async def handle(message: object) -> None: ...

    app.election("o", plain(log, until_ending), in_workers=True)

    async def main() -> None:
        async with app.worker():
            await asyncio.to_thread(log.wait_for, "execute")

    asyncio.run(main())
    assert log.entries[-1] == "hand over"


def test_a_start_that_is_stopped_at_once(
    app: Laneway, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its thread has done anything."""
    may_begin = threading.Event()
    new_event_loop = asyncio.new_event_loop

    def later() -> asyncio.AbstractEventLoop:
        assert may_begin.wait(30)
        return new_event_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", later)
    election = app.election("q", plain(log, until_ending))
    thread = election.start()
    election.stop()
    may_begin.set()
    thread.join(30)
    assert not thread.is_alive()
    assert log.entries == []


def test_two_workers_of_a_process(app: Laneway, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """One of them is the candidate, and only its end ends the candidacy."""
    app.handler("t")(lambda _: None)
    election = app.election("r", plain(log, until_ending), in_workers=True)

    async def main() -> None:
        async with app.worker():
            await asyncio.to_thread(log.wait_for, "execute")
            async with app.worker():
                pass
            assert election.state().state == "held"

    asyncio.run(main())
    assert log.entries.count("execute") == 1
    assert log.entries[-1] == "hand over"
    assert "it runs in this process already; this worker is no candidate" in caplog.text


def test_a_worker_without_handlers(app: Laneway, log: Log) -> None:
    """It runs the elections, and leases nothing."""
    app.election("s", plain(log, until_ending), in_workers=True)
    app.publish("t", 1)
    worker = app.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    log.wait_for("execute")
    assert app.workers() == []
    worker.stop()
    thread.join(30)
    assert log.entries[-1] == "hand over"
    (delivery,) = app.lease(1)
    assert delivery.message.deliveries == 1
    with pytest.raises(UsageError, match="no handlers"):
        app.run_worker(burst=True)


def test_a_signal_as_soon_as_a_worker_is_a_candidate(
    app: Laneway, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker obeys SIGTERM before it can hold a term, so its holder always hands over."""
    start = Election.start

    def start_and_stop(election: Election) -> threading.Thread:
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        thread = start(election)
        log.wait_for("execute")
        os.kill(os.getpid(), signal.SIGTERM)
        return thread

    monkeypatch.setattr(Election, "start", start_and_stop)
    app.election("s", plain(log, until_ending), in_workers=True)
    app.run_worker()
    assert log.entries == ["inaugurate", "execute", "hand over"]


class Empty:
    def inaugurate(self) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("",), {}, "expected the name to be non-empty text, got ''"),
        (("x" * 201,), {}, "expected a name of at most 200 characters, got 201"),
        (("x", Empty), {}, "Empty has no execute"),
        (("x", Empty()), {}, "expected a class with inaugurate(), execute(term) and hand_over()"),
        (("x",), {"term": 0.1}, "expected term to be from 0.5 s to 3600 s, got 0.1"),
        (("x",), {"term": "soon"}, "got 'soon'"),
        (("x",), {"hand_over_within": -1}, "expected hand_over_within to be at least 0, got -1"),
        (("x",), {"stalled_after": 0}, "expected stalled_after to be above 0, got 0"),
        (("x",), {"zookeeper": "a b"}, "like \"zk1:2181,zk2:2181/laneway\", got 'a b'"),
        (("x",), {"zookeper": "a"}, 'did you mean "zookeeper"?'),
    ],
)
def test_wrong_arguments(
    app: Laneway, arguments: tuple[Any, ...], options: dict[str, Any], text: str
) -> None:
    """Errors name the value and what was expected, in one line."""
    with pytest.raises(UsageError) as raised:
        app.election(*arguments, **options)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_wrong_use(app: Laneway, log: Log) -> None:
    """An election without a career cannot run, and none runs twice in a process."""
    with pytest.raises(UsageError, match="expected a career"):
        app.election("p").run()
    election = app.election("p", plain(log, until_ending))
    with running(election):
        log.wait_for("execute")
        with pytest.raises(UsageError, match="runs in this process already"):
            election.run()


def test_hostile_names(store: Store, log: Log) -> None:
    """Any text is a name."""
    with store.app() as app:
        for name in ("../..", ".", "a/b\n\x1b[31m", "ä" * 200, "{x}%s"):
            election = app.election(name, plain(log, lambda _: None), zookeeper=store.zookeeper)
            assert election.run(terms=1) == 1
            assert election.state().handed_over
