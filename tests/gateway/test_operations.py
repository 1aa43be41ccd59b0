"""What an operator does over HTTP: dead letters by what failed, groups, dry runs."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.admin import workers
from laneway.admin.fingerprints import title_of
from laneway.cli import main
from laneway.delivery import Wanted
from laneway.engines.base import WorkerFacts
from laneway.errors import LeaseLost, Refused, UsageError
from laneway.gateway import wire
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens
from laneway.gateway.login.access import EVERYTHING
from laneway.gateway.problems import Problem
from laneway.units import SECOND
from tests.gateway.conftest import TIMEOUT, Api
from tests.gateway.test_sessions import running

ERROR = """\
shop.errors.PaymentFailed: order 4711 of 'acme' refused
  File "/srv/app/site-packages/laneway/working/threads.py", line 123, in _call_handler
    return function(*args)
  File "/srv/app/shop/pay.py", line {line}, in charge
    client.post(order)
  File "/usr/lib/python3.11/http/client.py", line 9, in post
    raise
"""


def test_cost(api: Api, app: Laneway) -> None:
    """The cost of a message is in the answers that show it."""
    app.publish("costs", 1, cost=7, id="seven")
    assert api("GET", "/v1/topics/costs/messages/seven").json["cost"] == 7
    assert api.lease(topics=["costs"])[0]["cost"] == 7


def test_title_of_a_failure() -> None:
    """The class and the program's own function name a failure; texts without frames are cut."""
    for line in (3, 99):
        title = title_of(None, ERROR.format(line=line))
        assert title == "shop.errors.PaymentFailed in charge (pay.py)"
    foreign = 'ValueError: x\n  File "/usr/lib/python3.12/json/decoder.py", line 1, in decode\n'
    assert title_of("failed", foreign) == "ValueError in decode (decoder.py)"
    assert title_of("http 503", None) == "http 503"
    assert title_of("no order 'a-1' (48151623)", None) == "no order '…' (#)"
    one = title_of("retries used up (3 attempts): it failed for 77777", None)
    assert one == title_of("retries used up (1 attempt): it failed for 12345", "")
    assert title_of(None, None) == "unknown"
    assert title_of("\n", "\ud800"[:0]) == "unknown"
    assert len(title_of("x" * 100_000, None)) <= 200


def test_dead_by_fingerprint(api: Api, app: Laneway) -> None:
    """Dead letters are grouped, listed, redriven and dropped by what failed."""
    app.policy("failing", retries=0)
    for n in range(6):
        app.publish("failing", n, id=f"f{n}")
    for n, delivery in enumerate(api.lease(6, topics=["failing"])):
        error = ERROR.format(line=n) if n % 3 else f"http 503 after {n + 10_000} ms"
        action = {"receipt": delivery["receipt"], "action": "retry", "error": error}
        assert api.settle(action) == ["died"]
    listed = api("GET", "/v1/dead/groups?topic=failing").json
    first, second = listed["groups"]
    assert (first["title"], first["count"]) == ("shop.errors.PaymentFailed in charge (pay.py)", 4)
    assert (second["title"], second["count"]) == ("http 503 after # ms", 2)
    assert first["topics"] == {"failing": 4}
    assert first["first"] <= first["last"] == first["example"]["died_at"]
    assert (listed["scanned"], listed["truncated"]) == (6, False)
    path = f"/v1/dead?topic=failing&fingerprint={first['fingerprint']}"
    page = api("GET", f"{path}&limit=3").json
    assert [each["id"] for each in page["dead_letters"]] == ["f1", "f2", "f4"]
    rest = api("GET", f"{path}&limit=3&after={page['next']}").json
    assert [each["id"] for each in rest["dead_letters"]] == ["f5"]
    assert rest["next"] is None
    assert len(api("GET", "/v1/dead?topic=failing&since=1h").json["dead_letters"]) == 6
    assert api("GET", "/v1/dead?topic=failing&since=2100-01-01T00:00:00Z").json["scanned"] == 6
    assert "since" in api.problem("GET", "/v1/dead?since=soon")["detail"]
    some: dict[str, Any] = {"topic": "failing", "fingerprint": first["fingerprint"]}
    assert api("POST", "/v1/dead/redrive", {**some, "dry_run": True}).json["count"] == 4
    assert api("POST", "/v1/dead/redrive", {**some, "limit": 2}).json["count"] == 2
    assert api("POST", "/v1/dead/drop", some).json["count"] == 2
    assert {each.message.id for each in app.dead_letters.list("failing")} == {"f0", "f3"}
    del some["topic"]
    assert "takes a topic" in api.problem("POST", "/v1/dead/drop", some)["detail"]


def test_past_times() -> None:
    """Times of a URL: RFC 3339, Unix seconds, or how long ago."""
    now_us = time.time_ns() // 1000
    assert wire.past_us("since", "10m", now_us) == now_us - 600_000_000
    assert wire.past_us("since", "90", now_us) == now_us - 90_000_000
    assert wire.past_us("since", "1700000000.5", now_us) == 1_700_000_000_500_000
    expected = round(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp() * 1e6)
    for text in ("2026-11-22T12:00:00Z", "2026-11-22T13:00:00+01:00", "2026-11-22T13:00:00 01:00"):
        assert wire.past_us("since", text, now_us) == expected
    for wrong in ("", "soon", "nan", "inf", "1e400", "2026-11-22T12:00:00", "9" * 400, "-"):
        with pytest.raises(Problem, match="since"):
            wire.past_us("since", wrong, now_us)


def test_groups(api: Api, app: Laneway) -> None:
    """Weight and limits of a topic group are set, listed and removed."""
    app.topic_group("customer.acme", weight=2)
    body = {"rate": "50/s", "concurrency": 5}
    assert api("PUT", "/v1/groups/customer.acme", body).status == 200
    (group,) = api("GET", "/v1/groups").json["groups"]
    assert (group["name"], group["weight"], group["rate"]) == ("customer.acme", 2.0, 50.0)
    assert group["burst"] == 3.5
    assert group["concurrency"] == 5
    assert api("GET", "/v1/audit?limit=1").json["changes"][0]["path"] == "/v1/groups/customer.acme"
    (group,) = api("DELETE", "/v1/groups/customer.acme").json["groups"]
    assert (group["weight"], group["rate"]) == (2.0, None)
    assert "600/m" in api.problem("PUT", "/v1/groups/customer.acme", {"rate": "x"})["detail"]
    assert "weight" in api.problem("PUT", "/v1/groups/customer.acme", {"weight": -1})["detail"]


def test_dry_run(api: Api, app: Laneway) -> None:
    """A dry run says how many waiting topics a change covers, and what would hold."""
    app.policy("dry.*", rate="7/s")
    for n in range(3):
        app.publish(f"dry.{n}", n)
    answer = api("PATCH", "/v1/policies/dry.*?dry_run=1", {"rate": "9/s", "weight": 3}).json
    effects = answer["effects"]
    assert (effects["waiting_topics"], effects["truncated"]) == (3, False)
    assert effects["before"]["rate"] == {"value": 7.0, "layer": "code", "pattern": "dry.*"}
    assert effects["after"]["rate"] == {"value": 9.0, "layer": "operator", "pattern": "dry.*"}
    assert effects["after"]["weight"]["value"] == 3.0
    answer = api("PUT", "/v1/policies/dry.1?dry_run=1", {"concurrency": 2}).json
    assert answer["effects"]["waiting_topics"] == 1
    assert answer["effects"]["after"]["concurrency"]["pattern"] == "dry.1"
    assert answer["effects"]["after"]["rate"]["value"] == 7.0
    contradiction = {"burst": 3, "rate": None}
    api.problem("PUT", "/v1/policies/other?dry_run=1", contradiction)
    assert api("GET", "/v1/policies/dry.*").json["layers"] == {"code": {"rate": 7.0}}


def test_messages_that_have_ended(api: Api, app: Laneway) -> None:
    """Of an id that stays known it is said that its message has ended; of others, nothing."""
    path = "/v1/topics/c.ended/messages"
    api("POST", path, {"body": 1}, headers={"idempotency-key": "known"})
    (delivery,) = api.lease(topics=["c.ended"])
    api.settle({"receipt": delivery["receipt"]})
    for method, action in (("GET", ""), ("POST", "/retry"), ("POST", "/drop")):
        problem = api.problem(method, f"{path}/known{action}", status=410)
        assert problem["type"] == "/problems/gone"
        assert "c.ended has ended" in problem["detail"]
        api.problem(method, f"{path}/unknown{action}", status=404)


def test_actions_on_a_message(api: Api, app: Laneway) -> None:
    """A message is retried now, made dead, dropped and cancelled; a refusal says why."""
    app.policy("acted", backoff=["1h"], retries=5)
    for name in ("a", "b", "c", "d"):
        app.publish("acted", name, id=name, delay=None if name == "a" else "1h")
    path = "/v1/topics/acted/messages"
    (delivery,) = api.lease(1, topics=["acted"])
    problem = api.problem("POST", f"{path}/a/retry", status=409)
    assert "it is leased; `cancel` stops its handler" in problem["detail"]
    api.problem("POST", f"{path}/a/drop", status=409)
    api.settle({"receipt": delivery["receipt"], "action": "retry"})
    assert api("POST", f"{path}/a/retry").json == {"id": "a", "done": "ready"}
    assert "it is not delayed" in api.problem("POST", f"{path}/a/retry", status=409)["detail"]
    assert api("POST", f"{path}/b/dead?reason=by+hand").json["done"] == "dead"
    assert app.dead_letters.list("acted")[0].reason == "by hand"
    api.problem("POST", f"{path}/b/dead", status=409)
    assert api("POST", f"{path}/b/retry").json["done"] == "redriven"
    assert api("POST", f"{path}/b/dead").json["done"] == "dead"
    assert api("POST", f"{path}/b/drop").json["done"] == "dropped"
    assert api("POST", f"{path}/c/drop").json["done"] == "dropped"
    assert api("POST", f"{path}/d/cancel").json["done"] == "cancelled"
    api.problem("POST", f"{path}/d/cancel", status=404)
    api.problem("POST", "/v1/messages/none/retry", status=404)
    generated = app.publish("acted", "e", delay="1h").id
    assert api("POST", f"/v1/messages/{generated}/retry").json["done"] == "ready"
    assert app.topic("acted").stats().ready == 2


def test_the_lease_of_a_program_that_has_ended(
    api: Api, app: Laneway, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Explain names its holder; released, it is delivered, and its holder is late."""
    app.policy("held", lease="2h", concurrency=1)
    app.publish("held", 1, id="first")
    app.publish("held", 2, id="second")
    (lost,) = app.lease(topics=["held"])
    program = f"application {socket.gethostname()}:{os.getpid()} (app.lease)"
    assert app.explain("first", topic="held").reasons[0].endswith(f"; {program} holds it")
    monkeypatch.setattr(workers, "HELD_SECONDS", 0.0)
    command = "laneway message release first --topic held"
    reason = app.explain("first", topic="held").reasons[0]
    assert f"no worker on the list holds it: {program} leased it 0 s ago" in reason
    assert command in reason
    (decisive, *_) = app.explain_topic("held").reasons
    assert (decisive.cause, decisive.advice) == ("full", command)
    assert re.search(rf"first of held was leased .* by {re.escape(program)};", decisive.text)
    app.gate("shared", concurrency=1)
    app.policy("gated.*", gate="shared")
    app.publish("gated.a", 1, id="gated")
    app.publish("gated.b", 2)
    assert len(app.lease(topics=["gated.a"])) == 1
    (decisive, *_) = app.explain_topic("gated.b").reasons
    assert "leases of gated.a (1); gated of gated.a was leased" in decisive.text
    assert decisive.advice == "laneway message release gated --topic gated.a"
    path = "/v1/topics/held/messages"
    assert "not leased" in api.problem("POST", f"{path}/second/release", status=409)["detail"]
    assert api("POST", f"{path}/first/release").json == {"id": "first", "done": "released"}
    (again,) = app.lease(topics=["held"])
    assert (again.message.id, again.attempt) == ("first", 1)
    with pytest.raises(LeaseLost):
        lost.ack()
    held = WorkerFacts(id="w-1", pid=42, held=[again.lease.handle], leased=1)
    app.engine.beat(held, dead_after_us=3600 * SECOND, listed_us=3600 * SECOND)
    assert "worker w-1 holds it (pid 42)" in app.explain("first", topic="held").reasons[0]
    app.engine.leave("w-1")
    arguments = ["-u", store, *command.split()[1:]]
    assert "waits again" in CliRunner().invoke(main, arguments).output
    app.topic("held").release(app.lease(topics=["held"])[0].message.id)
    assert app.topic("held").stats().leased == 0


def test_the_lease_of_an_http_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder is the client's address and token, which only tokens for all topics learn."""
    monkeypatch.setattr(workers, "HELD_SECONDS", 0.0)
    scopes, path = ["consume", "read"], "/v1/topics/held/messages/mine"
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app, running(app) as api:
        _, every, _ = tokens.create(app.engine, "billing", scopes)
        _, some, _ = tokens.create(app.engine, "shop", scopes, topics=["held"])
        billing, shop = Api(api.port, token=every), Api(api.port, token=some)
        app.publish("held", 1, id="mine")
        assert len(billing.lease(topics=["held"])) == 1
        holder = billing("GET", path).json["holder"]
        through = f"through gateway {socket.gethostname()}:{os.getpid()}"
        assert holder == f"HTTP client 127.0.0.1 with token 'billing' {through}"
        reason = billing("GET", f"{path}/explain").json["reasons"][0]
        assert f"no worker on the list holds it: {holder} leased it 0 s ago" in reason
        assert "holder" not in shop("GET", path).json
        reason = shop("GET", f"{path}/explain").json["reasons"][0]
        assert "holds it: a program or an HTTP client leased it" in reason
        assert app.explain_topic("held").reasons[0].text.count(holder) == 1


def test_the_lease_of_a_request_that_waits(app: Laneway) -> None:
    """It has the name of the request that gets it, also if others wait for the same."""
    gateway, wanted = Gateway(app), Wanted(topics=("waited",))
    polls = gateway.services.long_polls

    async def run() -> dict[str, str]:
        waiting = {
            name: asyncio.create_task(polls.lease(wanted, 1, TIMEOUT, EVERYTHING, name))
            for name in ("one", "other")
        }
        for _ in waiting:
            await app.apublish("waited", 1)
        return {name: (await task).leases[0].id for name, task in waiting.items()}

    for name, message_id in asyncio.run(run()).items():
        view = app.engine.find(message_id, "waited")
        assert view is not None
        assert view.holder == name
    gateway.close()


def test_back_off(api: Api, app: Laneway) -> None:
    """An operator lets a topic back off, and ends that."""
    app.publish("backing", 1)
    found = api("POST", "/v1/topics/backing/back-off", {"delay": "10m"}).json
    assert (found["state"], found["backs_off_until"] > "2026") == ("asleep", True)
    assert api.lease(topics=["backing"]) == []
    found = api("POST", "/v1/topics/backing/back-off", {"delay": 0}).json
    assert (found["state"], found["backs_off_until"]) == ("runnable", None)
    assert len(api.lease(topics=["backing"])) == 1
    idle = api("POST", "/v1/topics/backing.none/back-off", {"delay": 5}).json
    assert idle["backs_off_until"] is None
    assert "delay" in api.problem("POST", "/v1/topics/backing/back-off", {"delay": -1})["detail"]


def test_commands(store: str, app: Laneway) -> None:
    """The command line does the same."""
    app.publish("typed", 1, id="x", delay="1h")

    def run(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["-u", store, *arguments])
        assert result.exit_code == code, result.output
        return result.output

    assert run("message", "retry", "x", "--topic", "typed") == "x is ready now\n"
    assert "not delayed" in run("message", "retry", "x", "--topic", "typed", code=1)
    assert "backs off" in run("back-off", "typed", "10m")
    assert "typed no longer backs off" in run("back-off", "typed", "0s")
    assert "a dead letter" in run("message", "dead", "x", "--topic", "typed", "--reason", "why")
    assert app.dead_letters.list("typed")[0].reason == "why"
    assert "removed" in run("message", "drop", "x", "--topic", "typed")
    assert "you chose needs its topic" in run("message", "cancel", "x", "--topic", "typed", code=1)
    assert "nothing waits" in run("back-off", "typed.none", "1s")


def test_actions_of_the_library(app: Laneway) -> None:
    """`app.topic(…)` has the same, also awaited."""
    topic = app.topic("handled")
    topic.publish(1, id="x", delay="1h")
    topic.retry_now("x")
    assert topic.back_off("5m")
    with pytest.raises(UsageError, match="topic handled: expected the back-off to be at least 0"):
        topic.back_off(-1)
    assert topic.stats().state == "asleep"
    asyncio.run(topic.amake_dead("x", "why"))
    topic.drop("x")
    with pytest.raises(Refused, match="does not wait"):
        topic.drop("x")
