"""Topics, policies and dead letters over HTTP."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from laneway import Laneway
from laneway.engines.base import WorkerFacts
from laneway.units import SECOND
from tests.gateway.conftest import Api


def test_topics(api: Api, app: Laneway) -> None:
    """Lists by name go page by page; the others begin with the largest."""
    for n in range(5):
        for _ in range(n + 1):
            app.publish(f"list.{n}", n)
    first = api("GET", "/v1/topics?pattern=list.*&limit=3").json
    assert [topic["topic"] for topic in first["topics"]] == ["list.0", "list.1", "list.2"]
    second = api("GET", f"/v1/topics?pattern=list.*&limit=3&after={first['next']}").json
    assert [topic["topic"] for topic in second["topics"]] == ["list.3", "list.4"]
    assert second["next"] is None
    assert (first["truncated"], second["truncated"]) == (True, False)
    top = api("GET", "/v1/topics?pattern=list.*&order=backlog&limit=2").json["topics"]
    assert [(topic["topic"], topic["waiting"]) for topic in top] == [("list.4", 5), ("list.3", 4)]
    assert "order" in api.problem("GET", "/v1/topics?order=size")["detail"]
    assert "limit" in api.problem("GET", "/v1/topics?limit=201")["detail"]
    assert api.problem("GET", "/v1/topics?lmit=1")["hint"] == 'did you mean "limit"?'
    assert "twice" in api.problem("GET", "/v1/topics?limit=1&limit=2")["detail"]


def test_topic(api: Api, app: Laneway) -> None:
    """A topic is shown with its policy and who set each field."""
    app.policy("shown.*", rate="7/s")
    app.publish("shown.a", 1)
    api("PATCH", "/v1/policies/shown.a", {"weight": 2})
    found = api("GET", "/v1/topics/shown.a").json
    assert (found["waiting"], found["state"]) == (1, "runnable")
    assert found["policy"]["rate"] == {"value": 7.0, "layer": "code", "pattern": "shown.*"}
    assert found["policy"]["weight"] == {"value": 2.0, "layer": "operator", "pattern": "shown.a"}
    assert found["cursors"][0]["priority"] == 0
    assert api("GET", "/v1/topics/never.used").json["state"] == "idle"


def test_messages(api: Api, app: Laneway) -> None:
    """Messages are listed, found by id, and explained."""
    app.publish("seen", {"a": 1}, id="one")
    generated = app.publish("seen", b"\x00", delay="1h").id
    listed = api("GET", "/v1/topics/seen/messages").json
    assert [each["state"] for each in listed["messages"]] == ["ready", "delayed"]
    assert not listed["truncated"]
    assert api("GET", "/v1/topics/seen/messages?limit=1").json["truncated"]
    assert api("GET", "/v1/topics/seen/messages/one").json["body"] == {"a": 1}
    found = api("GET", f"/v1/messages/{generated}").json
    assert (found["topic"], found["body_base64"]) == ("seen", "AA==")
    explained = api("GET", f"/v1/messages/{generated}/explain").json
    assert explained["state"] == "delayed"
    assert explained["starts_at"] > "2020"
    assert explained["reasons"]
    assert api("GET", "/v1/topics/seen/messages/none/explain").json["state"] == "unknown"
    assert "topic" in api.problem("GET", "/v1/messages/none", status=404)["detail"]
    states = api("POST", "/v1/lookup", {"topic": "seen", "ids": ["one", "none"]}).json["states"]
    assert states == {"one": "waiting", "none": "unknown"}


def test_pause_purge_delete(api: Api, app: Laneway) -> None:
    """A topic pauses and resumes; what removes messages asks for the topic's name."""
    for n in range(3):
        app.publish("gone", n)
    assert api("POST", "/v1/topics/gone/pause").json["state"] == "paused"
    assert api.lease(topics=["gone"]) == []
    assert api("POST", "/v1/topics/gone/resume").json["state"] == "runnable"
    problem = api.problem("POST", "/v1/topics/gone/purge", {"confirm": "other"})
    assert problem["pointer"] == "#/confirm"
    dry = {"confirm": "gone", "dry_run": True}
    assert api("POST", "/v1/topics/gone/purge", dry).json == {"count": 3, "dry_run": True}
    assert api("POST", "/v1/topics/gone/purge", {"confirm": "gone"}).json["count"] == 3
    app.publish("gone", 4)
    assert api("DELETE", "/v1/topics/gone", dry).json["count"] == 1
    assert api("DELETE", "/v1/topics/gone", {"confirm": "gone"}).json["count"] == 1
    app.policy("gone.*", paused=True)
    app.publish("gone.one", 1)
    assert api("POST", "/v1/topics/gone.one/resume").json["state"] == "runnable"


def test_policies(api: Api, app: Laneway) -> None:
    """The operator's policy is replaced, changed, checked, guarded by its version, and undone."""
    path = "/v1/policies/rules.*"
    app.policy("rules.*", retries=3)
    first = api("PUT", path, {"rate": "600/m", "concurrency": 4})
    assert first.json["fields"] == {"rate": 10.0, "concurrency": 4}
    assert first.json["undo"] == {}
    assert app.topic("rules.a").policy()["rate"] == 10.0
    changed = api("PATCH", path, {"rate": None, "lease": "2m"}).json
    assert changed["fields"] == {"concurrency": 4, "lease": 120.0}
    shown = api("GET", path)
    assert shown.json["layers"]["operator"] == changed["fields"]
    assert shown.json["effective"]["retries"] == {
        "value": 3,
        "layer": "code",
        "pattern": "rules.*",
    }
    stale = {"if-match": first.headers["etag"]}
    problem = api.problem("PUT", path, {"rate": 1}, headers=stale, status=409)
    assert problem["type"] == "/problems/conflict"
    current = {"if-match": shown.headers["etag"]}
    tried = api("PUT", path + "?dry_run=1", {"rate": 2}, headers=current).json
    assert (tried["fields"], tried["dry_run"]) == ({"rate": 2.0}, True)
    undone = api("PUT", path, changed["undo"], headers=current).json
    assert undone["fields"] == {"rate": 10.0, "concurrency": 4}
    assert api("DELETE", path).json["undo"] == undone["fields"]
    api.problem("DELETE", path, status=404)
    listed = api("GET", "/v1/policies?pattern=rules.*").json
    assert [policy["layer"] for policy in listed["policies"]] == ["code"]
    problem = api.problem("PUT", path, {"rate": "fast"})
    assert problem["type"] == "/problems/bad-policy"
    assert "rate: expected" in problem["detail"]
    assert 'did you mean "rate"' in api.problem("PUT", path, {"raet": 1})["detail"]
    assert "*" in api.problem("PUT", "/v1/policies/a*b", {"rate": 1})["detail"]
    api.problem("PUT", path, [1])


def test_wrong_values_name_what_is_expected(api: Api) -> None:
    """An error names the field in `pointer`, and the values or the form that are expected."""
    wrong = api.problem("PATCH", "/v1/policies/wrong.*", {"raet": 5})
    assert (wrong["pointer"], wrong["hint"]) == ("#/raet", 'did you mean "rate"?')
    wrong = api.problem("PATCH", "/v1/policies/wrong.*", {"rate": "fast"})
    assert wrong["pointer"] == "#/rate"
    assert "hint" not in wrong
    wrong = api.problem("POST", "/v1/tokens", {"name": "t", "scopes": ["raed"]})
    assert wrong["pointer"] == "#/scopes/0"
    assert "'raed'; expected one of admin, bodies, consume" in wrong["detail"]
    wrong = api.problem("POST", "/v1/settle", [{"receipt": "r", "action": "akc"}])
    assert "expected one of ack, back_off, dead" in wrong["detail"]
    wrong = api.problem("POST", "/v1/topics/a/messages", {"body": 1, "at": "tomorrow"})
    assert 'like "2026-11-22T14:00:00Z"' in wrong["detail"]
    wrong = api.problem("POST", "/v1/lookup")
    assert wrong["detail"] == "body: missing; expected JSON"


def test_policies_of_subscriptions(api: Api, app: Laneway) -> None:
    """Those of a name, under a pattern of topics; `#` is `%23` in a path."""
    path = "/v1/policies/readers.*%23audit"
    app.subscribe("readers.*", "audit")
    app.publish("readers.a", 1)
    tried = api("PUT", path + "?dry_run=1", {"retries": 2}).json["effects"]
    assert (tried["waiting_topics"], tried["after"]["retries"]["pattern"]) == (1, "readers.*#audit")
    assert api("PUT", path, {"retries": 2}).json["fields"] == {"retries": 2}
    assert app.topic("readers.a#audit").policy()["retries"] == 2
    assert "retries" not in app.topic("readers.a").policy()
    assert api("GET", path).json["effective"]["retries"]["value"] == 2
    listed = api("GET", "/v1/policies?pattern=readers.*%23audit").json
    assert [policy["pattern"] for policy in listed["policies"]] == ["readers.*#audit"]
    assert api("DELETE", path).json["undo"] == {"retries": 2}


def test_topic_in_use(api: Api, app: Laneway) -> None:
    """What an engine refuses is a conflict, with the engine's text."""
    app.publish("parts", 1)
    problem = api.problem("PUT", "/v1/policies/parts", {"partitions": 4}, status=409)
    assert problem["type"] == "/problems/topic-in-use"


def test_gates_and_tiers(api: Api) -> None:
    """Gates and tiers are set for the operator, and listed."""
    gate = api("PUT", "/v1/gates/stripe", {"rate": "100/s", "concurrency": 5}).json
    assert (gate["name"], gate["rate"], gate["concurrency"]) == ("stripe", 100.0, 5)
    assert "stripe" in [each["name"] for each in api("GET", "/v1/gates").json["gates"]]
    assert "rate" in api.problem("PUT", "/v1/gates/none", {})["detail"]
    assert "stripe" in api.problem("PUT", "/v1/gates/stripe", {"rate": "x"})["detail"]
    tiers = api("PUT", "/v1/tiers/gold", {"share": 9, "fair_by": "time"}).json["tiers"]
    gold = next(tier for tier in tiers if tier["name"] == "gold")
    assert (gold["share"], gold["fair_by"], gold["layer"]) == (9.0, "time", "operator")
    again = api("PUT", "/v1/tiers/gold", {"share": "strict"}).json["tiers"]
    assert next(tier for tier in again if tier["name"] == "gold")["fair_by"] == "time"
    assert "share" in api.problem("PUT", "/v1/tiers/gold", {"share": -1})["detail"]
    assert gold["reserve"] == 0
    for body in ({"share": 9, "reserve": 0.2}, {"share": 8}):
        tiers = api("PUT", "/v1/tiers/gold", body).json["tiers"]
        assert next(tier for tier in tiers if tier["name"] == "gold")["reserve"] == 0.2
    refused = api.problem("PUT", "/v1/tiers/gold", {"share": 9, "reserve": 1})
    assert "expected reserve to be a part" in refused["detail"]
    api("DELETE", "/v1/tiers/gold")
    api.problem("DELETE", "/v1/tiers/gold", status=404)


def test_dead_letters(api: Api, app: Laneway) -> None:
    """Dead letters are listed with their reason, redriven and dropped."""
    for n in range(4):
        app.publish("dying", n, id=f"d{n}")
    for delivery in app.lease(4, topics=["dying"]):
        delivery.dead("no such order")
    first = api("GET", "/v1/dead?topic=dying&limit=3").json
    assert [each["id"] for each in first["dead_letters"]] == ["d0", "d1", "d2"]
    assert first["dead_letters"][0]["reason"] == "no such order"
    second = api("GET", f"/v1/dead?topic=dying&limit=3&after={first['next']}").json
    assert [each["id"] for each in second["dead_letters"]] == ["d3"]
    some = {"topic": "dying", "ids": ["d1", "d2"]}
    assert api("POST", "/v1/dead/redrive", {**some, "dry_run": True}).json["count"] == 2
    assert api("POST", "/v1/dead/redrive", {**some, "rate": "100/s"}).json["count"] == 2
    assert api("POST", "/v1/dead/drop", {"topic": "dying", "limit": 1}).json["count"] == 1
    assert [each.message.id for each in app.dead_letters.list("dying")] == ["d3"]
    assert "rate" in api.problem("POST", "/v1/dead/redrive", {"rate": "x"})["detail"]


def test_large_numbers(api: Api) -> None:
    """A number beyond those of the store is not valid; priorities have 32 bits."""
    api.problem("GET", f"/v1/dead?after={10**30}")
    api.problem("GET", f"/v1/audit?before={10**30}")
    api("GET", f"/v1/dead?after={2**63 - 1}")
    for priority in (1 - 2**52, 2**52 - 1):
        assert api.lease(topics=["large.none"], priority=priority) == []
    api.problem("POST", "/v1/lease", {"topics": ["large.none"], "priority": 2**52})


def test_namespace(api: Api, app: Laneway) -> None:
    """The totals, and the workers by id."""
    app.publish("counted", 1)
    overview = api("GET", "/v1/overview").json
    assert overview["waiting"] >= 1
    assert overview["published"] >= 1
    assert {tier["tier"] for tier in overview["tiers"]} <= {"high", "mid", "low"}
    for n in range(3):
        facts = WorkerFacts(id=f"w{n}", pools=["gpu"])
        app.engine.beat(facts, dead_after_us=600 * SECOND, listed_us=700 * SECOND)
    first = api("GET", "/v1/workers?pool=gpu&limit=2").json
    assert [worker["id"] for worker in first["workers"]] == ["w0", "w1"]
    second = api("GET", f"/v1/workers?pool=gpu&limit=2&after={first['next']}").json
    assert [worker["id"] for worker in second["workers"]] == ["w2"]
    assert second["workers"][0]["state"] == "running"
    assert second["workers"][0]["started"][:4] >= time.strftime("%Y")


def test_pages_of_policies(api: Api, app: Laneway) -> None:
    """Policies come page by page, each once; a wrong cursor is refused."""
    app.policy("paged.*", rate=1)
    app.policy("paged.a.*", rate=2)
    for n in range(11):
        app.topic(f"paged.{n}").policy(rate=n + 1)
    api("PUT", "/v1/policies/paged.3", {"rate": 100})
    whole = api("GET", "/v1/policies?pattern=paged.*").json
    assert (len(whole["policies"]), whole["next"], whole["truncated"]) == (14, None, False)
    found: list[Any] = []
    after = ""
    while True:
        page = api("GET", f"/v1/policies?pattern=paged.*&limit=4{after}").json
        found += page["policies"]
        assert page["truncated"] == (page["next"] is not None)
        if page["next"] is None:
            break
        after = f"&after={quote(page['next'])}"
    assert found == whole["policies"]
    (one,) = api("GET", "/v1/policies?pattern=paged.7").json["policies"]
    assert one["fields"] == {"rate": 8.0}
    for wrong in ("x", "e30=", "%00", "WzEsMiwzXQ==", "é"):
        assert "next" in api.problem("GET", f"/v1/policies?after={quote(wrong)}")["detail"]


def test_cost_and_reset_of_a_gate(api: Api, app: Laneway) -> None:
    """A cost above what a gate allows is refused; a gate that owes permits is reset."""
    gate = api("PUT", "/v1/gates/costly", {"rate": "1/s", "max_cost": 50}).json
    assert gate["max_cost"] == 50
    app.policy("costly.*", gate="costly")
    path = "/v1/topics/costly.a/messages"
    refused = api.problem("POST", path, {"body": 1, "cost": 51}, status=400)
    assert 'gate "costly" allows 50' in refused["detail"]
    api("POST", path, {"body": 1, "cost": 50})
    app.publish("costly.b", 2)
    assert len(app.lease(2, topics=["costly.a", "costly.b"])) == 1
    assert api("GET", "/v1/gates/costly").json["next_permit"] is not None
    assert api("POST", "/v1/gates/costly/reset").json["leased"] == 1
    assert len(app.lease(2, topics=["costly.a", "costly.b"])) == 1
    api.problem("POST", "/v1/gates/unknown/reset", status=404)
    api.problem("PUT", "/v1/gates/costly", {"rate": 1, "max_cost": 0}, status=400)


def test_pages_of_gates(api: Api, app: Laneway) -> None:
    """Gates and topic groups come by name, page by page; one gate by its name."""
    for name in ("pg-a", "pg-b", "pg-c"):
        app.gate(name, rate=5)
        api("PUT", f"/v1/groups/{name}", {"weight": 2})
    assert api("GET", "/v1/gates/pg-b").json["rate"] == 5.0
    api.problem("GET", "/v1/gates/pg", status=404)
    for kind in ("gates", "groups"):
        first = api("GET", f"/v1/{kind}?limit=2&after=pg").json
        assert [each["name"] for each in first[kind]] == ["pg-a", "pg-b"]
        assert (first["next"], first["truncated"]) == ("pg-b", True)
        rest = api("GET", f"/v1/{kind}?after={first['next']}").json
        assert (rest[kind][0]["name"], rest["truncated"]) == ("pg-c", False)
    assert api("GET", "/v1/tiers").json["truncated"] is False
