"""Operations on many dead letters: progress, end, and who sees them; events of endpoints."""

from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from laneway import Laneway, Message
from laneway.gateway import operations
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens
from laneway.gateway.login.access import Caller
from laneway.gateway.operations import LOST_US, RUNNING, Operation
from laneway.message import Settlement
from laneway.push import events as endpoint_events
from tests.gateway.conftest import Api
from tests.gateway.test_feed import feed
from tests.gateway.test_server import call


def bury(app: Laneway, topic: str, count: int, reason: str = "no such order") -> None:
    """Give a topic so many dead letters."""
    app.publish_many([Message(topic, n) for n in range(count)])
    while leases := app.engine.lease(500, topics=[topic]).leases:
        app.engine.settle(
            [Settlement(each.handle, each.fence, "dead", reason=reason) for each in leases]
        )


def begin(api: Api, step: str, **body: Any) -> dict[str, Any]:
    """Begin an operation, and return it as it is then."""
    answer = api("POST", f"/v1/dead/{step}", {"background": True, **body}, status=202)
    found: dict[str, Any] = api("GET", answer.headers["location"]).json
    assert found["id"] == answer.json["operation"]
    return found


def ended(api: Api, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation when it has ended, as the feed reports it."""
    with feed(api) as events:
        next(events)
        found: dict[str, Any] = api("GET", f"/v1/operations/{operation['id']}").json
        while found["ended"] is None:
            found = next(
                each
                for name, each in events
                if name == "operation" and each["id"] == operation["id"]
            )
    return found


def test_redrive_of_many(api: Api, app: Laneway) -> None:
    """All dead letters are put back, page by page; the operation counts them and ends."""
    bury(app, "many.redriven", 2500)
    operation = begin(api, "redrive", topic="many.redriven")
    assert (operation["kind"], operation["total"]) == ("redrive", 2500)
    operation = ended(api, operation)
    assert (operation["state"], operation["done"], operation["who"]) == ("done", 2500, "local")
    stats = app.topic("many.redriven").stats()
    assert (stats.dead, stats.waiting) == (0, 2500)
    listed = api("GET", "/v1/operations").json["operations"]
    assert listed[0] == operation
    assert api("DELETE", f"/v1/operations/{operation['id']}").json["state"] == "done"
    changes = api("GET", "/v1/audit?limit=2").json["changes"]
    assert changes[1]["path"] == "/v1/dead/redrive"


def test_drop_by_fingerprint(api: Api, app: Laneway) -> None:
    """Only those that failed so are dropped, beyond the oldest 10,000 too; a limit holds."""
    bury(app, "many.dropped", 30)
    bury(app, "many.dropped", 20, "another reason")
    groups = api("GET", "/v1/dead/groups?topic=many.dropped").json["groups"]
    some = {"topic": "many.dropped", "fingerprint": groups[0]["fingerprint"]}
    assert ended(api, begin(api, "drop", **some, limit=7))["done"] == 7
    operation = ended(api, begin(api, "drop", **some))
    assert (operation["done"], operation["total"]) == (23, None)
    assert app.topic("many.dropped").stats().dead == 20
    ids = [each.message.id for each in app.dead_letters.list("many.dropped")][:5]
    assert ended(api, begin(api, "drop", topic="many.dropped", ids=ids))["done"] == 5


def test_stop_at_a_rate(api: Api, app: Laneway) -> None:
    """At a rate they are put back shortly before they are due; stopping leaves the rest dead."""
    bury(app, "many.slow", 30)
    operation = begin(api, "redrive", topic="many.slow", rate="1/s")
    while app.topic("many.slow").stats().dead == 30:
        time.sleep(0.01)
    assert operations.stop(app.engine, operation["id"]) is not None  # as another gateway does
    operation = ended(api, operation)
    assert (operation["state"], operation["done"] < 30) == ("stopped", True)
    stats = app.topic("many.slow").stats()
    assert (stats.dead, stats.waiting) == (30 - operation["done"], operation["done"])


def test_refused_operations(api: Api) -> None:
    """What cannot begin says so at once."""
    path = "/v1/dead/redrive"
    assert "rate" in api.problem("POST", path, {"background": True, "rate": "x"})["detail"]
    api.problem("POST", path, {"background": True, "fingerprint": "x"})
    assert "background" in api.problem("POST", path, {"limit": 100_001})["detail"]
    assert api("POST", path, {"background": True, "dry_run": True, "topic": "none"}).json == {
        "count": 0,
        "dry_run": True,
    }
    for wrong in ("none", "%00", "a" * 100, "%C3%A4"):
        api.problem("GET", f"/v1/operations/{wrong}", status=404)
        api.problem("DELETE", f"/v1/operations/{wrong}", status=404)


def test_lost_and_hidden_operations(gateway: Gateway) -> None:
    """One whose gateway has ended is lost; a token of other topics does not see it."""
    engine = gateway.services.runtime.engine
    past = time.time_ns() // 1000 - LOST_US - 1_000_000
    operation = Operation(kind="drop", who="x", topic="a", started_us=past, written_us=past)
    content = operations._write(operation)
    engine.record_swap("gateway", f"{operations.PREFIX}0a", None, content)
    replay = msgspec.structs.replace(operation, kind="replay", topic="c")
    assert "begin it again for the rest" in str(operations._shown(operation).detail)
    assert "sends these messages again" in str(operations._shown(replay).detail)
    found = {}
    for topic in ("a", "b"):
        _, text, _ = tokens.create(engine, topic, ["read", "operate"], topics=[topic])
        headers = [(b"authorization", f"Bearer {text}".encode())]
        for method, path in (
            ("GET", "/v1/operations"),
            ("GET", "/v1/operations/0a"),
            ("DELETE", "/v1/operations/0a"),
        ):
            status, body, _ = asyncio.run(call(gateway, method, path, headers=headers))
            found[topic, method, path] = status, json.loads(body)
    assert found["a", "GET", "/v1/operations/0a"][1]["state"] == "lost"
    assert found["a", "DELETE", "/v1/operations/0a"][1]["state"] == "lost"
    assert len(found["a", "GET", "/v1/operations"][1]["operations"]) == 1
    assert found["b", "GET", "/v1/operations"][1] == {"operations": [], "truncated": False}
    assert found["b", "GET", "/v1/operations/0a"][0] == 404
    assert found["b", "DELETE", "/v1/operations/0a"][0] == 404


def test_own_operations(gateway: Gateway) -> None:
    """A token without the scope to see others sees and stops those that it began."""
    engine = gateway.services.runtime.engine
    now_us = time.time_ns() // 1000
    found = {}
    owner, owner_text, _ = tokens.create(engine, "own", ["endpoints"], topics=["a"])
    _, other_text, _ = tokens.create(engine, "other", ["endpoints"], topics=["a"])
    _, none_text, _ = tokens.create(engine, "none", ["publish"])
    operation = Operation(
        kind="replay", who="own", token=owner, topic="a", started_us=now_us, written_us=now_us
    )
    engine.record_swap("gateway", f"{operations.PREFIX}0c", None, operations._write(operation))
    for name, text in (("own", owner_text), ("other", other_text), ("none", none_text)):
        headers = [(b"authorization", f"Bearer {text}".encode())]
        for method, path in (
            ("GET", "/v1/operations"),
            ("GET", "/v1/operations/0c"),
            ("DELETE", "/v1/operations/0c"),
        ):
            status, body, _ = asyncio.run(call(gateway, method, path, headers=headers))
            found[name, method, path] = status, json.loads(body)
    assert len(found["own", "GET", "/v1/operations"][1]["operations"]) == 1
    assert found["own", "GET", "/v1/operations/0c"][1]["state"] == "running"
    assert found["own", "DELETE", "/v1/operations/0c"][1]["state"] == "stopping"
    assert found["other", "GET", "/v1/operations"][1]["operations"] == []
    assert found["other", "GET", "/v1/operations/0c"][0] == 404
    assert found["other", "DELETE", "/v1/operations/0c"][0] == 404
    assert {found["none", "GET", path][0] for path in ("/v1/operations", "/v1/operations/0c")} == {
        403
    }


def test_bounds_of_operations(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway runs few at once, stops them at its end, and the store keeps the last ones."""
    monkeypatch.setattr(operations, "KEPT", 3)
    engine, running = gateway.services.runtime.engine, gateway.services.operations

    def begin_one(steps: Any) -> str:
        return running.begin(Caller("x", frozenset()), "drop", steps)

    def fails(*_: Any) -> Any:
        raise ValueError("a defect")

    failed = begin_one(fails)
    while (operation := operations.find(engine, failed)) is None or operation.ended_us is None:
        time.sleep(0.01)
    assert operation.state == "failed"
    assert "defect" not in (operation.detail or "")

    def waits(_: Any, pause: Any) -> Any:
        while True:
            pause(30)
            yield 1

    began = [begin_one(waits) for _ in range(RUNNING)]
    with pytest.raises(Exception, match="operations run in this gateway"):
        begin_one(waits)
    running.close()
    found = [operations.find(engine, each) for each in began]
    assert {each.state for each in found if each is not None} == {"stopped"}
    assert operations.find(engine, failed) is None  # swept
    with pytest.raises(Exception, match="stopping"):
        begin_one(waits)


def test_events_of_endpoints(api: Api, app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed reports them; the store keeps the last ones, and of many at once not all."""
    clock = SimpleNamespace(monotonic=lambda: 1000.0, time_ns=time.time_ns)  # all in one second
    monkeypatch.setattr(endpoint_events, "time", clock)
    sender = endpoint_events.EndpointEvents(app.engine)
    with feed(api) as events:
        next(events)
        sender.add("opened", "push.seen", "http 503")
        event = next(each for name, each in events if name == "endpoint")
    assert (event["kind"], event["topic"], event["detail"]) == ("opened", "push.seen", "http 503")
    number = endpoint_events.newest_number(app.engine)
    for n in range(30):
        sender.add("opened", f"push.{n}", "x" * 1000)
    stored = endpoint_events.since(app.engine, number)
    assert 0 < len(stored) < 30
    assert len(stored[0].detail) == endpoint_events.MAX_TEXT
    monkeypatch.setattr(endpoint_events, "KEPT", 4)
    monkeypatch.setattr(endpoint_events, "PER_SECOND", 1000)
    for n in range(9):
        sender.add("recovered", f"push.{n}", "")
    kept = [each.topic for each in endpoint_events.since(app.engine, 0)]
    assert kept == ["push.5", "push.6", "push.7", "push.8"]
