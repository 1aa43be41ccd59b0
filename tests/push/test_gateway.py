"""Endpoints over HTTP: set, list, test, rotate; secrets stay out of answers and the audit log."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.gateway.login import tokens
from laneway.push import stored_counts, table
from laneway.push.signature import Key
from laneway.push.stored_counts import Counts
from tests.gateway.conftest import Api, serving
from tests.push.receiver import Receiver

URL = "https://acme.example/hooks"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/q.db"


@pytest.fixture
def api(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", "A" * 43 + "=")
    monkeypatch.setenv("LANEWAY_PUSH_ALLOW", "127.0.0.0/8")
    with serving(store) as (api, _):
        yield api


def test_life_of_an_endpoint(api: Api, receiver: Receiver) -> None:
    """Each route, and what it refuses."""
    path = "/v1/endpoints/push.acme"
    created = api(
        "PUT", path, {"url": receiver.url("/200"), "headers": {"x-api-key": "s3cret"}}
    ).json
    assert created["secret"].startswith("whsec_")
    assert (created["state"], created["headers"]) == ("healthy", {"x-api-key": "…"})
    given = Key(bytes(range(40))).text
    assert api("PUT", path, {"timeout": "5s", "secret": given}).json["secret"] is None
    assert api("GET", path).json["timeout"] == 5.0
    assert api("POST", path + "/rotate").json["secret"] != created["secret"]
    assert api("POST", path + "/test").json["ok"]
    assert receiver.requests[0].headers["x-api-key"] == "s3cret"
    assert api("POST", path + "/disable", {"reason": "slow"}).json["disabled"] == "slow"
    assert api("POST", path + "/enable").json["state"] == "probing"
    api("POST", path + "/disable", {})
    refused = api("POST", path + "/enable", status=409)
    assert 0 < int(refused.headers["retry-after"]) <= 301
    api("PUT", "/v1/endpoints/push.acme%23crm", {"url": URL})
    api("PUT", "/v1/endpoints/push.b", {"url": URL})
    page = api("GET", "/v1/endpoints?limit=2").json
    assert [each["topic"] for each in page["endpoints"]] == ["push.acme", "push.acme#crm"]
    rest = api("GET", f"/v1/endpoints?after={page['next'].replace('#', '%23')}").json
    assert [each["topic"] for each in rest["endpoints"]] == ["push.b"]
    assert rest["next"] is None
    audit = json.dumps(api("GET", "/v1/audit").json)
    assert "s3cret" not in audit
    assert given not in audit
    assert "x-api-key" in audit
    assert api("DELETE", path).json["removed"]
    for method, route in (("GET", path), ("DELETE", path), ("POST", path + "/rotate")):
        api(method, route, status=404)


def test_requests_that_are_refused(api: Api) -> None:
    """A private address cannot be opened through the API; errors name the setting."""
    path = "/v1/endpoints/push.bad"
    api("PUT", path, {"url": "http://10.0.0.1/", "allow_private": True}, status=403)
    for wrong in (
        {"url": "http://10.0.0.1/"},
        {"url": "https://169.254.169.254/"},
        {"url": URL, "color": 1},
        {"url": URL, "timeout": -1},
        {"url": 7},
        {},
    ):
        assert "endpoint" in api("PUT", path, wrong, status=400).json["detail"]
    assert "push.bad" not in api("GET", "/v1/endpoints").content.decode()


def test_a_private_endpoint_leads_where_it_was_opened(api: Api, store: str) -> None:
    """What code opened for one address, no request points to another one: metadata, a database."""
    with Laneway(store) as app:
        app.endpoint("push.inside", url="http://10.1.2.3:8000/hooks", allow_private=True)
    path, inside = "/v1/endpoints/push.inside", {"url": "http://10.1.2.3:8000/hooks"}
    assert api("PUT", path, inside | {"timeout": 5}).json["allow_private"]
    for elsewhere in (
        {"url": "http://169.254.169.254/latest"},
        {"url": "http://10.1.2.3:8000/admin"},
        {"url": URL},
        {"proxy": "http://10.9.9.9:3128"},
        {"url": "http://169.254.169.254/latest", "allow_private": False},
    ):
        detail = api("PUT", path, elsewhere, status=400).json["detail"]
        assert "allow_private" in detail or "allow_http" in detail
        line = json.dumps({"topic": "push.inside", **elsewhere}).encode()
        headers = {"content-type": "application/x-ndjson"}
        (answer,) = api("PUT", "/v1/endpoints", line, headers=headers).lines
        assert "problem" in answer
    assert api("GET", path).json["url"] == inside["url"]
    assert not api("PUT", path, {"url": URL, "allow_private": False}).json["allow_private"]


def test_secret_headers_stay_with_their_server(api: Api, store: str) -> None:
    """A token cannot read them by a url or proxy of its own; by code they may be kept."""
    path, secret, other = (
        "/v1/endpoints/push.sealed",
        {"authorization": "s3cret"},
        "https://b.example/",
    )
    lines = {"content-type": "application/x-ndjson"}
    api("PUT", path, {"url": URL, "headers": {**secret, "x-plain": "1"}})
    for elsewhere, setting in (
        ({"url": other}, "url"),
        ({"url": "https://acme.example:8443/hooks", "proxy": None}, "url"),
        ({"url": "http://acme.example/hooks", "allow_http": True}, "url"),
        ({"proxy": "http://proxy.example:3128"}, "proxy"),
    ):
        detail = api("PUT", path, elsewhere, status=400).json["detail"]
        assert f"the new {setting} would send" in detail
        assert '"authorization"' in detail
        line = json.dumps({"topic": "push.sealed", **elsewhere}).encode()
        (answer,) = api("PUT", "/v1/endpoints", line, headers=lines).lines
        assert detail in answer["problem"]
    assert api("GET", path).json["url"] == URL
    same = "https://ACME.example:443/v2"
    assert api("PUT", path, {"url": same, "timeout": 5}).json["headers"]["authorization"] == "…"
    with Laneway(store) as app:
        app.endpoint("push.sealed", url=other, proxy="http://proxy.example:3128")
        assert app.endpoint("push.sealed").info().headers["authorization"] == "…"
    assert api("PUT", path, {"proxy": None}).json["headers"]["authorization"] == "…"
    assert api("PUT", path, {"url": URL, "headers": secret}).json["url"] == URL
    line = json.dumps({"topic": "push.sealed", "url": other, "headers": None}).encode()
    assert "problem" not in api("PUT", "/v1/endpoints", line, headers=lines).lines[0]
    assert api("GET", path).json["headers"] == {}
    assert api("PUT", path, {"url": URL}).json["url"] == URL


def test_endpoints_by_lines(api: Api, store: str) -> None:
    """Each line is set and answered by itself, in order; the audit log has no secrets."""
    given = Key(bytes(range(40))).text
    lines: list[object] = [
        {"topic": "push.l1", "url": URL},
        {"topic": "push.l2", "url": "http://10.0.0.1/x"},
        {"topic": "push.l3", "url": URL, "secret": given},
        {"url": URL},
        {"topic": "push.l4"},
        {"topic": "push.*", "url": URL},
        {"topic": "push.l5", "url": URL, "allow_private": True},
        {"topic": "push.l1", "timeout": "5s"},
    ]
    sent = b"".join(json.dumps(line).encode() + b"\n" for line in lines) + b"{\n"
    headers = {"content-type": "application/x-ndjson"}
    answers = api("PUT", "/v1/endpoints", sent, headers=headers).lines
    assert [each["line"] for each in answers] == list(range(1, 10))
    assert [each.get("topic") for each in answers] == [
        "push.l1", None, "push.l3", None, None, None, None, "push.l1", None,
    ]  # fmt: skip
    assert [bool(each.get("problem")) for each in answers] == [
        each.get("topic") is None for each in answers
    ]
    assert answers[0]["secret"].startswith("whsec_")
    assert api("GET", "/v1/endpoints/push.l1").json["timeout"] == 5.0
    api.problem("PUT", "/v1/endpoints", {"topic": "push.l1"}, status=415)
    with Laneway(store) as app:
        token_id, text, _ = tokens.create(app.engine, "own", ["endpoints"], topics=["push.mine"])
        own = Api(api.port, token=text)
        (answer,) = own("PUT", "/v1/endpoints", sent[: sent.index(b"\n")], headers=headers).lines
        assert "push.mine" in answer["problem"]
        tokens.revoke(app.engine, token_id)
        many = b"".join(
            b'{"topic": "push.m%d", "url": "%b"}\n' % (n, URL.encode()) for n in range(2500)
        )
        assert len(api("PUT", "/v1/endpoints", many, headers=headers).lines) == 2500
    changes = api("GET", "/v1/audit").content
    assert b"2500 endpoints by lines" in changes
    assert given.encode() not in changes


def test_a_wrong_line_costs_no_other_its_secret(api: Api) -> None:
    """Of lines that are set together, some are set before the wrong one is found."""
    urls = [URL] * 600
    urls[550] = "http://10.0.0.1/x"
    sent = b"".join(
        b'{"topic": "push.w%d", "url": "%b"}\n' % (n, url.encode()) for n, url in enumerate(urls)
    )
    headers = {"content-type": "application/x-ndjson"}
    answers = api("PUT", "/v1/endpoints", sent, headers=headers).lines
    assert [n for n, each in enumerate(answers) if not each.get("secret")] == [550]


def test_scopes_and_topics(api: Api, store: str) -> None:
    """A token sees the endpoints of its own topics, and needs the scope `endpoints`."""
    api("PUT", "/v1/endpoints/push.mine", {"url": URL})
    api("PUT", "/v1/endpoints/push.other", {"url": URL})
    with Laneway(store) as app:
        ids = []
        for name, scope in (("own", "endpoints"), ("reader", "read")):
            token_id, text, _ = tokens.create(app.engine, name, [scope], topics=["push.mine"])
            ids.append(token_id)
            mine = Api(api.port, token=text)
            if scope == "read":
                mine("GET", "/v1/endpoints/push.mine", status=403)
                continue
            listed = mine("GET", "/v1/endpoints").json["endpoints"]
            assert [each["topic"] for each in listed] == ["push.mine"]
            mine("GET", "/v1/endpoints/push.other", status=403)
            mine("PUT", "/v1/endpoints/push.other", {"timeout": 1}, status=403)
            mine("POST", "/v1/endpoints/push.mine/rotate")
        for token_id in ids:
            tokens.revoke(app.engine, token_id)


def test_attempts_and_replay(api: Api, store: str, receiver: Receiver) -> None:
    """The log of one endpoint, and of those that a token sees; bodies only with `bodies`."""
    with Laneway(store) as app:
        app.push("logged.*")
        for name in ("one", "two"):
            settings = {"url": receiver.url("/200"), "allow_private": True, "log": "all"}
            app.endpoint(f"logged.{name}", **settings)
            app.publish(f"logged.{name}", name, id=f"id-{name}")
        app.run_worker(burst=True)
        with as_token(api, app, "endpoints", "bodies", topics=["*"]) as everybody:
            found = everybody("GET", "/v1/attempts?pattern=logged.*&since=10m&status=2xx").json
            assert {each["id"] for each in found["attempts"]} == {"id-one", "id-two"}
            assert {each["body"] for each in found["attempts"]} == {"answer of /200"}
            for wrong in ("status=9xx", "after=x", "since=soon", "result=x", "limit=0"):
                everybody("GET", f"/v1/attempts?{wrong}", status=400)
            none = "/v1/endpoints/logged.none/replay"
            everybody("POST", none, {"since": "1h"}, status=404)
        with as_token(api, app, "endpoints", topics=["logged.one", "logging.*"]) as mine:
            (only,) = mine("GET", "/v1/attempts").json["attempts"]
            assert (only["topic"], only["body"], only["can_replay"]) == ("logged.one", None, True)
            assert mine("GET", "/v1/attempts?pattern=other.*").json["attempts"] == []
            assert mine("GET", "/v1/attempts?pattern=logged.two").json["attempts"] == []
            mine("GET", "/v1/endpoints/logged.two/attempts", status=403)
            path = "/v1/endpoints/logged.one/replay"
            assert mine("POST", path, {"since": "1h", "dry_run": True}).json["replayed"] == 1
            answer = mine("POST", path, {"id": "id-one"}).json
            assert (answer["replayed"], len(answer["ids"])) == (1, 1)
            app.run_worker(burst=True)
            own = "/v1/endpoints/logged.one/attempts?limit=5"
            (again, _) = mine("GET", own).json["attempts"]
            assert (again["replay_of"], again["webhook_id"]) == ("id-one", "id-one")
            begun = mine("POST", path, {"since": "1h", "background": True, "rate": 100}, status=202)
            assert begun.json["operation"]
            deadline = time.monotonic() + 60
            while app.topic("logged.one").stats().waiting < 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert app.topic("logged.one").stats().waiting == 1
            mine("POST", path, {"background": True, "rate": "fast"}, status=400)
            mine("POST", path, {"background": True, "after": "5"}, status=400)
            mine("POST", path, {"id": "other"}, status=409)
            mine("POST", path, {"id": "id-one", "since": "1h"}, status=400)
            mine("POST", path, {"since": "soon"}, status=400)
        for name in ("one", "two"):
            app.endpoint(f"logged.{name}").remove()


@contextlib.contextmanager
def as_token(api: Api, app: Laneway, *scopes: str, topics: list[str]) -> Iterator[Api]:
    token_id, text, _ = tokens.create(app.engine, "one of them", list(scopes), topics=topics)
    try:
        yield Api(api.port, token=text)
    finally:
        tokens.revoke(app.engine, token_id)


def test_metrics(api: Api, store: str) -> None:
    """What all senders counted, and how many breakers are open: no series by endpoint."""
    assert "laneway_endpoint" not in api("GET", "/metrics").content.decode()
    api("PUT", "/v1/endpoints/push.acme", {"url": URL})
    api("PUT", "/v1/endpoints/push.b", {"url": URL})

    def failed(record: table.Record | None) -> table.Record | None:
        assert record is not None
        record.condition.opened_us = 1
        return record

    with Laneway(store) as app:
        for _ in range(2):
            counts = Counts()
            counts.attempts.update({"2xx": 3, "timeout": 1})
            counts.opened = 1
            stored_counts.add(app.engine, counts)
        table.update(app.engine, "push.acme", failed)
    lines = api("GET", "/metrics").content.decode().splitlines()
    for line in (
        'laneway_endpoint_attempts_total{namespace="default",answer="2xx"} 6',
        'laneway_endpoint_attempts_total{namespace="default",answer="timeout"} 2',
        'laneway_endpoint_breakers_opened_total{namespace="default"} 2',
        'laneway_endpoint_breakers_open{namespace="default"} 1',
        'laneway_endpoint_log_dropped_total{namespace="default"} 0',
    ):
        assert line in lines
    api("POST", "/v1/endpoints/push.acme/disable", {})
    assert (
        'laneway_endpoint_breakers_open{namespace="default"} 0'
        in api("GET", "/metrics").content.decode()
    )
