"""
A flow is stored whole or not at all, whatever its size, and where its publisher ends in the middle.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from laneway import BadMessage, EngineUnavailable, Laneway, UsageError, chain, chord, group
from laneway.tasks import flow_storage
from laneway.units import SECOND
from tests.tasks.conftest import MakeApp

SIZE = 230
"""Calls of a flow here; with the limits set below it takes several steps."""


class Killed(BaseException):
    """The publisher ended here."""


class Ran:
    """An application whose tasks note that they ran."""

    def __init__(self, app: Laneway) -> None:
        self.app = app
        self.calls: Counter[str] = Counter()

        @app.task(name="one")
        def one(*numbers: int) -> int:
            self.calls["one"] += 1
            return sum(numbers)

        @app.task(name="total")
        def total(numbers: list[int]) -> int:
            self.calls["total"] += 1
            return len(numbers)

        @app.task(name="on_error")
        def on_error(*what: str) -> None:
            self.calls["on_error"] += 1

        self.one, self.total, self.on_error = one, total, on_error

    def work(self) -> None:
        self.app.run_worker(concurrency=20, burst=True)

    def later(self, seconds: float) -> None:
        self.app.engine.tick(now_us=round((time.time() + seconds) * SECOND))


@pytest.fixture
def ran(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Every flow of more than ten calls takes several steps, of fifty messages each."""
    monkeypatch.setattr(flow_storage, "BATCH", 50)
    monkeypatch.setattr("laneway.producing.producer.BATCH", 50)
    monkeypatch.setattr("laneway.producing.bulk.BATCH", 50)
    monkeypatch.setattr(flow_storage, "FAN", 7)  # 33 leaves, 5 openers above them, the root
    return Ran(make_app())


def ends_after(app: Laneway, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher ends when it has called `put` so many times."""
    put, count = app.engine.put, 0

    def counting(drafts: Any, **options: Any) -> Any:
        nonlocal count
        if count == calls:
            raise Killed
        count += 1
        return put(drafts, **options)

    monkeypatch.setattr(app.engine, "put", counting)
    monkeypatch.setattr(app.runtime.producer.publisher, "_put", counting)


def test_a_large_flow_runs_once(ran: Ran) -> None:
    """A hundred thousand calls would take one level more."""
    job = chord([ran.one.s(n) for n in range(SIZE)], ran.total.s()).enqueue()
    before = ran.app.engine.overview()
    assert before.delivered == 0
    ran.work()
    assert job.get(60) == SIZE
    assert ran.calls == {"one": SIZE, "total": 1}
    after = ran.app.engine.overview()
    assert (after.waiting, after.dead) == (0, 0)
    assert [check for check in ran.app.engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("calls", range(9))
def test_a_publisher_that_ends_in_the_middle(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, calls: int
) -> None:
    """
    After any of its steps: nothing runs, and after an hour what was stored ends, with one line that
    says why.
    """
    flow = chord(
        [chain(ran.one.s(n), ran.one.s(1)) for n in range(SIZE // 2)], ran.total.s()
    ).on_error(ran.on_error.s())
    with monkeypatch.context() as patch:
        ends_after(ran.app, calls, patch)
        with pytest.raises(Killed):
            flow.enqueue()
    ran.work()
    ran.later(3_000)
    ran.work()
    assert not ran.calls
    stored = ran.app.engine.overview().published
    ran.later(3_700)
    ran.work()
    after = ran.app.engine.overview()
    assert (after.waiting, after.dead, ran.calls["one"], ran.calls["total"]) == (0, 0, 0, 0)
    assert ran.calls["on_error"] <= 1
    on_error = [
        record.message
        for record in caplog.records
        if "incomplete flow" in record.message and record.message.startswith("flow ")
    ]
    assert len(on_error) == (1 if stored else 0)


def test_its_jobs_say_why_they_failed(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Those that were stored, as any job that fails; with the last write missing that is all of them.
    """
    flow = chord(
        [ran.one.s(n).set(id=f"member-{n}") for n in range(SIZE)], ran.total.s().set(id="end")
    )
    with monkeypatch.context() as patch:
        ends_after(ran.app, 8, patch)
        with pytest.raises(Killed):
            flow.enqueue()
    ran.later(3_700)
    ran.work()
    for job_id in ("member-0", f"member-{SIZE - 1}", "end"):
        job = ran.app.job(job_id)
        assert job.status == "failure"
        with pytest.raises(Exception, match="incomplete flow: not all of it was stored within 1 h"):
            job.get(60)


@pytest.mark.parametrize("calls", [0, 1, 4, 7, 8])
@pytest.mark.parametrize("applied", [True, False])
def test_publishing_again_after_an_unclear_failure_is_safe(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, calls: int, applied: bool
) -> None:
    """The same object: what is missing is stored, and nothing runs twice."""
    flow = chord([ran.one.s(n) for n in range(SIZE)], ran.total.s())
    _fails_once(ran.app, calls, monkeypatch, applied=applied)
    with pytest.raises(EngineUnavailable):
        flow.enqueue()
    if calls == 8 and applied:
        ran.work()  # it had been stored whole, and has ended when it is published again
    job = flow.enqueue()
    ran.work()
    assert job.get(60) == SIZE
    assert ran.calls == {"one": SIZE, "total": 1}
    flow.enqueue()  # another flow
    ran.work()
    assert ran.calls == {"one": 2 * SIZE, "total": 2}


@pytest.mark.parametrize("applied", [True, False])
def test_a_small_flow_is_published_again_safely(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """It is one step, which was done or not."""
    flow = chord([ran.one.s(n) for n in range(3)], ran.total.s())
    _fails_once(ran.app, 0, monkeypatch, applied=applied)
    with pytest.raises(EngineUnavailable):
        flow.enqueue()
    ran.work()
    job = flow.enqueue()
    ran.work()
    assert job.get(60) == 3
    assert ran.calls == {"one": 3, "total": 1}


def _fails_once(
    app: Laneway, calls: int, monkeypatch: pytest.MonkeyPatch, *, applied: bool
) -> None:
    put, count = app.engine.put, 0

    def failing(drafts: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count != calls + 1:
            return put(drafts, **options)
        if applied:
            put(drafts, **options)
        raise EngineUnavailable("no answer", applied=None)

    monkeypatch.setattr(app.engine, "put", failing)
    monkeypatch.setattr(app.runtime.producer.publisher, "_put", failing)


def test_what_begins_a_large_flow_keeps_its_delay_and_ttl(ran: Ran) -> None:
    """They count from its publish."""
    ran.app.engine.policy_set("code", "task.*", {"ttl": 60})
    group(
        ran.one.s(n).set(delay=600, ttl=1_200) if n % 2 else ran.one.s(n) for n in range(SIZE)
    ).enqueue()
    ran.work()
    assert ran.calls["one"] == SIZE // 2
    ran.later(500)
    ran.work()
    assert ran.calls["one"] == SIZE // 2
    ran.later(700)
    ran.work()
    assert ran.calls["one"] == SIZE
    assert ran.app.engine.overview().waiting == 0


def test_a_flow_that_the_backlog_refuses_does_not_run(ran: Ran) -> None:
    """Neither in part: what was stored ends at once. One that never fits is not begun."""
    ran.app.engine.policy_set("code", "task.one", {"max_backlog": 5})
    with pytest.raises(UsageError, match="max_backlog is 5"):
        group(ran.one.s(n) for n in range(6)).enqueue()
    assert ran.app.engine.overview().published == 0
    ran.one.using(delay=600).enqueue(1)
    with pytest.raises(UsageError, match="none of the flow runs"):
        chord([ran.one.s(n) for n in range(5)], ran.total.s()).enqueue()
    ran.work()
    assert not ran.calls
    assert ran.app.engine.overview().waiting == 1


def test_a_call_that_cannot_be_published_is_refused_before_anything_is_stored(ran: Ran) -> None:
    """All calls are checked first."""
    with pytest.raises(BadMessage):
        group(
            ran.one.s(n).set(key="k" * 5_000 if n == SIZE - 1 else "k") for n in range(SIZE)
        ).enqueue()
    assert ran.app.engine.overview().published == 0
