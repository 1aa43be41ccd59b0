"""Receivers that fail: the breaker, fair slots, conditions, notifications, test requests."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laneway import Laneway, Message
from laneway.cli import main
from laneway.errors import Refused
from laneway.push import breaker, events, secret_store, stored_counts, table
from laneway.push.answers import Verdict
from laneway.working.buffer import HandlerQueue
from laneway.working.handler import Handler
from laneway.working.worker_delivery import WorkerDelivery
from tests.push.receiver import Receiver

LEAST_BACK_OFF = 0.16
"""Seconds between two probes of a breaker that has been open for a while."""


def test_breaker_of_a_dead_endpoint(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It opens after five failures; then one message at a time is a probe, and no attempt is counted.
    After the first success everything is sent.
    """
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(breaker, "MAX_SECONDS", LEAST_BACK_OFF / (1 - breaker.JITTER))
    monkeypatch.setattr("laneway.push.sender.COUNTS_SECONDS", 0.05)
    app.policy("push.x", retries=100)
    status, times = [500], list[float]()

    def answer() -> tuple[int, dict[str, str]]:
        times.append(time.monotonic())
        return status[0], {}

    receiver.answers["/x"] = answer
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    for n in range(50):
        app.publish("push.x", n)
    with running(app):
        deadline = time.monotonic() + 120
        while endpoint.info().state != "open" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert endpoint.info().state == "open"
        opened_at, opened = len(receiver.requests), time.monotonic()
        # The limit of concurrency="auto", and a probe or two; more until its state is written.
        assert opened_at <= 5 + 2 + 2 + (opened - times[:7][-1]) / LEAST_BACK_OFF
        time.sleep(0.5)
        looked = len(receiver.requests)
        assert looked - opened_at <= 5 + (time.monotonic() - opened) / LEAST_BACK_OFF
        counted = max(message.attempt for message in app.topic("push.x").peek(50))
        assert counted <= 6
        assert [each.topic for each in app.endpoints.list(state="open")] == ["push.x"]
        status[0] = 200
        while app.topic("push.x").stats().done < 50 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert app.topic("push.x").stats().done == 50
        while endpoint.info().state != "healthy" and time.monotonic() < deadline:
            time.sleep(0.01)
        # The worker's end does not wait for long until they are written.
        while stored_counts.read(app.engine).attempts["2xx"] < 50 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert endpoint.info().state == "healthy"
    shown = [(event.kind, event.topic) for event in events.since(app.engine, 0)]
    assert shown == [("opened", "push.x"), ("recovered", "push.x")]
    assert app.endpoints.list(state="open") == []
    assert app.engine.records("endpoint_state") == []
    counts = stored_counts.read(app.engine)
    assert counts.attempts == {"2xx": 50, "5xx": len(receiver.requests) - 50}
    assert (counts.opened, counts.skipped, counts.dropped) == (1, 0, 0)


def test_an_operator_ends_the_back_off_of_a_breaker(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next message is a probe at once, although its sender opened the breaker for minutes."""
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 300.0)
    app.policy("push.x", retries=100)
    status = [500]
    receiver.answers["/x"] = lambda: (status[0], {})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    for n in range(10):
        app.publish("push.x", n)
    deadline = time.monotonic() + 60
    with running(app):
        while endpoint.info().state != "open" and time.monotonic() < deadline:
            time.sleep(0.01)
        status[0] = 200
        while app.topic("push.x").stats().done < 10 and time.monotonic() < deadline:
            app.topic("push.x").back_off(0)
            time.sleep(0.05)
    assert app.topic("push.x").stats().done == 10


def test_a_busy_endpoint_backs_off_at_once(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A 503 without `Retry-After` makes its topic back off, longer after each probe. What was leased
    before goes back once, and is not leased again and again meanwhile.
    """
    monkeypatch.setattr("laneway.push.breaker.FIRST_BUSY_SECONDS", 0.1)
    status, times, leased_until = [503], list[float](), list[int]()
    leased = 0  # messages, and how many until each request

    def answer() -> tuple[int, dict[str, str]]:
        leased_until.append(leased)
        times.append(time.monotonic())
        return status[0], {}

    receiver.answers["/x"] = answer
    app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    app.publish_many(Message("push.x", n) for n in range(100))
    lease = app.engine.lease

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal leased
        batch = lease(*arguments, **named)
        leased += len(batch.leases)
        return batch

    monkeypatch.setattr(app.engine, "lease", counted)
    deadline = time.monotonic() + 60
    with running(app):
        while len(times) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        wait_for(lambda: app.endpoint("push.x").info().state == "busy")
        status[0] = 200
        assert leased_until[4] <= 2 * 5  # the first limit of concurrency="auto", at each probe
        while app.topic("push.x").stats().done < 100 and time.monotonic() < deadline:
            time.sleep(0.02)
    assert app.topic("push.x").stats().done == 100
    assert times[3] - times[2] >= 0.19  # two may go out at first
    assert times[4] - times[3] >= 0.39
    page = app.endpoint("push.x").attempts(limit=1_000, result="backed_off")
    assert {each.attempt for each in page.attempts} == {1}
    assert app.endpoint("push.x").info().state == "healthy"


def test_a_worker_without_the_key_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver
) -> None:
    """It is not ready, and `explain` names the key; with the key, the message is sent."""
    store = f"sqlite:///{tmp_path}/q.db"
    monkeypatch.setenv(secret_store.KEY_VARIABLE, key := secret_store.new_key())
    (name,) = secret_store.of_process(store).names
    with Laneway(store) as app:
        app.push("push.*")
        assert app.runtime.handlers.problem(app.engine) is None
        app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
        app.publish("push.x", 1)
        monkeypatch.delenv(secret_store.KEY_VARIABLE)
        problem = app.runtime.handlers.problem(app.engine)
        assert problem is not None
        assert f"need the key {name}, which LANEWAY_SECRETS_KEY of this process" in problem
        text = f"the secrets of its endpoint need the key {name}, which no running worker has"
        with running(app):
            wait_for(lambda: bool(app.workers()))
            assert app.explain_topic("push.x").reasons[0].text == text
        monkeypatch.setenv(secret_store.KEY_VARIABLE, f"{secret_store.new_key()},{key}")
        assert app.runtime.handlers.problem(app.engine) is None
        with running(app):
            wait_for(lambda: bool(app.workers()))
            reasons = app.explain_topic("push.x").reasons
            assert all("need the key" not in each.text for each in reasons)


def test_a_short_pause_grows_if_it_does_not_help() -> None:
    """From the third answer in a row on, it is a quarter of what it would be without one."""
    asked = [breaker.busy_seconds(1.0, count) for count in range(1, 12)]
    assert asked == [1, 1, 1, 2, 4, 8, 16, 32, 64, 75, 75]
    assert [breaker.busy_seconds(100.0, count) for count in (1, 3, 12)] == [100, 100, 100]
    assert [breaker.busy_seconds(None, count) for count in (1, 2, 12)] == [1, None, None]


def test_a_long_pause_is_explained(app: Laneway, receiver: Receiver) -> None:
    """For its topic and its messages, by the answer; a success ends it."""
    receiver.answers["/x"] = lambda: (429, {"retry-after": "3600"})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    message = app.publish("push.x", 1)
    app.run_worker(burst=True)
    info = endpoint.info()
    assert (info.state, info.busy, info.failures) == ("busy", 1, 0)
    assert info.last_failure == "HTTP 429, Retry-After 3600 s"
    for reasons in (
        [each.text for each in app.explain_topic("push.x").reasons],
        app.explain(message.id, topic="push.x").reasons,
    ):
        assert "endpoint asks for pauses: HTTP 429, Retry-After 3600 s, " in reasons[0]
        assert any("backs off for" in each or "next try in" in each for each in reasons)
    assert [each.topic for each in app.endpoints.list(state="busy")] == ["push.x"]
    receiver.answers["/x"] = lambda: (200, {})
    app.topic("push.x").back_off(0)
    app.run_worker(burst=True)
    assert endpoint.info().state == "healthy"


def test_a_topic_without_an_endpoint_is_explained(app: Laneway) -> None:
    """Even if no topic has one: the program pushes it."""
    app.publish("push.x", 1)
    with running(app):
        wait_for(lambda: "endpoint" in app.explain_topic("push.x").reasons[0].text)
    (first,) = [each for each in app.explain_topic("push.x").reasons if each.cause == "unhandled"]
    assert "start a worker" in first.advice  # nobody who runs is known to push it


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def running(app: Laneway) -> Iterator[None]:
    worker = app.worker(concurrency=20)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def test_window() -> None:
    """Five failures open it, but not beside twice as many successes, nor after a quiet hour."""
    failure, success = Verdict("retry", "failure"), Verdict("ack", "success")
    window = breaker.Window()
    for n in range(5):
        assert not window.should_open()
        window.count(failure, 100.0 + n / 100)
    assert window.should_open()
    window = breaker.Window()
    for _ in range(15):
        window.count(success, 100.0)
    for _ in range(5):
        window.count(failure, 100.0)
    assert not window.should_open()
    for _ in range(15):
        window.count(failure, 100.0)
    assert window.should_open()
    window.count(failure, 3_700.0)
    assert not window.should_open()
    window = breaker.Window()
    for _ in range(30):
        window.count(success, 100.0)
    for n in range(5):
        window.count(Verdict("retry", "failure", is_timeout=True), 100.0)
        assert window.should_open() == (n == 4)
    window = breaker.Window()
    for _ in range(10):
        window.count(Verdict("retry", "message"), 100.0)
    assert not window.should_open()
    window.count(Verdict("retry", "message"), 100.0)
    assert window.should_open()


def test_failing_for_days() -> None:
    """A warning after half of five days, then it is disabled; a success clears all of it."""
    day_us = 86_400_000_000
    record = table.Record()
    breaker.after_failure(record, "HTTP 500", 19, day_us, opens=True)
    assert not breaker.should_warn(record.condition, 4 * day_us)
    breaker.after_failure(record, "HTTP 500", 1, day_us + day_us // 4, opens=True)
    assert not breaker.should_disable(record.condition, 7 * day_us)  # within 12 h
    assert breaker.should_warn(record.condition, 4 * day_us)
    breaker.after_failure(record, "HTTP 500", 1, 2 * day_us, opens=True)
    assert not breaker.should_disable(record.condition, 5 * day_us)
    assert breaker.should_disable(record.condition, 6 * day_us)
    breaker.after_success(record)
    assert record.condition == table.Condition()


def test_one_topic_gets_a_part_of_the_slots() -> None:
    """Messages of a topic with too many slots wait while those of others can begin."""
    handler = Handler(lambda _: None, "push.*")
    queue = HandlerQueue(handler, 64)
    full = {"push.slow"}
    queue.is_full = full.__contains__

    def add(topic: str) -> None:
        lease: Any = type("L", (), {"topic": topic, "priority": 0, "fence": 1})()
        queue.add(WorkerDelivery(lease, handler, 0.0, 0))

    for topic in ("push.slow", "push.slow", "push.a", "push.b"):
        add(topic)
    assert {queue.pop().lease.topic for _ in range(2)} == {"push.a", "push.b"}
    assert queue.pop().lease.topic == "push.slow"  # nobody else waits
    add("push.c")
    assert [queue.pop().lease.topic for _ in range(2)] == ["push.c", "push.slow"]
    assert queue.count == 0


def test_refused_credentials_need_attention(app: Laneway, receiver: Receiver) -> None:
    """After ten in a row somebody is notified, once an hour."""
    app.policy("push.x", retries=100)
    notices: list[Any] = []
    app.handler("laneway.endpoints")(lambda message: notices.append(message.body))
    window, verdict = breaker.Window(), Verdict("retry", "auth", "HTTP 401")
    for _ in range(10):
        window.count(verdict, 1.0)
    assert window.auth == breaker.AUTH_FAILURES
    app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
    from laneway.push.notifications import notify

    for _ in range(3):
        notify(app.engine, "misconfigured", "push.x", "it refuses our requests", 7_200_000_000)
    app.run_worker(burst=True)
    assert [each["type"] for each in notices] == ["endpoint.misconfigured"]


def test_a_message_without_retries_is_notified(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once an hour for an endpoint."""
    now_us = table.now()
    monkeypatch.setattr(table, "now", lambda: now_us)  # no other hour begins
    notices: list[Any] = []
    app.handler("laneway.endpoints")(lambda message: notices.append(message.body))
    app.policy("push.x", retries=1)
    app.endpoint("push.x", url=receiver.url("/404"), allow_private=True)
    for n in range(3):
        app.publish("push.x", n, id=f"order-{n}")
    app.run_worker(burst=True)
    app.run_worker(burst=True)
    (notice,) = notices
    assert (notice["type"], notice["topic"]) == ("endpoint.exhausted", "push.x")
    assert "failed 2 times and is dead: HTTP 404" in notice["detail"]


def test_notifications_that_nobody_handles(app: Laneway, receiver: Receiver) -> None:
    """They are dropped, unless their topic has an endpoint, which gets them."""
    from laneway.push.notifications import notify

    notify(app.engine, "warning", "push.x", "x", 0)
    app.run_worker(burst=True)
    assert app.topic("laneway.endpoints").stats().waiting == 0
    app.endpoint("laneway.endpoints", url=receiver.url("/ops"), allow_private=True)
    notify(app.engine, "warning", "push.y", "y", 0)
    app.run_worker(burst=True)
    assert [json.loads(each.body)["topic"] for each in receiver.of("/ops")] == ["push.y"]


def test_test_request(app: Laneway, receiver: Receiver) -> None:
    """It is sent past a disabled endpoint, through the guard, six times a minute."""
    headers = {"authorization": "Bearer s3cret-token"}
    endpoint = app.endpoint("push.x", url=receiver.url("/418"), allow_private=True, headers=headers)
    endpoint.disable()
    result = endpoint.test()
    assert (result.ok, result.status, result.body) == (False, 418, "answer of /418")
    assert result.request_headers["authorization"] == "…"
    (request,) = receiver.requests
    assert json.loads(request.body)["type"] == "laneway.test"
    assert request.headers["authorization"] == "Bearer s3cret-token"
    receiver.answers["/200"] = lambda: (200, {"x-all": "$ALL", "set-cookie": "a=1", "body": "$ALL"})
    app.endpoint("push.x", url=receiver.url("/200"))
    results = [endpoint.test() for _ in range(5)]
    assert all(each.ok for each in results)
    assert results[0].text == "HTTP 200; it is disabled: `laneway endpoint enable push.x`"
    for each in results:  # a receiver that repeats the request shows no secret
        assert each.headers["set-cookie"] == each.request_headers["webhook-signature"] == "…"
        assert "s3cret" not in repr(each)
        assert "v1," not in repr(each)
    receiver.answers.clear()
    with pytest.raises(Refused, match="6 tests were sent within 60 s"):
        endpoint.test()
    app.endpoint("push.y", url=f"http://localtest.me.example:{receiver.port}/", allow_http=True)
    assert app.endpoint("push.y").test().error == "dns"
    with pytest.raises(Refused, match="does not exist"):
        table.get(app.engine, "push.z")


def test_test_command(tmp_path: Any, key: str, receiver: Receiver) -> None:
    """Its exit code says whether a message would be acked."""
    store = f"sqlite:///{tmp_path}/q.db"
    with Laneway(store) as app:
        app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
        app.endpoint("push.y", url=receiver.url("/500"), allow_private=True)
    good = CliRunner().invoke(main, ["-u", store, "endpoint", "test", "push.x"])
    assert (good.exit_code, good.output.splitlines()[0]) == (0, "ok: HTTP 200")
    bad = CliRunner().invoke(main, ["-u", store, "endpoint", "test", "push.y", "--json"])
    assert (bad.exit_code, json.loads(bad.output)["status"]) == (1, 500)
