"""The delivery log: what it has of an attempt, search, bounds; and replays of its messages."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from laneway import Laneway
from laneway.cli import main
from laneway.cli.migrate import copy_delivery_log
from laneway.engines.base import LogEntry
from laneway.errors import BadPolicy, EngineUnavailable, Refused, UsageError
from laneway.push import delivery_log, replay
from laneway.push.delivery_log import Entry, LogWriter
from laneway.push.replay import steps
from tests.push.receiver import Receiver


def test_an_attempt_in_the_log(app: Laneway, receiver: Receiver) -> None:
    """Request and answer are there, and nothing secret."""
    headers = {"authorization": "Bearer s3cret", "x-shop": "7"}
    receiver.answers["/x"] = lambda: (500, {"set-cookie": "id=s3cret", "x-trace": "<b>"})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True, headers=headers)
    assert endpoint.secret is not None
    app.publish("push.x", {"n": 1}, id="order.1", key="k")
    began = time.time()
    app.run_worker(burst=True)
    page = endpoint.attempts()
    assert [each.attempt for each in page.attempts] == [3, 2, 1]
    assert [each.result for each in page.attempts] == ["dead", "retried", "retried"]
    assert (page.next, page.is_truncated) == (None, False)
    first = page.attempts[-1]
    assert began <= first.at <= time.time()
    assert (first.topic, first.id, first.key, first.status) == ("push.x", "order.1", "k", 500)
    assert first.webhook_id == receiver.requests[0].headers["webhook-id"] != "order.1"
    assert (first.text, first.error, first.body) == ("HTTP 500", None, "answer of /x")
    assert first.headers["x-trace"] == "<b>"
    assert first.request_headers["x-shop"] == "7"
    assert first.request_headers["webhook-attempt"] == "1"
    assert 0 < first.milliseconds["ended"] < 60_000
    assert ":" in first.sender
    assert "s3cret" not in repr(page)
    signature = receiver.requests[0].headers["webhook-signature"]
    stored = repr(app.engine.delivery_log_read())
    assert signature.removeprefix("v1,") not in stored
    assert "s3cret" not in stored
    assert endpoint.secret.removeprefix("whsec_") not in stored


def test_receivers_that_repeat_the_request(app: Laneway, receiver: Receiver) -> None:
    """What is secret in a request is not in the log either if the answer repeats it."""
    headers = {"authorization": "Bearer s3cret-of-acme", "x-shop": "shop-of-acme"}
    headers["x-api-key"] = "p1n-73"
    location = "https://me:s3cret@acme.example/new?token=s3cret#s3cret"
    receiver.answers["/x"] = lambda: (302, {"body": "$ALL", "x-all": "$ALL", "location": location})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True, headers=headers)
    app.publish("push.x", 1)
    app.run_worker(burst=True)
    first = endpoint.attempts().attempts[-1]
    assert first.headers["location"] == "https://…@acme.example/new?…"
    assert first.text.endswith("change the URL to https://…@acme.example/new?…")
    assert "'authorization': '…'" in first.body
    assert "shop-of-acme" in first.body
    assert "webhook-signature" in first.headers["x-all"]
    (letter,) = app.dead_letters.list()
    known = repr(app.engine.delivery_log_read()) + repr(letter) + repr(endpoint.info())
    assert "s3cret" not in known
    assert "p1n-73" not in known
    for each in receiver.requests:
        assert each.headers["x-api-key"] == "p1n-73"
        assert each.headers["webhook-signature"].removeprefix("v1,") not in known


def test_search(app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """By topic, pattern, id, key, result, status, class and error; page by page."""
    monkeypatch.setattr("laneway.push.breaker.FIRST_BUSY_SECONDS", 600.0)  # one attempt
    for name, path in (("a", "/200"), ("b", "/503"), ("c", "/close")):
        app.endpoint(f"push.{name}", url=receiver.url(path), allow_private=True)
    app.policy("push.c", retries=0)
    for n in range(3):
        app.publish("push.a", n, id=f"a{n}", key=f"k{n}")
    app.publish("push.b", 1)
    app.publish("push.c", 1)
    app.run_worker(burst=True)

    def found(pattern: str = "*", **options: Any) -> list[str]:
        return [each.topic for each in app.endpoints.attempts(pattern, **options).attempts]

    assert sorted(found()) == ["push.a"] * 3 + ["push.b", "push.c"]
    assert found("push.b", result="backed_off", status="5xx") == found(status=503) == ["push.b"]
    assert found(status="reset") == found(result="dead") == ["push.c"]
    assert found("push.*", message_id="a1") == found(key="k2") == ["push.a"]
    assert found("other.*") == found("push.a", status=404) == found("push") == []
    assert found(since=time.time() + 10) == found(until=time.time() - 1000) == []
    assert len(found(since=time.time() - 600, until=time.time())) == 5
    first = app.endpoints.attempts("push.*", limit=3)
    second = app.endpoints.attempts("push.*", limit=3, after=first.next)
    assert [each.topic for each in first.attempts + second.attempts] == found()
    assert second.next is None
    for wrong in ({"status": "9xx"}, {"status": 99}, {"result": "x"}, {"after": "x"}, {"limit": 0}):
        with pytest.raises(UsageError, match="attempts: expected"):
            found(**wrong)
    with pytest.raises(UsageError, match="since"):
        found(since="yesterday")


def test_async_variants(app: Laneway) -> None:
    """They read the same log."""

    async def run() -> None:
        endpoint = await app.aendpoint("push.a", url="https://acme.example/")
        assert (
            await endpoint.aattempts()
            == await app.endpoints.aattempts("push.*")
            == endpoint.attempts()
        )
        with pytest.raises(Refused, match="no longer kept"):
            await endpoint.areplay("gone")
        assert (await endpoint.areplay_many()).replayed == 0

    asyncio.run(run())


def test_search_is_bounded(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page says that older attempts were not searched, and where to continue."""
    monkeypatch.setattr(delivery_log, "MOST_SEARCHED", 40)
    monkeypatch.setattr(delivery_log, "PAGE", 10)
    writer = LogWriter(app.engine)
    for n in range(100):
        name = "push.rare" if n % 50 == 0 else "push.often"
        writer.add(name, n, lambda: Entry(id="x"))
    writer.close(10)
    pages = []
    after = None
    while True:
        page = app.endpoints.attempts("push.rare.*", after=after)
        pages.append(page)
        after = page.next
        if after is None:
            break
    assert [page.is_truncated for page in pages] == [True, True, False]
    assert len(app.endpoints.attempts("push.rare").attempts) == 2


def test_settings_of_the_log(app: Laneway, receiver: Receiver) -> None:
    """`failures` logs no success; only `all` keeps messages for a replay."""
    for setting in ("failures", "sample", "all"):
        app.endpoint(f"push.{setting}", url=receiver.url("/200"), allow_private=True, log=setting)
        app.publish(f"push.{setting}", 1)
    app.run_worker(burst=True)
    found = {each.topic: each.can_replay for each in app.endpoints.attempts().attempts}
    assert found == {"push.sample": False, "push.all": True}
    with pytest.raises(UsageError, match="log"):
        app.endpoint("push.all", log="some")


def test_sampled_successes(app: Laneway) -> None:
    """At most 100 a second of them, of all endpoints with `sample` together."""
    writer = LogWriter(app.engine)
    second = 1_000_000
    assert sum(writer.wants("sample", 5 * second + n) for n in range(500)) == 100
    assert writer.wants("sample", 6 * second)
    assert writer.wants("all", 5 * second)
    assert not writer.wants("failures", 6 * second)


def test_a_log_that_fails_costs_entries_only(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deliveries go on, and what is lost is counted."""

    def fail(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("the disk is full")

    monkeypatch.setattr(app.engine, "delivery_log_append", fail)
    app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
    for n in range(20):
        app.publish("push.x", n)
    app.run_worker(burst=True)
    assert app.topic("push.x").stats().done == 20
    writer = LogWriter(app.engine)
    monkeypatch.setattr(delivery_log, "MAX_WAITING", 5)
    monkeypatch.setattr(writer, "_thread", object())  # nothing is written
    for _ in range(8):
        writer.add("push.x", 1, lambda: Entry(id="x"))
    assert writer.dropped == 3
    monkeypatch.setattr(delivery_log, "MAX_WAITING", 100)
    monkeypatch.setattr(delivery_log, "MAX_WAITING_BYTES", 1_000)
    for _ in range(3):
        writer.add("push.x", 1, lambda: Entry(id="x"), 400)
    assert writer.dropped == 4


def test_replay_of_a_message(app: Laneway, receiver: Receiver) -> None:
    """It is a new message with the same `webhook-id`, verified as the first; also twice."""
    endpoint = app.endpoint("push.x", url=receiver.url("/200"), allow_private=True, log="all")
    app.publish("push.x", {"n": 1}, id="order.1", key="k", headers={"event": "order.paid"})
    app.run_worker(burst=True)
    new = endpoint.replay("order.1")
    assert new != "order.1"
    app.run_worker(burst=True)
    again = endpoint.replay(new)
    app.run_worker(burst=True)
    assert len({each.headers["webhook-id"] for each in receiver.requests}) == 1
    assert len({each.body for each in receiver.requests}) == 1
    attempts = endpoint.attempts().attempts
    assert [each.replay_of for each in attempts] == ["order.1", "order.1", None]
    assert [each.id for each in attempts] == [again, new, "order.1"]
    assert {each.key for each in attempts} == {"k"}


def test_replay_that_is_refused(app: Laneway, receiver: Receiver) -> None:
    """Of a message that waits, or whose body is not kept."""
    endpoint = app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
    app.publish("push.x", 1, id="sent")
    app.run_worker(burst=True)
    app.publish("push.x", 1, id="waits")
    with pytest.raises(Refused, match=r'no longer kept.*log="all"'):
        endpoint.replay("sent")
    with pytest.raises(Refused, match="still waits"):
        endpoint.replay("waits")
    endpoint.remove()
    for replay_some in (endpoint.replay_many, lambda: endpoint.replay("sent")):
        with pytest.raises(Refused, match="does not exist"):
            replay_some()


def test_replay_of_many(app: Laneway, receiver: Receiver) -> None:
    """Dead letters are redriven, acked messages are new ones, in their order; each once."""
    status = [500]
    receiver.answers["/x"] = lambda: (status[0], {})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True, log="all")
    app.policy("push.x", retries=0, concurrency=1)
    for n in range(3):
        app.publish("push.x", f"dead {n}", id=f"dead{n}")
    app.run_worker(burst=True)
    middle = time.time()
    status[0] = 200
    for n in range(5):
        app.publish("push.x", f"good {n}", id=f"good{n}")
    app.run_worker(burst=True)
    counted = endpoint.replay_many(dry_run=True)
    assert (counted.replayed, counted.redriven, counted.not_kept) == (5, 3, 0)
    assert len(counted.ids) == 8
    assert app.topic("push.x").stats().waiting == 0
    receiver.requests.clear()
    done = endpoint.replay_many(since=middle, limit=2)
    assert (done.replayed, done.redriven) == (2, 0)
    assert done.next is not None
    done = endpoint.replay_many(since=middle, limit=2, after=done.next)
    assert done.replayed == 2
    app.run_worker(burst=True)
    assert [json.loads(each.body) for each in receiver.requests] == [
        f"good {n}" for n in (3, 4, 1, 2)
    ]
    receiver.requests.clear()
    assert endpoint.replay_many(result="dead").redriven == 3
    app.run_worker(burst=True)
    assert sorted(each.headers["webhook-id"] for each in receiver.requests) == [
        "dead0",
        "dead1",
        "dead2",
    ]
    # What was replayed already counts as the message that it replays: each is sent once.
    assert endpoint.replay_many(dry_run=True).replayed == 8
    result = endpoint.replay_many(result="acked", rate="1/m", limit=3)
    assert result.replayed == 3
    stats = app.topic("push.x").stats()
    assert (stats.ready, stats.delayed) == (1, 2)
    with pytest.raises(UsageError, match="acked or dead"):
        endpoint.replay_many(result="retried")


def test_replay_in_steps(app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message once, also one whose earlier replay is further down in the log."""
    endpoint = app.endpoint("push.x", url=receiver.url("/200"), allow_private=True, log="all")
    for n in range(5):
        app.publish("push.x", n, id=f"m{n}")
    app.run_worker(burst=True)
    assert endpoint.replay_many().replayed == 5
    app.run_worker(burst=True)
    pauses: list[float] = []
    times: dict[str, Any] = {"since": None, "until": None, "result": None, "rate": "2000/s"}
    monkeypatch.setattr(replay, "STEP_SECONDS", 0.001)
    found = list(steps(app.engine, "push.x", pause=pauses.append, **times))
    assert sum(found) == 5
    assert app.topic("push.x").stats().waiting == 5


def test_rate_of_a_replay(app: Laneway) -> None:
    """One too low for the store's clock is refused."""
    app.endpoint("push.x", url="https://acme.example/")
    for wrong in (1e-300, "1/100d", 0, "fast"):
        with pytest.raises(BadPolicy, match="rate: expected"):
            app.endpoint("push.x").replay_many(rate=wrong)
    assert app.endpoint("push.x").replay_many(rate="1/d").replayed == 0


def test_replay_to_one_subscription(app: Laneway, receiver: Receiver) -> None:
    """The others do not get it again."""
    app.policy("push.acme", own_backlog=False)
    for name in ("crm", "erp"):
        url = receiver.url(f"/{name}")
        app.endpoint(f"push.acme#{name}", url=url, allow_private=True, log="all")
    receipt = app.publish("push.acme", 1, id="one")
    app.run_worker(burst=True)
    assert receipt.id == "one"
    (sent,) = app.endpoints.attempts("push.acme#crm").attempts
    app.endpoint("push.acme#crm").replay(sent.id)
    app.run_worker(burst=True)
    assert (len(receiver.of("/crm")), len(receiver.of("/erp"))) == (2, 1)
    assert len({each.headers["webhook-id"] for each in receiver.of("/crm")}) == 1


def test_commands(tmp_path: Any, key: str, receiver: Receiver) -> None:
    """`laneway endpoint attempts` and `replay`, and what they refuse."""
    store = f"sqlite:///{tmp_path}/q.db"
    with Laneway(store) as app:
        app.push("push.*")
        app.endpoint("push.x", url=receiver.url("/200"), allow_private=True, log="all")
        app.publish("push.x", 1, id="order-1")
        app.run_worker(burst=True)
    assert (tmp_path / "q.db-log").stat().st_mode == (tmp_path / "q.db").stat().st_mode

    def run(*words: str) -> Result:
        return CliRunner().invoke(main, ["-u", store, "endpoint", *words])

    listed = run("attempts", "push.x", "--since", "10m")
    assert (listed.exit_code, "order-1" in listed.output, "acked" in listed.output) == (0, 1, 1)
    details = run("attempts", "--details", "--id", "order-1").output
    assert "> webhook-id: order-1" in details
    assert "< HTTP 200" in details
    assert json.loads(run("attempts", "--json").output)["attempts"][0]["id"] == "order-1"
    assert "no attempts" in run("attempts", "push.y").output
    assert "no attempts" in run("attempts", "push.y", "--details").output
    assert "1 would be sent again" in run("replay", "push.x", "--since", "1h", "--dry-run").output
    assert "sent again as" in run("replay", "push.x", "order-1").output
    assert json.loads(run("replay", "push.x", "--since", "1h", "--json").output)["replayed"] == 1
    for wrong in (["replay", "push.x"], ["replay", "push.x", "a", "--since", "1h"]):
        assert run(*wrong).exit_code == 2
    assert "or how long ago" in run("attempts", "--since", "soon").output
    half = run("replay", "push.x", "order-1", "gone")  # what was done is said
    assert (half.exit_code, "order-1: sent again as" in half.output) == (1, True)
    half = run("replay", "push.x", "order-1", "gone", "--json")
    assert (half.exit_code, '"order-1": "' in half.output) == (1, True)
    refused = run("replay", "push.x", "gone")
    assert (refused.exit_code, "no longer kept" in str(refused.output)) == (1, True)


def test_log_is_migrated(app: Laneway, receiver: Receiver) -> None:
    """Its newest attempts, once, with their times."""
    app.endpoint("push.x", url=receiver.url("/200"), allow_private=True)
    for n in range(3):
        app.publish("push.x", n)
    app.run_worker(burst=True)
    with Laneway("sqlite://") as other:
        for count in (3, 0):
            assert copy_delivery_log(app.engine, other.engine) == count
        assert other.endpoints.attempts("push.x", until=time.time()) == app.endpoints.attempts(
            "push.x"
        )


def test_a_damaged_log_begins_again(tmp_path: Any) -> None:
    """It is no part of the queue."""
    entry = LogEntry("push.x", 1, b"{}")
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        engine = app.engine
        assert engine.delivery_log_read() == []
        assert not (tmp_path / "q.db-log").exists()
        engine.delivery_log_append([entry], keep_us=1 << 60, max_bytes=1 << 30)
        (tmp_path / "q.db-log").write_bytes(b"not a database" * 1_000)
        with pytest.raises(EngineUnavailable, match="delivery log"):
            engine.delivery_log_append([entry], keep_us=1 << 60, max_bytes=1 << 30)
        engine.delivery_log_append([entry], keep_us=1 << 60, max_bytes=1 << 30)
        assert len(engine.delivery_log_read()) == 1
