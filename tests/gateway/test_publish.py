"""Publish over HTTP: one message, lists, and streams of lines."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgspec
import pytest

from laneway import BadPolicy, Laneway
from laneway.gateway import http, problems
from laneway.gateway.gateway import Gateway
from laneway.gateway.schema import MessageBody
from laneway.policy import check_fields
from tests.gateway.conftest import Api

LINES = {"content-type": "application/x-ndjson"}


def bodies(app: Laneway, topic: str) -> list[Any]:
    return [message.body for message in app.topic(topic).peek(100)]


def test_publish(api: Api, app: Laneway) -> None:
    """A message is stored as a program's would be, with all its options."""
    answer = api(
        "POST",
        "/v1/topics/p.one/messages",
        {
            "body": {"order": 1, "text": "ä"},
            "key": "k",
            "priority": 7,
            "ttl": "1h",
            "id": "mine",
            "headers": {"a": "b"},
        },
        status=201,
    )
    assert answer.json == {"id": "mine", "outcome": "accepted"}
    (message,) = app.topic("p.one").peek()
    assert (message.body, message.key, message.priority) == ({"order": 1, "text": "ä"}, "k", 7)
    assert (message.id, message.headers) == ("mine", {"a": "b"})
    again = api("POST", "/v1/topics/p.one/messages", {"id": "mine"}, status=200)
    assert again.json["outcome"] == "duplicate"


def test_times(api: Api, app: Laneway) -> None:
    """Durations and times are read as in a program; what contradicts is an error."""
    api.publish("p.times", 1, delay="10m")
    api.publish("p.times", 2, delay=600.5)
    api.publish("p.times", 3, at="2100-01-01T00:00:00Z")
    api.publish("p.times", 4, at=4102444800)
    assert app.topic("p.times").stats().delayed == 4
    path = "/v1/topics/p.times/messages"
    assert "delay and at" in api.problem("POST", path, {"delay": 1, "at": 1})["detail"]
    assert "soon" in api.problem("POST", path, {"delay": "soon"})["detail"]
    assert "time zone" in api.problem("POST", path, {"at": "2100-01-01T00:00:00"})["detail"]


def test_idempotency_key(api: Api, app: Laneway) -> None:
    """It is the message's id, and stays known after the message has ended."""
    path, headers = "/v1/topics/p.key/messages", {"idempotency-key": "order-1"}
    assert api("POST", path, {}, headers=headers).json == {"id": "order-1", "outcome": "accepted"}
    for delivery in app.lease(topics=["p.key"]):
        delivery.ack()
    answer = api("POST", path, {}, headers=headers, status=200)
    assert answer.json["outcome"] == "duplicate"
    assert "differ" in api.problem("POST", path, {"id": "other"}, headers=headers)["detail"]


def test_raw_bodies(api: Api, app: Laneway) -> None:
    """A body with another content type is stored as it is, its options in headers."""
    path = "/v1/topics/p.raw/messages"
    xml = {"content-type": "text/xml", "x-laneway-key": "k", "x-laneway-header-a": "b"}
    api("POST", path, b"<a>\xff</a>", headers=xml)
    api("POST", path, b'{"b": [1]}', headers={"content-type": "application/json"}, status=400)
    api("POST", path + "?raw=1", {"b": [1]})
    first, second = app.topic("p.raw").peek()
    assert (first.body, first.key) == (b"<a>\xff</a>", "k")
    assert first.headers is not None
    assert first.headers["a"] == "b"
    assert second.body == {"b": [1]}
    api.publish("p.base64", body_base64="/wA=")
    assert bodies(app, "p.base64") == [b"\xff\x00"]
    assert "contradict" in api.problem("POST", path, {"body": 1, "body_base64": ""})["detail"]
    assert "base64" in api.problem("POST", path, {"body_base64": "%"})["detail"]
    problem = api.problem("POST", path, b"", headers={**xml, "x-laneway-kye": "k"})
    assert 'unknown header "x-laneway-kye"' in problem["detail"]
    delayed = {"content-type": "text/plain", "x-laneway-delay": "90", "x-laneway-priority": "3"}
    api("POST", "/v1/topics/p.late/messages", b"x", headers=delayed)
    assert app.topic("p.late").stats().delayed == 1


def test_form_is_refused(api: Api) -> None:
    """What curl sends without a content type is an error that says what to add."""
    form = {"content-type": "application/x-www-form-urlencoded"}
    problem = api.problem("POST", "/v1/topics/a/messages", b"{}", headers=form, status=415)
    assert "-H 'content-type: application/json'" in problem["detail"]


def test_hostile_topics(api: Api, app: Laneway) -> None:
    """A topic's name may have any character that it may have in a program."""
    for encoded, name in (("a%2Fb%20c", "a/b c"), ("%C3%A4%3F%26", "ä?&"), ("..", "..")):
        api("POST", f"/v1/topics/{encoded}/messages", {"body": name})
        assert bodies(app, name) == [name]
        assert api("GET", f"/v1/topics/{encoded}").json["topic"] == name
    for encoded in ("a%00b", "*", "a.*", "x" * 300, "%FF", "%0A"):
        api.problem("POST", f"/v1/topics/{encoded}/messages", {})


@pytest.mark.parametrize(
    "body",
    [
        b'{"body": "\xff"}',
        b'{"body": 1e999}',
        b'{"body": "\\ud800"}',
        b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"",
        b"[]",
        b"nonsense",
        b'{"body": 1} 2',
        b'{"priority": 1.5}',
        b'{"priority": 4503599627370496}',
        b'{"key": ""}',
        b'{"id": "a\\u0000b"}',
        b'{"headers": {"a": 1}}',
        b'{"delay": -1}',
        b'{"ttl": 1e300}',
        b'{"at": 1e300}',
        b'{"at": "9999-12-31T23:59:59Z"}',
    ],
)
def test_bad_messages(api: Api, app: Laneway, body: bytes) -> None:
    """What a consumer could not read, or the library refuses, is a 400 and is not stored."""
    problem = api.problem(
        "POST",
        "/v1/topics/p.bad/messages",
        body,
        headers={"content-type": "application/json"},
    )
    assert "\n" not in problem["detail"]
    assert app.topic("p.bad").stats().waiting == 0


def test_unknown_fields(api: Api) -> None:
    """An unknown field is named, with the one that was probably meant."""
    problem = api.problem("POST", "/v1/topics/a/messages", {"bdy": 1})
    assert problem["type"] == "/problems/unknown-field"
    assert (problem["pointer"], problem["hint"]) == ("#/bdy", 'did you mean "body"?')
    problem = api.problem("POST", "/v1/messages", [{"topic": "a"}, {"topic": "a", "kye": "k"}])
    assert problem["pointer"] == "#/1/kye"
    problem = api.problem("POST", "/v1/messages", [{"topic": "a"}, {"topic": "a", "priority": "x"}])
    assert problem["pointer"] == "#/1/priority"
    problem = api.problem("POST", "/v1/topics/a/messages?rww=1", {})
    assert problem["hint"] == 'did you mean "raw"?'


def test_long_names(api: Api) -> None:
    """A name that nobody can mean is not compared with the known ones, nor sent back whole."""
    long = "x" * 5_000_000
    began = time.process_time()
    assert len(problems.invalid(unknown_field(long), MessageBody, "body").args[0]) < 500
    with pytest.raises(BadPolicy) as caught:
        check_fields("a", {long: 1})
    assert len(str(caught.value)) < 2_000
    assert time.process_time() - began < 0.5
    problem = api.problem("POST", "/v1/settle", [{"receipt": "r", "action": long}])
    assert len(problem["detail"]) < 600


def unknown_field(name: str) -> Exception:
    """The error of a message with a field that there is not."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({name: 1}, MessageBody)
    return caught.value


def test_lists(api: Api, app: Laneway) -> None:
    """A list is answered in its order; with a message that is not valid, nothing is stored."""
    answer = api("POST", "/v1/messages", [{"topic": f"l.{n % 3}", "body": n} for n in range(9)])
    assert [each["outcome"] for each in answer.json] == ["accepted"] * 9
    assert bodies(app, "l.1") == [1, 4, 7]
    problem = api.problem("POST", "/v1/messages", [{"topic": "l.new"}, {"topic": "*"}])
    assert (problem["type"], problem["pointer"]) == ("/problems/bad-message", "#/1")
    assert app.topic("l.new").stats().waiting == 0
    too_many = [{"topic": "l.new"}] * 10_001
    assert api.problem("POST", "/v1/messages", too_many, status=413)["title"]
    assert api("POST", "/v1/messages", []).json == []


def test_full_backlog(api: Api, app: Laneway) -> None:
    """One message: 429 with Retry-After; in a list, 207 with the reason of each."""
    app.policy("full", max_backlog=2, on_full="block")
    answer = api("POST", "/v1/messages", [{"topic": "full"}] * 3, status=207)
    assert [each["outcome"] for each in answer.json] == ["accepted", "accepted", "refused"]
    assert "2" in answer.json[2]["reason"]
    refused = api("POST", "/v1/topics/full/messages", {}, status=429)
    assert refused.headers["retry-after"] == "1"
    assert refused.json["type"] == "/problems/backlog-full"


def test_lines(api: Api, app: Laneway) -> None:
    """Each line is answered; those that are not valid do not hurt the others."""
    lines = [
        b'{"topic": "n", "body": 1}',
        b"",
        b"nonsense",
        b'{"topic": "n", "body": 2, "kye": 1}',
        b'{"topic": "*"}',
        b'{"topic": "n", "body": 3}',
    ]
    answers = api("POST", "/v1/messages", b"\n".join(lines), headers=LINES).lines
    assert [each["line"] for each in answers] == [1, 2, 3, 4, 5]
    assert [each.get("outcome") for each in answers] == ["accepted", None, None, None, "accepted"]
    assert 'did you mean "key"?' in answers[2]["problem"]
    assert bodies(app, "n") == [1, 3]


def test_lines_of_one_value_each(api: Api, app: Laneway) -> None:
    """A value in two lines, or two in a line, is no message; CRLF ends a line as LF does."""
    for content, stored in (
        (b'{"topic": "one",\n"body": 1}\n', 0),
        (b'{"topic": "one"} {"topic": "one"}\n{"topic":\n"one"}\n', 0),
        (b'{"topic": "one"}\r\n\r\n{"topic": "one"}\r\n', 2),
    ):
        answers = api("POST", "/v1/messages", content, headers=LINES).lines
        assert sum("outcome" in each for each in answers) == stored
    assert app.topic("one").stats().waiting == 2


def test_broken_stream_of_lines(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is too large, or does not end in time, is answered and ends the stream."""
    monkeypatch.setattr(http, "MAX_BODY", 1000)
    monkeypatch.setattr(http, "IDLE_SECONDS", 0.2)
    line = b'{"topic": "n", "body": 1}\n'
    for rest, word in ((b"x" * 2000, "more than"), (b'{"topic"', "no part of the request")):
        answers = asyncio.run(answered_lines(gateway, [line + rest]))
        assert answers[0]["outcome"] == "accepted"
        assert answers[1]["line"] == 2
        assert word in answers[1]["problem"]
        assert len(answers) == 2


async def answered_lines(gateway: Gateway, pieces: list[bytes]) -> list[Any]:
    """The answers to lines of a client that then sends nothing more."""
    events: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": pieces.pop(0), "more_body": True}

    async def send(event: Any) -> None:
        events.append(event)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/messages",
        "raw_path": b"/v1/messages",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/x-ndjson")],
        "client": ("127.0.0.1", 1),
    }
    await gateway(scope, receive, send)
    content = b"".join(event["body"] for event in events[1:])
    return [json.loads(each) for each in content.splitlines()]


def test_stream_of_lines(api: Api) -> None:
    """Lines are answered while the client still sends, whatever pieces they arrive in."""
    connection = api.open()
    connection.putrequest("POST", "/v1/messages")
    connection.putheader("content-type", "application/x-ndjson")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()

    def send(piece: bytes) -> None:
        connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))

    send(b'{"topic": "s", "bo')
    send(b'dy": 1}\n{"topic"')
    response = connection.getresponse()  # the head is here, the request goes on
    first = json.loads(response.readline())
    assert (first["line"], first["outcome"]) == (1, "accepted")
    send(b': "s", "body": 2}')
    connection.send(b"0\r\n\r\n")
    second = json.loads(response.readline())
    assert (second["line"], second["outcome"]) == (2, "accepted")
    assert response.read() == b""
    connection.close()


def test_what_is_wrong_with_json(api: Api) -> None:
    """Half of a surrogate pair is named, and a text that ends is not taken for one."""
    headers, path = {"content-type": "application/json"}, "/v1/policies/push.j"
    half = rb'{"description": "\ud83d'
    for content, text in (
        (half + b'"}', "half of a surrogate pair, such as \\ud83d; send"),
        (half + b' and more"}', "half of a surrogate pair, such as \\ud83d, before byte"),
        (half.replace(b"d83d", b"de00") + b' more"}', "half of a surrogate pair"),
        (rb'{"description": "\\ud83d"', "body: it ends too early"),
        (half, "body: it ends too early"),
        (half + rb"\ude", "body: it ends too early"),
        (b"{", "body: it ends too early"),
    ):
        assert text in api.problem("PUT", path, content, headers=headers, status=400)["detail"]
    (line,) = api(
        "PUT", "/v1/endpoints", half + b'"}', headers={"content-type": "application/x-ndjson"}
    ).lines
    assert "half of a surrogate pair" in line["problem"]
