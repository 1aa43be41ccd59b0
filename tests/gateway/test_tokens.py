"""Tokens: scopes, topics, expiry, bad ones, the command line, and the audit log."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.cli import main
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens
from laneway.gateway.login.access import SCOPES
from laneway.gateway.route_table import ROUTES
from laneway.gateway.routing import Route
from tests.gateway.conftest import Api, serving
from tests.gateway.test_consume import wait_until
from tests.gateway.test_server import call


def run(store: str, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["-u", store, *arguments])
    assert result.exit_code == code, result.output
    return result.output


def created(store: str, *arguments: str) -> tuple[str, str]:
    found = json.loads(run(store, "token", "create", *arguments, "--json"))
    return found["id"], found["token"]


@pytest.fixture(scope="module")
def admin(store: str) -> str:
    """A token that may do everything."""
    scopes = [option for scope in SCOPES for option in ("--scope", scope)]
    return created(store, "admin", *scopes)[1]


@pytest.fixture(scope="module")
def api(store: str, admin: str) -> Iterator[Api]:
    with serving(store) as (api, _):
        yield Api(api.port, token=admin)


@pytest.fixture(scope="module")
def some_topics(api: Api, store: str) -> Api:
    """A token that may do everything with some topics."""
    scopes = [option for scope in SCOPES for option in ("--scope", scope)]
    return with_token(api, store, *scopes, "--topic", "shop.*")


def with_token(api: Api, store: str, *arguments: str) -> Api:
    return Api(api.port, token=created(store, "test", *arguments)[1])


def test_token_is_needed(api: Api) -> None:
    """As soon as there is a token, every request needs one, except probes."""
    nobody = Api(api.port)
    answer = nobody("GET", "/v1/topics", status=401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json["type"] == "/problems/unauthenticated"
    nobody("GET", "/healthz")
    nobody("GET", "/readyz")
    api("GET", "/v1/topics", headers={"host": "api.example"})
    basic = {"authorization": "Basic eDp5"}
    nobody.problem("GET", "/v1/topics", headers=basic, status=401)


def test_scopes(api: Api, store: str) -> None:
    """A token does what its scopes say, and the answer names the one that it lacks."""
    publisher = with_token(api, store, "--scope", "publish")
    message_id = publisher.publish("scopes", {"secret": 1})
    problem = publisher.problem("POST", "/v1/lease", {}, status=403)
    assert "lacks the scope consume; it has publish" in problem["detail"]
    reader = with_token(api, store, "--scope", "read")
    found = reader("GET", f"/v1/messages/{message_id}").json
    assert found["body_hidden"]
    assert found["body"] is None
    assert "secret" not in str(reader("GET", "/v1/topics/scopes/messages").json)
    assert "secret" not in str(reader("GET", f"/v1/messages/{message_id}/explain").json)
    both = with_token(api, store, "--scope", "read", "--scope", "bodies")
    assert both("GET", f"/v1/messages/{message_id}").json["body"] == {"secret": 1}
    for method, path, body in (
        ("POST", "/v1/topics/scopes/pause", None),
        ("DELETE", "/v1/topics/scopes", {"confirm": "scopes"}),
        ("PUT", "/v1/policies/scopes", {"rate": 1}),
        ("POST", "/v1/dead/drop", {}),
        ("GET", "/v1/tokens", None),
        ("GET", "/v1/audit", None),
    ):
        reader.problem(method, path, body, status=403)
    consumer = with_token(api, store, "--scope", "consume")
    (delivery,) = consumer.lease(topics=["scopes"])
    following = {"receipt": delivery["receipt"], "publish": [{"topic": "scopes"}]}
    problem = consumer.problem("POST", "/v1/settle", [following], status=403)
    assert "lacks the scope publish" in problem["detail"]
    assert consumer.settle({"receipt": delivery["receipt"]}) == ["acked"]


def test_topics_of_a_token(api: Api, store: str, app: Laneway) -> None:
    """A token sees and changes only its topics, however it asks."""
    scopes = [option for scope in SCOPES for option in ("--scope", scope)]
    acme = with_token(api, store, *scopes, "--topic", "own.acme.*", "--topic", "own.extra")
    for topic in ("own.acme.a", "own.extra", "own.bolt.a", "own.acmes"):
        app.publish(topic, topic, id="same")
    generated = app.publish("own.bolt.a", 1).id
    listed = acme("GET", "/v1/topics").json["topics"]
    assert [topic["topic"] for topic in listed] == ["own.acme.a", "own.extra"]
    listed = acme("GET", "/v1/topics?pattern=own.*&order=backlog").json["topics"]
    assert {topic["topic"] for topic in listed} == {"own.acme.a", "own.extra"}
    assert acme("GET", "/v1/topics?pattern=own.bolt.*").json["topics"] == []
    acme.publish("own.acme.b", 1)
    hidden: list[tuple[str, str, Any]] = [
        ("POST", "/v1/topics/own.bolt.a/messages", {}),
        ("POST", "/v1/messages", [{"topic": "own.bolt.a"}]),
        ("GET", "/v1/topics/own.bolt.a", None),
        ("GET", "/v1/topics/own.acmes/messages/same", None),
        ("POST", "/v1/lease", {"topics": ["own.bolt.a"]}),
        ("POST", "/v1/lookup", {"topic": "own.bolt.a", "ids": []}),
        ("GET", "/v1/policies/own.*", None),
        ("PUT", "/v1/policies/*", {"rate": 1}),
        ("PUT", "/v1/policies/*%23audit", {"rate": 1}),
        ("PUT", "/v1/policies/own.*%23audit", {"rate": 1}),
        ("PUT", "/v1/policies/own.acme*", {"rate": 1}),
        ("PUT", "/v1/policies/own.acme.*", {"group": "own.bolt"}),
        ("PATCH", "/v1/policies/own.acme.a", {"pool": "theirs"}),
        ("POST", "/v1/topics/own.bolt.a/pause", None),
        ("GET", "/v1/dead", None),
        ("POST", "/v1/dead/redrive", {"topic": "own.bolt.a"}),
        ("POST", "/v1/dead/drop", {}),
        ("GET", "/v1/gates", None),
        ("PUT", "/v1/gates/g", {"rate": 1}),
        ("GET", "/v1/tiers", None),
        ("GET", "/v1/overview", None),
        ("GET", "/v1/workers", None),
        ("GET", "/v1/tokens", None),
        ("POST", "/v1/tokens", {"name": "x", "scopes": ["read"]}),
        ("GET", "/v1/audit", None),
    ]
    for method, path, body in hidden:
        status = 400 if path.endswith("acme*") else 403
        acme.problem(method, path, body, status=status)
    acme.problem("GET", f"/v1/messages/{generated}", status=404)
    for hidden_id in (generated, "4aefe1-660da8564b09"):  # the second one does not exist
        acme.problem("GET", f"/v1/messages/{hidden_id}/explain", status=404)
    api("PUT", "/v1/policies/own.bolt.a", {"weight": 2})
    acme("PUT", "/v1/policies/own.acme.*", {"weight": 2})
    seen = [policy["pattern"] for policy in acme("GET", "/v1/policies").json["policies"]]
    assert seen == ["own.acme.*"]
    line = {"content-type": "application/x-ndjson"}
    (answer,) = acme("POST", "/v1/messages", b'{"topic": "own.bolt.a"}', headers=line).lines
    assert "is for topics" in answer["problem"]
    leased = acme.lease(10, wait=5)
    assert {each["topic"] for each in leased} <= {"own.acme.a", "own.acme.b", "own.extra"}
    assert leased
    following = {"receipt": leased[0]["receipt"], "publish": [{"topic": "own.bolt.a"}]}
    acme.problem("POST", "/v1/settle", [following], status=403)


@pytest.mark.parametrize("route", [each for each in ROUTES if each.is_whole], ids=repr)
def test_what_is_about_the_whole_namespace(some_topics: Api, route: Route) -> None:
    """A token for some topics is refused, whatever its scopes are."""
    path = re.sub("{[a-z]+}", "1", route.path)
    problem = some_topics.problem(route.method, path, status=403)
    assert "this is about the whole namespace" in problem["detail"]


def test_jobs_of_a_token(api: Api, store: str) -> None:
    """A job of another topic is not found, also if the request names a topic of the token."""
    app = Laneway(store)

    @app.task(topic="jobs.acme.a")
    def mine(n: int) -> int:
        return n

    @app.task(topic="jobs.bolt.a")
    def other(n: int) -> int:
        return n

    scopes = ["--scope", "read", "--scope", "bodies", "--scope", "operate"]
    acme = with_token(api, store, *scopes, "--topic", "jobs.acme.*")
    with app:
        job, hidden = mine.delay(1), other.delay(2)
        named = mine.using(id="named").enqueue(3)
        other.using(id="named").enqueue(5)
        other.using(id=job.id).enqueue(6)
        app.run_worker(burst=True, topics=["jobs.acme.a", "jobs.bolt.a"])
        waiting = other.delay(4)
        for topic in ("", "?topic=jobs.acme.a"):
            assert acme("GET", f"/v1/jobs/{job.id}{topic}").json["result"] == 1
            for found in (hidden, waiting):
                for path in (f"{found.id}{topic}", f"{found.id}/wait{topic}"):
                    acme.problem("GET", f"/v1/jobs/{path}", status=404)
                acme.problem("DELETE", f"/v1/jobs/{found.id}{topic}", status=404)
        assert acme("GET", f"/v1/jobs/{named.id}?topic=jobs.acme.a").json["result"] == 3
        acme.problem("GET", f"/v1/jobs/{named.id}?topic=jobs.bolt.a", status=403)
        acme.problem("GET", f"/v1/jobs/{named.id}", status=404)


def test_long_poll_of_a_token(api: Api, store: str, app: Laneway) -> None:
    """A token of some topics waits for these, while others arrive."""
    limited = with_token(api, store, "--scope", "consume", "--topic", "wait.acme.*")
    for n in range(5):
        app.publish("wait.other", n)
    app.publish("wait.acme.a", "mine", delay=0.3)
    assert [each["body"] for each in limited.lease(wait=20)] == ["mine"]


def test_bad_tokens(store: str, admin: str) -> None:
    """Ten bad tokens in a minute are answered 429, with no detail; good ones are served."""
    with serving(store) as (nobody, _):
        known = Api(nobody.port, token=admin)
        known("GET", "/v1/topics")
        other = tokens.create(Laneway(store).engine, "x", ["read"])[1]
        bad = [admin[:-1] + ("a" if admin[-1] != "a" else "b"), "lw_x_y", "nonsense", "lw_\xff"]
        for text in (*bad, *bad, bad[0], admin.replace("lw_", "lw_0")):
            problem = Api(nobody.port, token=text).problem("GET", "/v1/topics", status=401)
            assert text not in str(problem)
        answer = Api(nobody.port, token=bad[0])("GET", "/v1/topics", status=429)
        assert int(answer.headers["retry-after"]) > 0
        Api(nobody.port, token=other)("GET", "/v1/topics")
        known("GET", "/v1/topics")


def test_bad_tokens_are_read_together(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of bad tokens use one thread at a time, and few reads."""
    engine = gateway.services.runtime.engine
    good = tokens.create(engine, "x", ["read"])[1]
    reads: list[int] = []
    read = engine.record_read

    def counted(kind: Any, ids: Sequence[str]) -> Sequence[bytes | None]:
        reads.append(len(ids))
        return read(kind, ids)

    monkeypatch.setattr(engine, "record_read", counted)

    async def statuses() -> list[int]:
        texts = [*(tokens.new_text()[2] for _ in range(300)), good]
        headers = [[(b"authorization", b"Bearer " + text.encode())] for text in texts]
        asked = (call(gateway, "GET", "/v1/topics", headers=each) for each in headers)
        return [status for status, _, _ in await asyncio.gather(*asked)]

    assert asyncio.run(statuses()) == [401] * 10 + [429] * 290 + [200]
    assert sum(reads) >= 301
    assert len(reads) <= 10


def test_revoked_and_expired(api: Api, store: str) -> None:
    """A revoked token ends within a second or so, an expired one at once; neither says more."""
    token_id, text = created(store, "short", "--scope", "read")
    short = Api(api.port, token=text)
    short("GET", "/v1/topics")
    assert "revoked" in run(store, "token", "revoke", token_id)
    wait_until(lambda: short.status("GET", "/v1/topics") == 401)
    assert "no token has the id" in run(store, "token", "revoke", token_id, code=1)
    brief = with_token(api, store, "--scope", "read", "--expires", "0.001s")
    wait_until(lambda: brief.status("GET", "/v1/topics") == 401)
    assert "expired" in brief.problem("GET", "/v1/topics", status=401)["detail"]


def test_open_requests_of_a_revoked_token(api: Api, store: str, app: Laneway) -> None:
    """What waits or streams ends, too, and gets no more messages; what it held goes back."""
    token_id, text = created(store, "open", *(f"--scope={each}" for each in SCOPES))
    short = Api(api.port, token=text)
    app.publish("end.stream", 1)
    header = {"authorization": f"Bearer {text}"}
    streams = {}
    for path in ("/v1/lease/stream?topics=end.stream", "/v1/events"):
        connection = short.open()
        connection.request("GET", path, headers=header)
        streams[path] = connection, connection.getresponse()
        while not streams[path][1].readline().startswith(b"data"):
            pass
    lines = short.open()
    lines.putrequest("POST", "/v1/messages")
    for name, value in {**header, "content-type": "application/x-ndjson"}.items():
        lines.putheader(name, value)
    lines.putheader("transfer-encoding", "chunked")
    lines.endheaders()
    line = b'{"topic": "end.lines"}\n'
    lines.send(b"%x\r\n%b\r\n" % (len(line), line))
    answers = lines.getresponse()
    assert json.loads(answers.readline())["outcome"] == "accepted"
    poll = short.open()
    poll.request(
        *("POST", "/v1/lease", b'{"wait": 60, "topics": ["end.poll"]}'),
        {**header, "content-type": "application/json"},
    )
    waiting = b'laneway_gateway_waiting{kind="lease"} 2\n'  # the stream, too
    wait_until(lambda: waiting in api("GET", "/metrics").content)
    run(store, "token", "revoke", token_id)
    for connection, response in streams.values():
        assert response.read() is not None  # to its end
        connection.close()
    answer = poll.getresponse()
    assert (answer.status, json.loads(answer.read())["detail"]) == (
        401,
        "the token has been revoked",
    )
    app.publish("end.poll", 1)
    wait_until(lambda: app.topic("end.stream").stats().ready == 1)
    assert app.topic("end.poll").stats().ready == 1
    lines.send(b"%x\r\n%b\r\n" % (len(line), line))
    assert "revoked" in json.loads(answers.readline())["problem"]
    assert app.topic("end.lines").stats().ready == 1
    poll.close()
    lines.close()


def test_the_first_token_ends_what_is_open(tmp_path: Path) -> None:
    """Local callers without a token keep no stream or wait from the time before it."""
    url = f"sqlite:///{tmp_path}/first.db"
    with serving(url) as (api, _):
        events, poll = api.open(), api.open()
        events.request("GET", "/v1/events")
        stream = events.getresponse()
        assert stream.readline() == b"event: overview\n"
        body = b'{"wait": 60, "topics": ["first.poll"]}'
        poll.request("POST", "/v1/lease", body, {"content-type": "application/json"})
        waiting = b'laneway_gateway_waiting{kind="lease"} 1\n'
        wait_until(lambda: waiting in api("GET", "/metrics").content)
        created(url, "first", "--scope", "read")
        answer = poll.getresponse()
        assert (answer.status, "send a token" in json.loads(answer.read())["detail"]) == (401, True)
        assert stream.read() is not None  # to its end
        events.close()
        poll.close()
        with Laneway(url) as app:
            app.publish("first.poll", 1)
            assert app.topic("first.poll").stats().ready == 1


def test_rate_of_a_token(api: Api, store: str) -> None:
    """Requests beyond the rate are refused with the time to wait."""
    limited = with_token(api, store, "--scope", "read", "--rate", "1/min")
    limited("GET", "/v1/topics")
    answer = limited("GET", "/v1/topics", status=429)
    assert 1 <= int(answer.headers["retry-after"]) <= 60


@pytest.mark.parametrize(("rate", "burst", "wait"), [(3, 3, 1), (0.7, 1, 2), (0.3, 1, 4)])
def test_permits_of_a_token(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, rate: float, burst: int, wait: int
) -> None:
    """The requests of a second may come at once, at least one; then one for each permit."""
    clock = SimpleNamespace(time_ns=time.time_ns)
    monkeypatch.setattr(tokens, "time", clock)
    _, text, _ = tokens.create(gateway.services.runtime.engine, "limited", ["read"], rate=rate)
    headers = [(b"authorization", f"Bearer {text}".encode())]

    def answers(now: float) -> list[tuple[int, bytes | None]]:
        clock.monotonic = lambda: now
        found = [asyncio.run(call(gateway, "GET", "/v1/topics", headers=headers)) for _ in range(5)]
        return [(status, sent.get(b"retry-after")) for status, _, sent in found]

    refused = (429, b"%d" % wait)
    for now in (1000.0, 2007.7, 3471.9):  # times are rounded in different ways
        assert answers(now) == [(200, None)] * burst + [refused] * (5 - burst)
        assert answers(now + 1.1 / rate) == [(200, None)] + [refused] * 4


def test_token_over_http(api: Api, store: str) -> None:
    """Tokens are created, listed and revoked by an admin; the secret is shown once."""
    body = {"name": "new", "scopes": ["publish"], "topics": ["a.*"], "expires": "1h"}
    answer = api("POST", "/v1/tokens", body, status=201).json
    Api(api.port, token=answer["token"]).publish("a.b", 1)
    listed = api("GET", "/v1/tokens").json["tokens"]
    (found,) = (token for token in listed if token["id"] == answer["id"])
    assert (found["name"], found["scopes"], found["topics"]) == ("new", ["publish"], ["a.*"])
    assert answer["token"] not in str(listed)
    assert api("DELETE", f"/v1/tokens/{answer['id']}").json["id"] == answer["id"]
    api.problem("DELETE", f"/v1/tokens/{answer['id']}", status=404)
    lesser = with_token(api, store, "--scope", "admin")
    problem = lesser.problem("POST", "/v1/tokens", {"name": "x", "scopes": ["read"]}, status=403)
    assert "lacks the scope read" in problem["detail"]
    for wrong in (
        {"name": "", "scopes": ["read"]},
        {"name": "a\x1bb", "scopes": ["read"]},
        {"name": "a", "scopes": []},
        {"name": "a", "scopes": ["all"]},
        {"name": "a", "scopes": ["read"], "topics": ["a*b"]},
        {"name": "a", "scopes": ["read"], "expires": "soon"},
        {"name": "a", "scopes": ["read"], "expires": -1},
        {"name": "a", "scopes": ["read"], "rate": "x"},
    ):
        api.problem("POST", "/v1/tokens", wrong)


def test_commands(tmp_path: Path) -> None:
    """The command line creates, lists and revokes; only the creation shows the secret."""
    store = f"sqlite:///{tmp_path}/t.db"
    assert "serve" in run(store, "serve", "--bind", "0.0.0.0:0", code=2)
    text = run(store, "token", "create", "shop", "--scope", "publish", "--topic", "a.*").strip()
    assert tokens.parse(text) is not None
    output = run(store, "token", "list")
    assert "shop" in output
    assert text not in output
    assert text.split("_")[2][:20] not in run(store, "token", "list", "--json")
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("t.db*"))
    assert b"shop" in stored
    assert text.split("_")[2].encode() not in stored
    assert 'unknown scope "all"' in run(store, "token", "create", "x", "--scope", "all", code=2)
    (found,) = json.loads(run(store, "token", "list", "--json"))
    run(store, "token", "revoke", found["id"])
    assert "there are no tokens" in run(store, "token", "list")


def test_tokens_migrate(tmp_path: Path) -> None:
    """`laneway migrate` copies tokens, so the clients go on."""
    old, new = (f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new"))
    text = created(old, "shop", "--scope", "publish")[1]
    assert json.loads(run(old, "migrate", old, new, "--json"))["tokens"] == 1
    with serving(new) as (api, _):
        Api(api.port, token=text).publish("a", 1)


def test_audit(api: Api, store: str) -> None:
    """Each change is kept: who, what, from where; a policy is undone by its number."""
    operator = with_token(api, store, "--scope", "operate", "--scope", "read")
    operator("PUT", "/v1/policies/audit.*", {"rate": 5})
    operator("PUT", "/v1/policies/audit.*", {"rate": 7, "weight": 2})
    operator("PUT", "/v1/policies/audit.*?dry_run=1", {"rate": 9})
    operator("POST", "/v1/topics/audit.a/pause")
    operator.problem("PUT", "/v1/policies/audit.*", {"rate": "x"})
    changes = api("GET", "/v1/audit?limit=3").json["changes"]
    assert [change["path"] for change in changes] == [
        "/v1/topics/audit.a/pause",
        "/v1/policies/audit.*",
        "/v1/policies/audit.*",
    ]
    paused, second, first = changes
    assert (second["who"], second["method"], second["address"]) == ("test", "PUT", "127.0.0.1")
    assert (second["request"], second["undo"]) == ({"rate": 7, "weight": 2}, {"rate": 5.0})
    assert first["undo"] == {}
    undone = api("POST", f"/v1/audit/{second['number']}/undo").json
    assert undone["fields"] == {"rate": 5.0}
    assert api("GET", "/v1/audit?since=2100-01-01T00:00:00Z").json["changes"] == []
    assert api("GET", "/v1/audit?since=1h&limit=1").json["changes"][0]["path"].endswith("/undo")
    api("POST", f"/v1/audit/{paused['number']}/undo")
    assert api("GET", "/v1/topics/audit.a").json["state"] == "idle"
    again = api("GET", "/v1/audit?limit=2").json
    assert again["changes"][0]["path"].endswith("/undo")
    assert api("GET", f"/v1/audit?limit=1&before={again['next']}").json["changes"] == [paused]
    token = api("POST", "/v1/tokens", {"name": "x", "scopes": ["read"]}).json["token"]
    kept = str(api("GET", "/v1/audit").json)
    assert token.split("_")[2] not in kept
    api.problem("POST", "/v1/audit/999999/undo", status=404)
    api.problem("POST", "/v1/audit/x/undo", status=404)
    api.problem("POST", f"/v1/audit/{'9' * 5000}/undo", status=404)
    number = api("GET", "/v1/audit?limit=1").json["changes"][0]["number"]
    api.problem("POST", f"/v1/audit/{number}/undo", status=409)


def test_audit_of_what_cannot_be_read(api: Api, store: str, app: Laneway) -> None:
    """A body that is left out is kept as null, and a record that nobody can read hides no other."""
    operator = with_token(api, store, "--scope", "operate")
    operator("PUT", "/v1/schedules/hourly", {"topic": "a", "every": "1h"})
    number = api("GET", "/v1/audit?limit=1").json["changes"][0]["number"]
    app.engine.record_swap("audit", f"{number + 1:012d}", None, b'{"at_us":,}')
    operator("POST", "/v1/topics/a/pause")
    third, second, first = api("GET", "/v1/audit?limit=3").json["changes"]
    assert first["request"]["body"] is None
    assert "cannot be read" in second["request"]
    assert third["path"] == "/v1/topics/a/pause"
