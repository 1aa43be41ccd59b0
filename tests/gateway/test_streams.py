"""The stream of deliveries, jobs, schedules, subscriptions, metrics, and mounting."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from laneway import Laneway
from tests.gateway.conftest import Api
from tests.gateway.test_consume import wait_until


@contextmanager
def stream(api: Api, query: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The deliveries of a stream; the client goes at the end."""
    connection = api.open()
    connection.request("GET", f"/v1/lease/stream?{query}")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.headers["content-type"] == "text/event-stream"

    def events() -> Iterator[dict[str, Any]]:
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    try:
        yield events()
    finally:
        response.close()
        connection.close()


def test_stream(api: Api, app: Laneway) -> None:
    """Messages come as they are published, as many as the credit; settling makes room."""
    with stream(api, "topics=s.a,s.b&credit=2") as deliveries:
        app.publish("s.a", 1)
        first = next(deliveries)
        app.publish("s.b", 2)
        second = next(deliveries)
        for n in (3, 4):
            app.publish("s.a", n)
        assert [first["body"], second["body"]] == [1, 2]
        assert app.topic("s.a").stats().ready == 2
        assert api.settle({"receipt": first["receipt"]}) == ["acked"]
        third = next(deliveries)
        assert third["body"] == 3
        extended = {"receipt": third["receipt"], "action": "extend", "delay": "10m"}
        assert api.settle({"receipt": second["receipt"]}, extended) == ["acked", "extended"]
        assert next(deliveries)["body"] == 4
    wait_until(lambda: app.topic("s.a").stats().ready == 2)
    assert [message.attempt for message in app.topic("s.a").peek()] == [1, 1]


def test_stream_arguments(api: Api) -> None:
    """They are checked before the stream begins."""
    for query in ("credit=0", "credit=x", "topics=a.*", "topics=", "lease=soon", "pool="):
        api.problem("GET", f"/v1/lease/stream?{query}")


def test_head_of_a_stream(api: Api, app: Laneway) -> None:
    """HEAD leases nothing."""
    app.publish("s.head", 1)
    connection = api.open()
    connection.request("HEAD", "/v1/lease/stream?topics=s.head")
    assert connection.getresponse().status == 200
    connection.close()
    stats = app.topic("s.head").stats()
    assert (stats.ready, stats.delivered) == (1, 0)


def test_run_out_lease_makes_room(api: Api, app: Laneway) -> None:
    """A lease that ran out unsettled counts no more."""
    with stream(api, "topics=s.late&credit=1&lease=0.3") as deliveries:
        app.publish("s.late", 1)
        assert next(deliveries)["deliveries"] == 1
        assert next(deliveries)["deliveries"] == 2


def test_jobs(api: Api, store: str) -> None:
    """A task's call is shown, waited for and cancelled."""
    app = Laneway(store)

    @app.task(topic="jobs.add")
    def add(a: int, b: int) -> int:
        return a + b

    with app:
        job = add.delay(1, 2)
        assert api("GET", f"/v1/jobs/{job.id}").json["status"] == "pending"
        waited = api("GET", f"/v1/jobs/{job.id}/wait?timeout=0.1").json
        assert waited["status"] == "pending"
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(api, "GET", f"/v1/jobs/{job.id}/wait?timeout=60")
            app.run_worker(burst=True, topics=["jobs.add"])
            found = waiting.result().json
        assert (found["status"], found["result"]) == ("success", 3)
        other = add.delay(1, 2)
        assert api("DELETE", f"/v1/jobs/{other.id}").json == {"cancelled": True}
        assert api("GET", f"/v1/jobs/{other.id}").json["status"] == "cancelled"
    api.problem("GET", "/v1/jobs/none", status=404)
    api.problem("GET", f"/v1/jobs/{other.id}/wait?timeout=61")


def test_schedules(api: Api) -> None:
    """A schedule is stored, listed, paused, resumed and removed."""
    body = {"topic": "reports", "body": {"a": 1}, "cron": "0 7 * * *", "timezone": "Europe/Berlin"}
    assert api("PUT", "/v1/schedules/daily", body).json == {"is_new": True}
    assert api("PUT", "/v1/schedules/daily", body).json == {"is_new": False}
    assert api("PUT", "/v1/schedules/often", {"topic": "a", "every": "10m"}).json["is_new"]
    listed = api("GET", "/v1/schedules").json["schedules"]
    assert [each["name"] for each in listed] == ["daily", "often"]
    assert (listed[0]["topic"], listed[0]["is_paused"]) == ("reports", False)
    assert listed[0]["next_at"] > "2020"
    first = api("GET", "/v1/schedules?limit=1").json
    after = api("GET", f"/v1/schedules?limit=1&after={first['next']}").json
    assert [each["name"] for each in after["schedules"]] == ["often"]
    assert api("POST", "/v1/schedules/daily/pause").json["is_paused"]
    assert api("GET", "/v1/schedules").json["schedules"][0]["is_paused"]
    assert not api("POST", "/v1/schedules/daily/resume").json["is_paused"]
    assert api("DELETE", "/v1/schedules/daily").json == {"removed": True}
    assert api("DELETE", "/v1/schedules/daily").json == {"removed": False}
    api.problem("POST", "/v1/schedules/none/pause", status=404)
    assert "cron" in api.problem("PUT", "/v1/schedules/x", {"topic": "a", "cron": "x"})["detail"]
    api.problem("PUT", "/v1/schedules/x", {"topic": "a"})
    api.problem("PUT", "/v1/schedules/a@b", {"topic": "a", "every": 60})


def test_subscriptions(api: Api, app: Laneway) -> None:
    """A subscription gets copies from now on; it is listed and removed by its name."""
    path = "/v1/subscriptions/shop.orders/audit"
    api("PUT", path, {"where": {"country": ["de", "fr*"]}})
    app.publish("shop.orders", 1, headers={"country": "de"})
    app.publish("shop.orders", 2, headers={"country": "us"})
    (found,) = api("GET", "/v1/topics/shop.orders/subscriptions").json["subscriptions"]
    assert (found["name"], found["topic"], found["waiting"]) == ("audit", "shop.orders#audit", 1)
    assert found["layer"] == "operator"
    assert api.lease(topics=["shop.orders#audit"])[0]["body"] == 1
    assert api("GET", "/v1/topics/shop.orders%23audit").json["leased"] == 1
    assert "name" in api.problem("PUT", "/v1/subscriptions/a/b%20c", {})["detail"]
    api.problem("PUT", path, {"kind": "mine"})
    api.problem("DELETE", path, {"confirm": "other"})
    assert api("DELETE", path, {"confirm": "audit", "dry_run": True}).json["count"] == 1
    assert api("DELETE", path, {"confirm": "audit"}).json["count"] == 1
    api.problem("DELETE", path, {"confirm": "audit"}, status=404)


def test_dry_run_of_a_patterns_subscription(api: Api, app: Laneway) -> None:
    """It counts what the removal would remove: not what another pattern still declares."""
    path = "/v1/subscriptions/shop.*/audit"
    api("PUT", path, {})
    api("PUT", "/v1/subscriptions/shop.eu/audit", {})
    for topic in ("shop.eu", "shop.us", "shop.us", "shop.asia"):
        app.publish(topic, 1)
    assert api("DELETE", path, {"confirm": "audit", "dry_run": True}).json["count"] == 3
    assert api("DELETE", path, {"confirm": "audit"}).json["count"] == 3
    assert app.topic("shop.eu#audit").stats().waiting == 1


def test_priority(api: Api, app: Laneway) -> None:
    """Only messages of at least a priority, if that is asked for."""
    app.publish("urgent", "low")
    app.publish("urgent", "high", priority=5)
    app.publish("urgent", "highest", priority=9)
    assert [each["body"] for each in api.lease(5, priority=5, max_priority=5)] == ["high"]
    assert [each["body"] for each in api.lease(5, priority=1)] == ["highest"]


def test_metrics(api: Api, app: Laneway) -> None:
    """Totals and requests as Prometheus reads them; topics only if they are asked for."""
    app.publish('metric."\\', 1)
    text = api("GET", "/metrics").content.decode()
    assert '\nlaneway_waiting{namespace="default"} ' in text
    assert '\nlaneway_published_total{namespace="default"} ' in text
    line = 'laneway_gateway_requests_total{method="GET",path="/v1/topics/{topic}",status="200"} '
    api("GET", "/v1/topics/a")
    assert line in api("GET", "/metrics").content.decode()
    assert "metric." not in text
    api("POST", "/v1/topics/a/messages", {"body": 1})
    text = api("GET", "/metrics").content.decode()
    for method, path in (("GET", "/v1/topics/{topic}"), ("POST", "/v1/topics/{topic}/messages")):
        labels = f'{{method="{method}",path="{path}"'
        assert f'laneway_gateway_request_seconds_bucket{labels},le="+Inf"}} ' in text
        assert f"laneway_gateway_request_seconds_count{labels}}} " in text
        [seconds] = re.findall(
            rf"laneway_gateway_request_seconds_sum{re.escape(labels)}}} (.+)", text
        )
        assert 0 < float(seconds) < 60
    topped = api("GET", "/metrics?top=100").content.decode()
    assert r'laneway_topic_waiting{topic="metric.\"\\"} 1' in topped
    parser = pytest.importorskip("prometheus_client.parser")
    names = {family.name for family in parser.text_string_to_metric_families(topped)}
    assert {"laneway_waiting", "laneway_topic_waiting", "laneway_gateway_requests"} <= names


def test_mounted(store: str) -> None:
    """`app.asgi()` works inside another application, under its prefix."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    events: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"body": 1}'}

    async def send(event: Any) -> None:
        events.append(event)

    with Laneway(store) as app:
        gateway = app.asgi()
        outer = Starlette(routes=[Mount("/queue", app=gateway)])
        path = "/queue/v1/topics/a%2Fb/messages"
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/queue/v1/topics/a/b/messages",
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
        }
        asyncio.run(outer(scope, receive, send))
        gateway.close()
        assert events[0]["status"] == 201
        assert app.topic("a/b").stats().waiting == 1
