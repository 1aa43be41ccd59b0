"""The one consumer of an exclusive or failover subscription: a stream."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any

from laneway import Laneway
from laneway.cluster.consumer import ELECTION, lack
from laneway.cluster.term_store import EngineTerms
from tests.gateway.conftest import Api, serving
from tests.gateway.test_consume import wait_until


def path_of(pattern: str, name: str = "audit") -> str:
    return f"/v1/subscriptions/{pattern}/{name}"


class Consuming:
    """An open stream: `next()` is the name and data of its next event."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def next(self) -> tuple[str, Any]:
        while line := self._answer.readline():
            if line.startswith(b"event: "):
                data = self._answer.readline().removeprefix(b"data: ")
                return line.removeprefix(b"event: ").decode().strip(), json.loads(data)
        return "end", None

    def delivery(self) -> dict[str, Any]:
        name, data = self.next()
        assert name == "delivery", (name, data)
        found: dict[str, Any] = data
        return found


@contextlib.contextmanager
def consuming(api: Api, pattern: str, query: str = "") -> Iterator[Consuming]:
    connection = api.open()
    connection.request("GET", f"{path_of(pattern)}/stream{query}")
    answer = connection.getresponse()
    try:
        assert answer.status == 200, answer.read()
        yield Consuming(answer)
    finally:
        connection.close()
        answer.close()


def test_exclusive_pattern(api: Api, app: Laneway) -> None:
    """It gets the messages of all topics; a second one is refused; the rest is released."""
    api("PUT", path_of("x1.*"), {"kind": "exclusive"})
    with consuming(api, "x1.*", "?credit=2") as consumer:
        name, held = consumer.next()
        assert name == "held"
        refused = api.problem("GET", f"{path_of('x1.*')}/stream", status=409)
        assert "it is exclusive" in refused["detail"]
        app.publish("x1.eu", 1)
        first = consumer.delivery()
        app.publish("x1.us", 2)
        second = consumer.delivery()
        assert [first["topic"], second["topic"]] == ["x1.eu#audit", "x1.us#audit"]
        app.publish("x1.us", 3)
        assert api.settle({"receipt": first["receipt"]}) == ["acked"]
        assert consumer.delivery()["body"] == 3
    wait_until(lambda: lack(app.engine, "x1.*#audit"))  # after its messages were released
    with consuming(api, "x1.*") as consumer:
        name, again = consumer.next()
        assert again["fence"] > held["fence"]
        assert [consumer.delivery()["body"], consumer.delivery()["body"]] == [2, 3]
        assert api.settle({"receipt": second["receipt"]}) == ["lost"]


def test_failover(api: Api, app: Laneway) -> None:
    """The next stream waits, and takes over when the first one ends."""
    api("PUT", path_of("x2"), {"kind": "failover"})
    with contextlib.ExitStack() as stack:
        with consuming(api, "x2") as first:
            assert first.next()[0] == "held"
            second = stack.enter_context(consuming(api, "x2"))
            app.publish("x2", 1)
            assert first.delivery()["body"] == 1
        assert second.next()[0] == "held"
        delivery = second.delivery()
        assert (delivery["body"], delivery["attempt"]) == (1, 1)
        assert api.settle({"receipt": delivery["receipt"]}) == ["acked"]


def test_lost_subscription(api: Api, app: Laneway) -> None:
    """A stream whose subscription another consumer holds says so, and ends."""
    api("PUT", path_of("x3"), {"kind": "failover"})
    with consuming(api, "x3") as consumer:
        assert consumer.next()[0] == "held"
        terms = EngineTerms(lambda: app.engine, f"{ELECTION}x3#audit")
        terms.end(terms.state().number, handed_over=True)
        with app.topic("x3#audit").consumer(wait=20):
            name, data = consumer.next()
            assert (name, bool(data["detail"])) == ("lost", True)
            assert consumer.next() == ("end", None)


def test_refused_consumers(api: Api, app: Laneway) -> None:
    """Shared and unknown subscriptions have no such stream; looking at one does not hold it."""
    stream = f"{path_of('x4')}/stream"
    assert "subscribe first" in api.problem("GET", stream, status=409)["detail"]
    api("PUT", path_of("x4"), {})
    assert "it is shared" in api.problem("GET", stream)["detail"]
    api("PUT", path_of("x4"), {"kind": "exclusive"})
    api.problem("GET", f"{stream}?credit=0")
    api.problem("GET", f"{path_of('x4', 'a%20b')}/stream")
    assert api("HEAD", stream).content == b""
    for refused in (
        api.problem("POST", "/v1/lease", {"topics": ["x4#audit"]}, status=409),
        api.problem("GET", "/v1/lease/stream?topics=x4%23audit", status=409),
    ):
        assert "/v1/subscriptions/x4/audit/stream" in refused["detail"]
    with app.topic("x4#audit").consumer():
        assert "exclusive" in api.problem("GET", stream, status=409)["detail"]


def test_stop(store: str) -> None:
    """A stop ends the stream, and the subscription is free at once."""
    with Laneway(store) as app, serving(store) as (api, process):
        api("PUT", path_of("x5"), {"kind": "exclusive"})
        app.publish("x5", 1)
        with consuming(api, "x5") as consumer:
            assert consumer.next()[0] == "held"
            assert consumer.delivery()["body"] == 1
            process.terminate()
            assert consumer.next() == ("end", None)
        process.wait(20)
        with app.topic("x5#audit").consumer() as next_one:
            (delivery,) = next_one.lease(wait=10)
            delivery.ack()
