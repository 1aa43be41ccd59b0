"""Endpoints on pages: the list, one endpoint, its buttons, the delivery log and replays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway import Laneway
from laneway.engines.base import DeliveryLog, LogEntry
from laneway.gateway.login import tokens
from laneway.push import delivery_log
from laneway.push.secret_store import new_key
from laneway.units import SECOND
from tests.gateway.dashboard.conftest import HOSTILE, Browser, running
from tests.push.conftest import receiver, running as receivers
from tests.push.receiver import Receiver

__all__ = ["receiver", "receivers"]


@pytest.fixture(scope="module", name="running")
def _running(receivers: Receiver) -> Receiver:
    return receivers


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Laneway]:
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", new_key())
    monkeypatch.setenv("LANEWAY_PUSH_ALLOW", "127.0.0.0/8")
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        app.policy("push.*", backoff=0, retries=1)
        app.push("push.*")
        yield app


@pytest.fixture
def browser(app: Laneway) -> Iterator[Browser]:
    with running(app) as browser:
        yield browser


def point(app: Laneway, topic: str, url: str, **settings: Any) -> str:
    """Give a topic an endpoint. Returns its secret."""
    return app.endpoint(topic, url=url, allow_http=True, **settings).secret or ""


def test_an_empty_list_teaches(browser: Browser) -> None:
    """Without endpoints, the page says how to make one."""
    assert "app.endpoint(" in browser.get("/endpoints").words
    assert "has no endpoint" in browser.get("/endpoint?topic=push.x", status=404).words


def test_list(browser: Browser, app: Laneway) -> None:
    """Endpoints by topic, by pattern and state, page by page."""
    app.endpoints.set_many((f"push.{n:02d}", {"url": "https://a.example/"}) for n in range(60))
    app.endpoint("push.07").disable("moved")
    first = browser.get("/endpoints")
    assert "push.49" in first.words
    assert "push.50" not in first.words
    assert "moved" in first.words
    found = re.search(r'<a href="([^"]+)">Next page', first.text)
    assert found
    assert "push.59" in browser.get(unescape(found[1])).words
    words = browser.get("/endpoints?state=disabled").words
    assert "push.07" in words
    assert "push.08" not in words
    assert "No endpoint matches" in browser.get("/endpoints?filter=other.*").words
    browser.get("/endpoints?state=odd", status=400)
    assert "push.07" in browser.get("/endpoint?topic=push.07").words
    assert "moved" in browser.get("/topic?name=push.07").words


def test_trouble_comes_first(browser: Browser, app: Laneway) -> None:
    """Of many endpoints by name, those that need somebody lead the first page, each once."""
    for name in ("push.a", "push.b", "push.z"):
        app.endpoint(name, url="https://shop.example/hooks")
    app.endpoint("push.z").disable("gone: HTTP 410")
    page = browser.get("/endpoints")
    topics = re.findall(r"/endpoint\?topic=([\w.]+)", page.text)
    assert topics == ["push.z", "push.a", "push.b"]
    assert '<span class="state bad">disabled</span>' in page.text
    assert (
        re.findall(r"topic=([\w.]+)", browser.get("/endpoints?filter=push.a").text)[0] == "push.a"
    )


def test_answers_and_times_in_the_list(browser: Browser, app: Laneway) -> None:
    """Each row has the last answer in the log, and the p50 and p95 of the last attempts."""
    for name in ("push.a", "push.b"):
        app.endpoint(name, url="https://shop.example/hooks")
    written = [
        LogEntry("push.a", app.engine.time_us() + n, msgspec.json.encode(entry))
        for n, entry in enumerate(
            delivery_log.Entry(id=f"{n}", status=503 if n == 9 else 200, ms=(float(10 * n + 10),))
            for n in range(10)
        )
    ]
    assert isinstance(app.engine, DeliveryLog)
    app.engine.delivery_log_append(written, keep_us=delivery_log.KEEP_US, max_bytes=1_000_000)
    rows = browser.get("/endpoints").text.split("<tr>")
    (row,) = [each for each in rows if "topic=push.a" in each]
    assert re.findall(r'<td class="n rest"[^>]*>([^<]+)</td>', row) == [
        *("–", "503", "60 ms", "100 ms")
    ]
    (other,) = [each for each in rows if "topic=push.b" in each]
    assert re.findall(r'<td class="n rest"[^>]*>([^<]+)</td>', other) == ["–"] * 4


def test_attempts_of_one_second_are_apart_in_the_chart(browser: Browser, app: Laneway) -> None:
    """The chart has no two attempts at the same time, and the times rise: else it is empty."""
    app.endpoint("push.a", url="https://shop.example/hooks")
    start_us = app.engine.time_us() // SECOND * SECOND
    assert isinstance(app.engine, DeliveryLog)
    for ms in (400, 100, 300, 300):
        entry = msgspec.json.encode(delivery_log.Entry(id=f"{ms}", status=200, ms=(float(ms),)))
        written = LogEntry("push.a", start_us + ms * 1000, entry)
        app.engine.delivery_log_append([written], keep_us=delivery_log.KEEP_US, max_bytes=1_000_000)
    chart = re.search(r'data-chart="([^"]+)"', browser.get("/endpoint?topic=push.a").text)
    assert chart is not None
    found = msgspec.json.decode(unescape(chart[1]))
    start = start_us / SECOND
    assert [each - start for each in found["x"]] == pytest.approx([0.1, 0.3, 0.301, 0.4], abs=1e-5)
    assert found["y"] == [[0.1, 0.3, 0.3, 0.4]]


def test_buttons(browser: Browser, app: Laneway, receiver: Receiver) -> None:
    """Disable, enable, test and rotate; a secret is shown once, and nowhere else."""
    secret = point(app, "push.a", receiver.url("/200"), headers={"x-api-key": "s3cret"})
    back = "/endpoint?topic=push.a"
    page = browser.get(back)
    assert "healthy" in page.words
    assert "s3cret" not in page.text
    assert secret not in page.text
    page = browser.submit("test_endpoint", topic="push.a", back=back)
    assert "Test of push.a:" in page.words
    assert len(receiver.of("/200")) == 1
    page = browser.submit("disable_endpoint", topic="push.a", back=back)
    assert "disabled; its messages wait" in page.words
    assert "by hand" in browser.get(back).words
    assert "probe" in browser.submit("enable_endpoint", topic="push.a", back=back).words
    page = browser.submit("rotate_secret", topic="push.a", back=back)
    (new,) = set(re.findall(r"whsec_[A-Za-z0-9+/=]{20,}", page.text))
    assert new != secret
    assert new not in browser.get(back).text
    browser.submit("disable_endpoint", topic="push.a", back=back)
    page = browser.submit("enable_endpoint", topic="push.a", back=back)
    assert "enabled" in page.words  # and refused, because it was enabled just before
    assert app.endpoint("push.a").info().disabled
    as_command: dict[str, Any] = {"as": "command"}
    command = browser.submit("test_endpoint", topic="push.a", back=back, **as_command)
    assert "/v1/endpoints/push.a/test" in command.words


def test_attempts_and_replay(browser: Browser, app: Laneway, receiver: Receiver) -> None:
    """The delivery log has each attempt, can be searched, and sends a message again."""
    point(app, "push.good", receiver.url("/200"), log="all")
    point(app, "push.bad", receiver.url("/503"), dead_on=[500])
    receiver.answers["/bad"] = lambda: (500, {"x-hostile": "<b>"})
    point(app, "push.dead", receiver.url("/bad"), dead_on=[500], description=HOSTILE[:-1])
    app.publish("push.good", {"n": 1}, id="first")
    app.publish("push.dead", {"n": 2}, id="second")
    app.run_worker(burst=True)
    page = browser.get("/endpoint?topic=push.good")
    assert "succeeded 100%" in page.words
    assert "first" in page.words
    assert "acked" in page.words
    assert "This table as CSV or JSON" in page.words
    page = browser.get("/endpoint?topic=push.dead&result=acked")
    assert "This table as" not in page.words
    page = browser.get("/endpoint?topic=push.dead")
    assert "x-hostile: <b>" in page.words
    assert "<b>" not in page.text.replace("<b></b>", "")
    assert "<script>alert" not in page.text
    assert (
        "No attempt in the log matches"
        in browser.get("/endpoint?topic=push.dead&result=acked").words
    )
    assert "second" in browser.get("/endpoint?topic=push.dead&status=5xx&id=second").words
    for topic, name in (("push.dead", "second"), ("push.good", "first")):
        page = browser.get(f"/message?topic={topic}&id={name}")  # dead, and ended
        assert "/actions/replay" in page.text
        assert f'href="/endpoint?topic={topic}&amp;id={name}">its attempts' in page.text
    app.publish("push.bad", 1, id="waits", delay="1h")
    assert "/actions/replay" not in browser.get("/message?topic=push.bad&id=waits").text
    app.publish("plain.a", 1, id="waits", delay="1h")
    page = browser.get("/message?topic=plain.a&id=none")
    assert "/actions/replay" not in page.text
    assert "its attempts" not in page.words
    receiver.answers["/bad"] = lambda: (200, {})
    page = browser.submit("replay", topic="push.dead", id="second", back="/endpoints")
    assert "second: sent again" in page.words
    page = browser.submit("replay", topic="push.good", id="first", back="/endpoints")
    assert "first: sent again" in page.words
    many: dict[str, Any] = {
        "topic": "push.good",
        "since": "1h",
        "limit": "10",
        "back": "/endpoints",
    }
    page = browser.submit("replay_many", **many, dry="1")
    assert "Nothing was sent. It would be: Messages sent again: 1" in page.words
    page = browser.submit("replay_many", **many, result="dead")
    assert "Messages sent again: 0" in page.words
    app.run_worker(burst=True)
    assert len(receiver.of("/bad")) == 2
    assert [each.headers["webhook-id"] for each in receiver.of("/200")] == ["first"] * 2


def test_it_is_live(browser: Browser, app: Laneway) -> None:
    """A change of the endpoint arrives on an open page."""
    point(app, "push.live", "https://a.example/")
    with browser.live("/endpoint?topic=push.live") as events:
        assert "healthy" in events.until_tick()["strip"]
        app.endpoint("push.live").disable("moved")
        while "strip" not in (found := events.until_tick()):
            pass
        assert "disabled" in str(found["strip"])


def test_what_a_token_may_see(browser: Browser, app: Laneway, receiver: Receiver) -> None:
    """Pages need the scope `endpoints`, and show a caller their own topics only."""
    point(app, "push.acme", receiver.url("/200"), log="all")
    point(app, "push.bolt", "https://bolt.example/")
    app.publish("push.acme", "hidden-body")
    app.run_worker(burst=True)
    some = tokens.create(app.engine, "acme", ["read", "endpoints"], topics=["push.acme"])[1]
    none = tokens.create(app.engine, "reader", ["read", "operate"])[1]
    browser.token = some
    assert "bolt" not in browser.get("/endpoints").text
    browser.get("/endpoint?topic=push.bolt", status=403)
    page = browser.get("/endpoint?topic=push.acme")
    assert "need the scope bodies" in page.words
    browser.submit("disable_endpoint", topic="push.bolt", back="/endpoints")
    assert app.endpoint("push.bolt").info().disabled is None
    browser.token = none
    browser.get("/endpoints", status=403)
    browser.get("/endpoint?topic=push.acme", status=403)
    assert "Its endpoint" not in browser.get("/topic?name=push.acme").words
    assert "/endpoints" not in browser.get("/topics").text
