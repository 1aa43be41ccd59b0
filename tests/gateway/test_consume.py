"""Lease and settle over HTTP: long polls, receipts, and clients that hang up."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from laneway import Laneway
from tests.gateway.conftest import TIMEOUT, Api, serving


def wait_until(is_so: Any, seconds: float = 60.0) -> None:
    """Look until it is so: what happens in another process cannot be awaited."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_deliveries(api: Api, app: Laneway) -> None:
    """A delivery has all that a handler gets, and what is needed to settle it."""
    app.publish("c.one", {"a": 1}, key="k", priority=3, headers={"x": "y"}, id="mine")
    app.publish("c.two", b"\xff")
    (one,) = api.lease(10, topics=["c.one"])
    assert (one["id"], one["topic"], one["body"], one["key"]) == ("mine", "c.one", {"a": 1}, "k")
    assert (one["priority"], one["headers"], one["attempt"]) == (3, {"x": "y"}, 1)
    assert one["deliveries"] == 1
    assert one["deadline"] > one["published_at"] > "2020-01-01T00:00:00"
    (two,) = api.lease(topics=["c.two"])
    assert (two["body"], two["body_base64"]) == (None, "/w==")
    assert api.settle({"receipt": one["receipt"]}, {"receipt": two["receipt"]}) == ["acked"] * 2
    assert app.topic("c.one").stats().leased == 0


def test_actions(api: Api, app: Laneway) -> None:
    """Each action does what it does in a program, and is answered in the order of the request."""
    topic = app.topic("c.actions")
    for n in range(6):
        topic.publish(n)
    first, second, third, fourth, fifth, sixth = (
        each["receipt"] for each in api.lease(6, topics=["c.actions"])
    )
    outcomes = api.settle(
        {"receipt": first},
        {"receipt": fourth, "action": "extend", "delay": "10m"},
        {"receipt": second, "action": "retry", "delay": "1h", "error": "no answer"},
        {"receipt": third, "action": "dead", "reason": "why not"},
        {"receipt": "nonsense"},
        {"receipt": fifth, "action": "release"},
        {"receipt": first},
        {"receipt": sixth, "publish": [{"topic": "c.next", "body": "after"}]},
    )
    assert outcomes == [
        "acked",
        "extended",
        "retried",
        "died",
        "lost",
        "released",
        "lost",
        "acked",
    ]
    stats = topic.stats()
    assert (stats.leased, stats.delayed, stats.ready, stats.dead) == (1, 1, 1, 1)
    assert topic.dead_letters()[0].reason == "why not"
    assert [message.body for message in app.topic("c.next").peek()] == ["after"]
    (again,) = api.lease(topics=["c.actions"])
    assert api.settle({"receipt": again["receipt"], "action": "back_off", "delay": 60}) == [
        "released"
    ]
    assert topic.stats().backs_off_until_us is not None
    assert api("GET", "/v1/topics/c.actions").json["backs_off_until"] is not None


def test_bad_settlements(api: Api, app: Laneway) -> None:
    """A wrong settlement is named by its position, and nothing is settled."""
    app.publish("c.bad", 1)
    (delivery,) = api.lease(topics=["c.bad"])
    good = {"receipt": delivery["receipt"]}
    for bad in (
        {"action": "extend"},
        {"action": "drop"},
        {"delay": "soon"},
        {"delay": -1},
        {"action": "retry", "publish": [{"topic": "a"}]},
        {"publish": [{"topic": "*"}]},
    ):
        problem = api.problem("POST", "/v1/settle", [good, {**good, **bad}])
        assert problem["pointer"].startswith("#/1")
    assert app.topic("c.bad").stats().leased == 1
    app.topic("c.full").policy(max_backlog=1)
    app.publish("c.full")
    following = {**good, "publish": [{"topic": "c.full"}]}
    (answer,) = api("POST", "/v1/settle", [following]).json
    assert answer["outcome"] == "refused"
    assert "c.full" in answer["reason"]
    assert api.settle(good) == ["acked"]


def test_bad_leases(api: Api) -> None:
    """Arguments are checked, with the name of the argument."""
    for body, text in (
        ({"n": 0}, "n"),
        ({"n": 501}, "n"),
        ({"wait": 61}, "wait"),
        ({"wait": "soon"}, "wait"),
        ({"wait": -1}, "wait"),
        ({"topics": []}, "topics"),
        ({"topics": ["a.*"]}, "pattern"),
        ({"pool": ""}, "pool"),
        ({"lease": "x"}, "lease"),
    ):
        assert text in api.problem("POST", "/v1/lease", body)["detail"]


def test_lease_time(api: Api, app: Laneway) -> None:
    """`lease` bounds how long the lease lasts, and the message is delivered again afterwards."""
    app.publish("c.short", 1)
    (first,) = api.lease(topics=["c.short"], lease=0.2)
    (second,) = api.lease(topics=["c.short"], wait=20)
    assert second["id"] == first["id"]
    assert api.settle({"receipt": first["receipt"]}, {"receipt": second["receipt"]}) == [
        "lost",
        "acked",
    ]


def test_long_poll(api: Api, app: Laneway) -> None:
    """A request waits for a message and gets it at once; without one, it ends with nothing."""
    began = time.monotonic()
    assert api.lease(topics=["c.poll"], wait="300ms") == []
    assert time.monotonic() - began >= 0.3
    with ThreadPoolExecutor(5) as threads:
        waiting = [threads.submit(api.lease, topics=["c.poll"], wait=20) for _ in range(5)]
        for n in range(5):
            app.publish("c.poll", n)
        found = [delivery for future in waiting for delivery in future.result()]
    assert sorted(delivery["body"] for delivery in found) == [0, 1, 2, 3, 4]
    assert set(api.settle(*({"receipt": each["receipt"]} for each in found))) == {"acked"}


def ask(api: Api, body: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", api.port))
    connection.sendall(
        b"POST /v1/lease HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def test_client_that_hung_up(api: Api, app: Laneway) -> None:
    """Messages that arrive for it go to the next client, or back, without a counted attempt."""
    gone = [ask(api, b'{"topics": ["c.gone"], "wait": 60, "n": 5}') for _ in range(3)]
    with ThreadPoolExecutor(1) as threads:
        staying = threads.submit(api.lease, topics=["c.gone"], wait=30)
        for connection in gone:
            connection.close()
        app.publish("c.gone", 1)
        (delivery,) = staying.result()
    assert (delivery["body"], delivery["attempt"]) == (1, 1)
    assert api.settle({"receipt": delivery["receipt"]}) == ["acked"]
    with ask(api, b'{"topics": ["c.gone"], "wait": 60, "n": 5}'):
        pass
    app.publish("c.gone", 2)
    wait_until(lambda: app.topic("c.gone").stats().ready == 1)
    (delivery,) = api.lease(topics=["c.gone"], wait=20)
    assert (delivery["body"], delivery["attempt"]) == (2, 1)


def test_half_closed_client(api: Api, app: Laneway) -> None:
    """A client that closed its sending side counts as gone."""
    with ask(api, b'{"topics": ["c.half"], "wait": 60}') as connection:
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(20)
        assert connection.recv(1000) == b""
        app.publish("c.half", 1)
        (delivery,) = api.lease(topics=["c.half"], wait=20)
    assert delivery["attempt"] == 1


def test_receipts_outlive_a_gateway(api: Api, app: Laneway, store: str) -> None:
    """A lease may be settled at another gateway of the namespace, not at one of another."""
    app.publish("c.two_gateways", 1)
    with serving(store) as (other, _):
        (delivery,) = other.lease(topics=["c.two_gateways"])
    with serving(store, "--namespace", "other") as (elsewhere, _):
        assert elsewhere.settle({"receipt": delivery["receipt"]}) == ["lost"]
    assert api.settle({"receipt": delivery["receipt"]}) == ["acked"]


def test_stop_ends_full_streams_and_waits(store: str) -> None:
    """SIGTERM ends a stream without credit, and a wait for a job: `serving` waits for its end."""
    app = Laneway(store)

    @app.task(topic="c.stop_job")
    def nothing() -> None:
        """It is never run."""

    with app, serving(store) as (api, _):
        job = nothing.delay()
        app.publish("c.stop_stream", 1)
        stream, wait = api.open(), api.open()
        stream.request("GET", "/v1/lease/stream?topics=c.stop_stream&credit=1")
        answer = stream.getresponse()
        while not answer.readline().startswith(b"data: "):
            pass
        wait.request("GET", f"/v1/jobs/{job.id}/wait?timeout=60")
        wait_until(
            lambda: b'laneway_gateway_waiting{kind="job"} 1\n' in api("GET", "/metrics").content
        )
    assert json.loads(wait.getresponse().read())["status"] == "pending"
    assert set(answer.read().splitlines()) <= {b"", b": ping"}
    for each in (answer, stream, wait):
        each.close()


def test_stop_ends_long_polls(store: str) -> None:
    """SIGTERM answers those who wait, with nothing, and the gateway ends."""
    answers: list[Any] = []
    with serving(store) as (api, _):
        thread = threading.Thread(
            target=lambda: answers.append(api.lease(topics=["c.stop"], wait=60))
        )
        thread.start()
        wait_until(
            lambda: b'laneway_gateway_waiting{kind="lease"} 1\n' in api("GET", "/metrics").content
        )
    thread.join(TIMEOUT)
    assert answers == [[]]
