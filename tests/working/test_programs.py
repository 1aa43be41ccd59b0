"""
Several programs on one store and in one pool: each gets its own messages, and none starves, spins
or floods the log.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Message
from laneway.engines import base
from laneway.engines.sqlite import wakeup as sqlite_wakeup
from laneway.message import Batch
from laneway.working import engine_thread, lease_filter
from laneway.working.handler import Handlers
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from laneway.message import Settlement

TOPICS = 1_500

QUIET_SECONDS = 0.5
"""A worker that has called nothing for this long waits for a notification."""


def program(tmp_path: Path, pattern: str, seen: list[str]) -> Laneway:
    app = Laneway(f"sqlite:///{tmp_path}/shared.db", durability="memory")

    @app.handler(pattern)
    async def handle(message: Message) -> None:
        seen.append(message.topic)

    return app


def test_two_programs_share_a_pool(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Both get all of their messages; only the first foreign one that a worker leases is released, and
    one warning a minute is logged for each kind.
    """
    monkeypatch.setattr(base, "UNHANDLED_FIRST_US", 50_000)
    pushed: list[str] = []
    mailed: list[str] = []
    with program(tmp_path, "push.*", pushed) as push, program(tmp_path, "mail.*", mailed) as mail:
        push.publish_many(
            Message(f"{kind}.{n}") for n in range(TOPICS) for kind in ("push", "mail")
        )
        with Running(push, concurrency=10) as first, Running(mail, concurrency=10) as second:
            until(lambda: len(pushed) == len(mailed) == TOPICS, 120)
            push.publish("push.new")
            until(lambda: pushed[-1] == "push.new", 60)
        released = (first.join().released, second.join().released)
    assert max(released) < TOPICS / 2
    assert (
        len(
            [record for record in caplog.records if "no handler for message" in record.getMessage()]
        )
        <= 4
    )


def test_waiting_messages_of_others_cost_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker without messages of its own does not spin while another program's messages wait; its
    own start soon.
    """
    pushed: list[str] = []
    with program(tmp_path, "push.*", pushed) as push:
        push.publish_many(Message(f"mail.{n}") for n in range(TOPICS))
        leases = 0
        real = push.engine.lease

        def counted(*args: object, **options: object) -> object:
            nonlocal leases
            leases += 1
            return real(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(push.engine, "lease", counted)
        with Running(push, concurrency=10):
            until(lambda: leases > 3)
            before, began = leases, time.monotonic()
            time.sleep(1.0)  # what is counted
            assert leases - before < 150 * (time.monotonic() - began)
            push.publish("push.acme")
            until(lambda: pushed == ["push.acme"], 60)
        waiting = sum(stats.waiting for stats in push.topics(pattern="mail.*", limit=2 * TOPICS))
        assert waiting == TOPICS


def test_a_worker_beside_others_messages_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker without messages of its own stops searching, is notified of its own, and knows when one
    of them is due.
    """
    monkeypatch.setattr(engine_thread, "SEARCH_SECONDS", 600.0, raising=False)
    monkeypatch.setattr(lease_filter, "PROBE_SECONDS", 600.0)
    monkeypatch.setattr(sqlite_wakeup, "LOOK_AGAIN", 600.0)
    pushed: list[str] = []
    with program(tmp_path, "push.*", pushed) as push, program(tmp_path, "mail.*", []) as mail:
        mail.publish_many(Message(f"mail.{n}") for n in range(TOPICS))
        calls: list[float] = []
        real = push.engine.lease

        def counted(*args: object, **options: object) -> object:
            calls.append(time.monotonic())
            return real(*args, **options)  # type: ignore[arg-type]

        def is_quiet() -> bool:
            return bool(calls) and time.monotonic() - calls[-1] > QUIET_SECONDS

        monkeypatch.setattr(push.engine, "lease", counted)
        with Running(push, concurrency=10):
            until(is_quiet)
            for n in range(3):
                mail.publish(f"push.{n}")
                until(lambda: pushed[-1:] == [f"push.{n}"])  # noqa: B023
                until(is_quiet)
            mail.publish("mail.new")
            mail.publish("push.later", delay=0.3)
            until(lambda: pushed[3:] == ["push.later"])
            until(is_quiet)


def test_notifications_of_others_messages_are_ignored_for_a_while() -> None:
    """
    A search that found nothing is followed by a pause if a notification was its reason, or if it
    took long.
    """
    a_filter = lease_filter.LeaseFilter(["push.*"])
    nothing = Batch([], 0, passed_over=True)
    a_filter.record_search(nothing, 0.001, was_notified=False)
    assert a_filter.take_pause() == 0.0
    a_filter.record_search(nothing, 0.001, was_notified=True)
    a_filter.record_search(nothing, 0.0, was_notified=False)
    assert a_filter.take_pause() == lease_filter.MIN_PAUSE_SECONDS
    assert a_filter.take_pause() == 0.0, "counted once"
    a_filter.record_search(nothing, 0.01, was_notified=False)
    assert a_filter.take_pause() == 0.01 * lease_filter.SEARCH_DIVISOR
    a_filter.record_search(nothing, 60.0, was_notified=False)
    assert a_filter.take_pause() == lease_filter.MAX_PAUSE_SECONDS


def test_a_probe_releases_at_once_what_no_worker_had_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Another program may be about to lease it; a message that comes again has no handler anywhere,
    and waits.
    """
    monkeypatch.setattr(lease_filter, "PROBE_SECONDS", 0.01)
    actions: dict[int, list[str]] = {}
    with program(tmp_path, "push.*", []) as push:
        real = push.engine.settle

        def noted(settlements: Sequence[Settlement], **options: object) -> object:
            for settlement in settlements:
                actions.setdefault(settlement.handle, []).append(settlement.action)
            return real(settlements, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(push.engine, "settle", noted)
        with Running(push):
            push.publish("mail.first")
            until(lambda: list(actions.values()) == [["unhandled"]], 60)
            push.publish("mail.second")
            until(lambda: len(actions) == 2 and len(list(actions.values())[1]) == 2, 60)
    assert list(actions.values())[1][:2] == ["release", "unhandled"]


def test_the_log_says_when_a_message_without_a_handler_dies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead letter by `on_unhandled` is logged; a message that is only returned is not."""
    monkeypatch.setattr(base, "UNHANDLED_FIRST_US", 50_000)
    monkeypatch.setattr(lease_filter, "PROBE_SECONDS", 0.2)
    with program(tmp_path, "push.*", []) as push:
        push.policy("mail.*", on_unhandled="1ms")
        push.publish_many([Message("mail.a", id="dies"), Message("fax.a", id="waits")])
        with Running(push):
            until(
                lambda: [letter.message.id for letter in push.dead_letters.list()] == ["dies"], 60
            )
            until(lambda: any("; dead letter" in record.getMessage() for record in caplog.records))
    (line,) = [record for record in caplog.records if "; dead letter" in record.getMessage()]
    assert (
        line.getMessage()
        == "message dies in topic mail.a: no worker had a handler for it within on_unhandled;"
        " dead letter"
    )
    assert line.levelname == "ERROR"


def test_a_burst_ends_beside_others_messages(tmp_path: Path) -> None:
    """A burst does not wait for messages that no handler of this program covers."""
    pushed: list[str] = []
    with program(tmp_path, "push.*", pushed) as push:
        push.publish_many(
            Message(f"{kind}.{n}") for n in range(TOPICS) for kind in ("mail", "push")
        )
        assert push.run_worker(burst=True, concurrency=10).acked == TOPICS


def test_what_handlers_cover(tmp_path: Path) -> None:
    """
    The patterns, the topics of tasks without their arguments, and the queues; a handler or a task
    of any topic covers all.
    """
    app = Laneway(f"sqlite:///{tmp_path}/x.db")
    app.handler("push.*")(print)
    app.task(topic="mail.{who}", name="mail")(lambda who: who)
    app.queue("low")
    covered = app.runtime.handlers.handled_patterns()
    assert covered is not None
    assert {"push.*", "mail.*", "low"} <= set(covered)
    app.task(topic="{who}", name="any")(lambda who: who)
    assert app.runtime.handlers.handled_patterns() is None
    assert Handlers().handled_patterns() == []
