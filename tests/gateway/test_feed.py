"""The history and the feed over HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from laneway import Laneway
from laneway.gateway.gateway import Gateway
from tests.gateway.conftest import Api

Event = tuple[str, dict[str, Any]]


@contextmanager
def feed(api: Api) -> Iterator[Iterator[Event]]:
    """The events of a listener, who goes at the end."""
    connection = api.open()
    connection.request("GET", "/v1/events")
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.headers["content-type"] == "text/event-stream"

    def events() -> Iterator[Event]:
        name = ""
        while line := response.readline().decode():
            if line.startswith("event: "):
                name = line[7:].strip()
            elif line.startswith("data: "):
                yield name, json.loads(line[6:])

    try:
        yield events()
    finally:
        response.close()
        connection.close()


def test_history(api: Api, app: Laneway) -> None:
    """Rows of a time, its parts and waiting times; wrong times are refused."""
    for n in range(5):
        app.publish("past.a", n)
    found = api("GET", "/v1/history?from=10m").json
    assert sum(row["published"] for row in found["rows"]) >= 5
    assert (found["step"], found["waiting"] >= 5) == (10.0, True)
    assert len(found["others"]["counts"]) == len(found["others"]["bounds"]) + 1
    assert found["parts"][0]["pattern"] == "*"
    assert api("GET", "/v1/history?from=2h&step=1m").json["step"] == 60.0
    now = time.time()
    assert api("GET", f"/v1/history?from={now - 7200:.0f}&to={now - 3600:.0f}").json["rows"] == []
    assert api("GET", f"/v1/history?to={now - 7200:.0f}").json["rows"] == []  # from an hour before
    for query in ("from=soon", "from=1h&to=2h", "step=7s", "from=90d", "pattern=a", "tier=none"):
        api.problem("GET", f"/v1/history?{query}")
    assert "no policy has the pattern" in api.problem("GET", "/v1/history?pattern=x.*")["detail"]


def test_feed(api: Api, app: Laneway) -> None:
    """All listeners see the namespace each second, and changes through the API."""
    with feed(api) as one, feed(api) as other:
        name, first = next(one)
        assert name == "overview"
        app.publish("feed", 1)
        for events in (one, other):
            for name, overview in events:
                if name == "overview" and overview["published"] > first["published"]:
                    break
        api("POST", "/v1/topics/feed/pause")
        for events in (one, other):
            change = next(each for name, each in events if name == "change")
            assert (change["path"], change["who"]) == ("/v1/topics/feed/pause", "local")
        api("POST", "/v1/topics/feed/resume")
        change = next(each for name, each in one if name == "change")
        assert change["path"] == "/v1/topics/feed/resume"


def test_feed_without_listeners(gateway: Gateway) -> None:
    """Without a listener nothing is read, and one that goes is forgotten."""
    overviews = 0

    async def run() -> None:
        gone = asyncio.Event()
        received: list[bytes] = []

        async def receive() -> dict[str, Any]:
            if received:
                await gone.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": b""}

        async def send(event: Any) -> None:
            nonlocal overviews
            received.append(event.get("body", b""))
            overviews += b"overview" in event.get("body", b"")
            if overviews:
                gone.set()

        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events",
            "query_string": b"",
            "headers": [(b"host", b"localhost")],
            "client": ("127.0.0.1", 1),
        }
        async with asyncio.timeout(20):
            await gateway(scope, receive, send)
            feeds = [task for task in asyncio.all_tasks() if "Feed" in repr(task)]
            await asyncio.wait_for(asyncio.gather(*feeds, return_exceptions=True), 20)
            assert gateway.services.feed.listeners == 0

    asyncio.run(run())
    assert overviews == 1
