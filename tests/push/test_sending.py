"""A message as its receiver gets it, and what each answer means for the message."""

from __future__ import annotations

import base64
import email.utils
import json
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from prometheus_client import CollectorRegistry
from standardwebhooks import Webhook

from laneway import Laneway, Message
from laneway.errors import Refused, UsageError
from laneway.metrics import measure
from laneway.push.answers import Answer, judge
from laneway.push.stored_counts import Counts
from tests.push.receiver import Receiver


def test_signature_is_accepted(app: Laneway, receiver: Receiver) -> None:
    """The library of Standard Webhooks verifies each request, also one of bytes."""
    bodies: list[Any] = [{"order": 42, "who": "Zoë \U0001f600"}, [], None, b"\x00\xff\xfe", "text"]
    endpoint = app.endpoint("push.acme", url=receiver.url("/200"), allow_private=True)
    assert endpoint.secret is not None
    for body in bodies:
        app.publish("push.acme", body)
    app.run_worker(burst=True)
    assert len(receiver.requests) == len(bodies)
    judge_ = Webhook(endpoint.secret)
    for each in receiver.requests:
        if b"\xff" not in each.body:  # the library decodes the body
            assert judge_.verify(each.body, each.headers) == json.loads(each.body)
        else:
            assert each.headers["content-type"] == "application/octet-stream"
    kinds = {each.headers["content-type"]: each for each in receiver.requests}
    sample = kinds["application/json"]
    assert sample.headers["webhook-attempt"] == "1"
    assert sample.headers["idempotency-key"] == sample.headers["webhook-id"]
    assert sample.headers["user-agent"].startswith("Laneway/")
    assert not {"expect", "cookie", "accept-encoding", "webhook-topic"} & set(sample.headers)


def test_rotated_secret(app: Laneway, receiver: Receiver) -> None:
    """The new and the old secret both sign for a day; only the ends of them are shown."""
    endpoint = app.endpoint("push.acme", url=receiver.url("/200"), allow_private=True)
    old, new = endpoint.secret, endpoint.rotate()
    assert old is not None
    app.publish("push.acme", 1)
    app.run_worker(burst=True)
    (request,) = receiver.requests
    for secret in (old, new):
        Webhook(secret).verify(request.body, request.headers)
    assert request.headers["webhook-signature"].count("v1,") == 2
    hints = endpoint.info().secrets
    assert hints == [f"whsec_…{each.rstrip('=')[-4:]}" for each in (new, old)]
    (stored,) = app.engine.record_read("endpoint", ["push.acme"])
    assert stored is not None
    for secret in (old, new):
        assert secret.removeprefix("whsec_") not in repr(endpoint.info()) + stored.decode()
        assert secret not in repr(endpoint)


def test_ed25519(app: Laneway, receiver: Receiver) -> None:
    """The receiver has only the public key; a rotation signs with old and new keys."""
    endpoint = app.endpoint(
        "push.acme", url=receiver.url("/200"), allow_private=True, secret="ed25519"
    )
    public = endpoint.secret
    assert public is not None
    assert public.startswith("whpk_")
    assert endpoint.info().secrets == [public]
    app.publish("push.acme", {"n": 1})
    app.run_worker(burst=True)
    new = endpoint.rotate()
    app.publish("push.acme", {"n": 2})
    app.run_worker(burst=True)
    key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
    for request in receiver.requests:
        headers = request.headers
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
        (own,) = (
            each.removeprefix("v1a,")
            for each in headers["webhook-signature"].split()
            if each.startswith("v1a,")
        )
        key.verify(base64.b64decode(own), signed)
    Webhook(new).verify(receiver.requests[1].body, receiver.requests[1].headers)
    seed = base64.b64encode(b"s" * 32).decode()
    app.endpoint("push.acme", secret=f"whsk_{seed}")
    assert app.endpoint("push.acme").info().secrets[0].startswith("whpk_")
    for wrong in ("whsk_AAAA", "whsk_!", "ED25519", f"whpk_{seed}"):
        with pytest.raises(UsageError, match="expected a secret") as caught:
            app.endpoint("push.acme", secret=wrong)
        assert wrong not in str(caught.value).replace('"ed25519"', "")


def test_method(app: Laneway, receiver: Receiver) -> None:
    """As the endpoint says; a connection that is used again does not keep it."""
    app.policy("push.*", concurrency=1)
    for name in ("PUT", "POST", "PATCH", "POST"):
        app.endpoint("push.x", url=receiver.url("/200"), allow_private=True, method=name)
        app.publish("push.x", 1)
        app.run_worker(burst=True)
    assert [each.method for each in receiver.requests] == ["PUT", "POST", "PATCH", "POST"]
    with pytest.raises(UsageError, match="method"):
        app.endpoint("push.x", method="GET")


def test_id_is_the_same_in_each_attempt(app: Laneway, receiver: Receiver) -> None:
    """Also one with a dot, which the specification forbids: it is hashed."""
    for name, message_id in (("one", "order.42"), ("two", "order-43")):  # each has its breaker
        app.endpoint(f"push.{name}", url=receiver.url("/500"), allow_private=True)
        app.publish(f"push.{name}", 1, id=message_id)
    app.run_worker(burst=True)
    ids = {each.headers["webhook-id"] for each in receiver.requests}
    assert len(receiver.requests) == 6
    assert "order-43" in ids
    (hashed,) = ids - {"order-43"}
    assert hashed.startswith("m_")
    assert hashed.isalnum() or "_" in hashed
    assert {each.headers["webhook-attempt"] for each in receiver.requests} == {"1", "2", "3"}


def test_headers_of_strangers(app: Laneway, receiver: Receiver) -> None:
    """A message's headers cannot add lines to the request."""
    app.endpoint(
        "push.acme",
        url=receiver.url("/200"),
        allow_private=True,
        headers={"X-Shop": "7", "auth": "s"},
    )
    evil = {"content-type": "text/plain\r\nx-evil: 1", "traceparent": "00-1\r\nx-evil: 2"}
    app.publish_many([Message("push.acme", "x", headers=evil, id="a b: x-evil")])
    app.publish("push.acme", "y", headers={"traceparent": "00-ab-cd-01"})
    app.run_worker(burst=True)
    assert len(receiver.requests) == 2
    for each in receiver.requests:
        assert "x-evil" not in each.headers
        assert (each.headers["x-shop"], each.headers["auth"]) == ("7", "s")
    traces = [each.headers.get("traceparent", "") for each in receiver.requests]
    assert sorted(traces) == ["", "00-ab-cd-01"]
    assert app.endpoint("push.acme").info().headers == {"x-shop": "7", "auth": "…"}


def test_contents(app: Laneway, receiver: Receiver) -> None:
    """As the endpoint says: the body, Standard Webhooks' envelope, CloudEvents, a template."""
    settings: dict[str, dict[str, Any]] = {
        "body": {},
        "standard": {"content": "standard"},
        "events": {"content": "cloudevents"},
        "binary": {"content": "cloudevents-binary"},
        "template": {
            "template": {"n": "$.order.n", "first": "$.tags.0", "none": "$.a.b", "id": "$id"}
        },
    }
    for name, fields in settings.items():
        app.endpoint(f"push.{name}", url=receiver.url(f"/{name}"), allow_private=True, **fields)
        app.publish(
            f"push.{name}", {"type": "order.paid", "order": {"n": 7}, "tags": ["x"]}, id=name
        )
    app.run_worker(burst=True)
    found = {each.path.strip("/"): json.loads(each.body) for each in receiver.requests}
    assert found["body"] == {"type": "order.paid", "order": {"n": 7}, "tags": ["x"]}
    assert found["standard"]["type"] == "order.paid"
    assert found["standard"]["data"] == found["body"]
    assert (found["events"]["specversion"], found["events"]["id"]) == ("1.0", "events")
    assert found["template"] == {"n": 7, "first": "x", "none": None, "id": "template"}
    content_types = {each.path: each.headers["content-type"] for each in receiver.requests}
    assert content_types["/events"] == "application/cloudevents+json"
    (binary,) = receiver.of("/binary")
    assert found["binary"] == found["body"]
    assert binary.headers["content-type"] == "application/json"
    names = ("ce-specversion", "ce-id", "ce-source", "ce-type")
    assert [binary.headers[name] for name in names] == [
        "1.0",
        "binary",
        "/topics/push.binary",
        "order.paid",
    ]


def test_a_cloud_event_of_any_body_and_topic(app: Laneway, receiver: Receiver) -> None:
    """Binary data is base64, and the source is a reference as RFC 3986 has it."""
    for topic in ("push.a b/c-<é>", "push.bin"):
        app.endpoint(topic, url=receiver.url("/e"), allow_private=True, content="cloudevents")
    app.publish("push.a b/c-<é>", {"n": 1}, id="json")
    app.publish("push.bin", b"\xff\0", id="bin")
    app.run_worker(burst=True)
    found = {each["id"]: each for each in (json.loads(each.body) for each in receiver.requests)}
    assert found["json"]["source"] == "/topics/push.a%20b%2Fc-%3C%C3%A9%3E"
    assert found["json"]["data"] == {"n": 1}
    assert found["bin"]["datacontenttype"] == "application/octet-stream"
    assert (found["bin"]["data_base64"], "data" in found["bin"]) == ("/wA=", False)


def test_event_that_no_header_takes(app: Laneway, receiver: Receiver) -> None:
    """Its message is a dead letter at once, and counts nothing for its endpoint."""
    endpoint = app.endpoint(
        "push.x", url=receiver.url("/200"), allow_private=True, content="cloudevents-binary"
    )
    for n in (1_000_000, 1_001, 1_000):
        app.publish("push.x", {"type": "e" * n})
    app.run_worker(burst=True)
    errors = [letter.reason or letter.error or "" for letter in app.dead_letters.list()]
    assert len(errors) == 2
    assert all("the header ce-type takes at most 1,000" in each for each in errors)
    (sent,) = receiver.requests
    assert sent.headers["ce-type"] == "e" * 1_000
    assert endpoint.info().failures == 0


def test_subscriptions_and_events(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each endpoint of one customer gets the events that it wants, for itself."""
    counts = Counts()
    monkeypatch.setattr("laneway.push.sender.COUNTS", counts)
    registry = CollectorRegistry()
    measure(app, registry=registry, store=True)
    app.policy("push.acme", own_backlog=False)
    app.endpoint("push.acme#crm", url=receiver.url("/crm"), allow_private=True, events=["order.*"])
    app.endpoint("push.acme#erp", url=receiver.url("/500"), allow_private=True, events=["stock"])
    app.publish("push.acme", {"type": "order.paid"})
    app.publish("push.acme", {"n": 1}, headers={"event": "order.sent"})
    app.publish("push.acme", {"type": "stock"})
    app.publish("push.acme", {"n": 2})
    app.run_worker(burst=True)
    sent = sorted(receiver.of("/crm"), key=lambda each: each.body)  # two at once: in any order
    assert [json.loads(each.body) for each in sent] == [{"n": 1}, {"type": "order.paid"}]
    assert len(receiver.of("/500")) == 3
    assert [letter.message.topic for letter in app.dead_letters.list()] == ["push.acme#erp"]
    assert app.topic("push.acme").stats().waiting == 0
    for name, answer, count in (
        ("attempts", "2xx", 2),
        ("attempts", "5xx", 3),
        ("skipped", None, 5),
        ("breakers_opened", None, 0),
    ):
        labels = {"namespace": app.namespace} | ({} if answer is None else {"answer": answer})
        assert registry.get_sample_value(f"laneway_endpoint_{name}_total", labels) == count


@pytest.mark.parametrize("path", ["/big", "/endless", "/hang", "/headers", "/close", "/garbage"])
def test_receivers_that_behave_badly(app: Laneway, receiver: Receiver, path: str) -> None:
    """One that sends too much is cut, one that never ends is left; others are not held up."""
    app.policy("push.bad", retries=0)
    seconds = 0.4 if path in ("/hang", "/endless") else 60  # the others end by themselves
    app.endpoint("push.bad", url=receiver.url(path), allow_private=True, timeout=seconds)
    app.endpoint("push.good", url=receiver.url("/200"), allow_private=True)
    app.publish("push.bad", 1)
    app.publish("push.good", 1)
    began = time.monotonic()
    app.run_worker(burst=True)
    assert time.monotonic() - began < 60
    assert len(receiver.of("/200")) == 1
    errors = [letter.error or "" for letter in app.dead_letters.list()]
    if path == "/big":
        assert errors == []  # its status was good
        assert receiver.sent < 64 << 20
    elif path == "/headers":
        assert len(errors) <= 1
    else:
        kind = "timeout" if path in ("/hang", "/endless") else "reset"
        assert len(errors) == 1
        assert errors[0].startswith(kind)


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (200, {}, "acked"),
        (204, {}, "acked"),
        (202, {"retry-after": "9"}, "acked"),
        (302, {}, "dead"),
        (400, {}, "dead"),
        (403, {}, "dead"),
        (404, {}, "dead"),
        (409, {}, "dead"),
        (418, {}, "dead"),
        (500, {}, "dead"),
        (999, {}, "dead"),
        (99, {}, "dead"),
        (500, {"webhook-retry": "No"}, "dead at once"),
        (422, {}, "dead"),
        (410, {}, "waiting, paused"),
        (429, {}, "waiting"),
        (429, {"retry-after": "0"}, "waiting"),
        (503, {"retry-after": "300"}, "waiting, backs off"),
    ],
)
def test_what_each_answer_means(
    app: Laneway,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    headers: dict[str, str],
    outcome: str,
) -> None:
    """A busy or vanished receiver costs no attempt; others fail until the retries are used up."""
    monkeypatch.setattr("laneway.push.breaker.FIRST_BUSY_SECONDS", 600.0)
    receiver.answers["/x"] = lambda: (status, headers)
    app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    app.publish("push.x", 1)
    app.run_worker(burst=True)
    stats = app.topic("push.x").stats()
    requests = len(receiver.requests)
    if outcome == "acked":
        assert (stats.done, requests) == (1, 1)
    elif outcome.startswith("dead"):
        assert (stats.dead, requests) == (1, 1 if outcome == "dead at once" else 3)
    else:
        (message,) = app.topic("push.x").peek(1)
        assert (stats.waiting, requests) == (1, 1)
        assert message.attempt == 1
        assert (stats.state == "paused") == ("paused" in outcome)
        if "backs off" in outcome:
            assert stats.backs_off_until_us is not None


def test_gone_endpoint_is_disabled_until_it_is_enabled(app: Laneway, receiver: Receiver) -> None:
    """Its messages wait; a second switch-on within five minutes of a switch-off is refused."""
    status = [410]
    receiver.answers["/x"] = lambda: (status[0], {})
    endpoint = app.endpoint("push.x", url=receiver.url("/x"), allow_private=True)
    notices: list[Any] = []
    app.handler("laneway.endpoints")(lambda message: notices.append(message.body))
    app.engine.policy_set("operator", "push.x", {"paused": False})  # a click of long ago
    for n in range(3):
        app.publish("push.x", n)
    app.run_worker(burst=True)
    assert len(receiver.requests) <= 2  # the first limit of concurrency="auto"
    with pytest.raises(Refused, match=r"`laneway endpoint enable push\.x` sends"):
        app.topic("push.x").resume()
    assert app.engine.lease(1, topics=["push.x"]).leases == []
    info = endpoint.info()
    assert (info.state, info.disabled) == ("disabled", "gone")
    assert [(each["type"], each["topic"]) for each in notices] == [("endpoint.disabled", "push.x")]
    notices.clear()
    assert app.topic("push.x").stats().ready >= 1  # the one that found it gone
    endpoint.enable()
    assert endpoint.info().state == "probing"
    receiver.requests.clear()
    app.run_worker(burst=True)
    assert len(receiver.requests) == 1  # a probe
    assert "endpoint.enabled" in [each["type"] for each in notices]
    with pytest.raises(Refused, match=r"enabled less than 5 min ago.*push\.x --now`"):
        endpoint.enable()
    endpoint.enable(now=True)
    assert endpoint.info().state == "probing"
    endpoint.disable("gone")
    status[0] = 200
    record = app.engine.record_read("endpoint", ["push.x"])[0]
    assert record is not None
    changed = json.loads(record) | {"enabled_us": 1}
    assert app.engine.record_swap("endpoint", "push.x", record, json.dumps(changed).encode())
    endpoint.enable()
    deadline = time.monotonic() + 60
    while app.topic("push.x").stats().done < 3 and time.monotonic() < deadline:
        app.run_worker(burst=True)
    assert endpoint.info().state == "healthy"


def test_changed_url_holds_for_the_next_attempt(app: Laneway, receiver: Receiver) -> None:
    """A sender that runs reads the endpoint again for each attempt."""
    app.endpoint("push.x", url=receiver.url("/500"), allow_private=True)

    def move() -> tuple[int, dict[str, str]]:
        app.endpoint("push.x", url=receiver.url("/200"))
        return 500, {}

    receiver.answers["/500"] = move
    app.publish("push.x", 1)
    app.run_worker(burst=True)
    assert [each.path for each in receiver.requests] == ["/500", "/200"]


def test_endpoints_are_read_with_each_lease(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each message, which would be a hop to a thread and back."""
    calls: list[str] = []

    def counted(name: str) -> None:
        call = getattr(app.engine, name)

        def count(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return call(*arguments, **named)

        monkeypatch.setattr(app.engine, name, count)

    for n in range(20):
        app.endpoint(f"push.{n}", url=receiver.url("/200"), allow_private=True)
    app.publish_many(Message(f"push.{n % 20}", n) for n in range(200))
    counted("lease")
    counted("record_read")
    app.run_worker(burst=True)
    assert len(receiver.requests) == 200
    assert calls.count("record_read") <= calls.count("lease")


def test_retry_after() -> None:
    """Seconds or a date, cut to an hour; what is neither, or below a second, is not there."""
    now = 1_800_000_000.0

    def delay(text: str) -> float | None:
        answer = Answer(status=429, headers={"retry-after": text})
        return judge(answer, now=now).delay

    assert delay("7") == 7.0
    assert delay("86400") == 3600.0
    assert delay(email.utils.formatdate(now + 90, usegmt=True)) == 90.0
    for wrong in ("0", "0.5", email.utils.formatdate(now - 90, usegmt=True)):
        assert delay(wrong) is None
    for wrong in ("", "soon", "-5", "1e9", "٣", "9" * 400, "Mon, 99 Foo 2026"):
        assert delay(wrong) in (None, 3600.0)
