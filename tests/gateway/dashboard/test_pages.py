"""The pages as people without JavaScript use them: read, and forms."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from laneway import Laneway, Message
from laneway.gateway.dashboard.menu import ALL
from laneway.gateway.login import tokens
from laneway.message import Settlement
from laneway.policy import FIELDS
from laneway.push.secret_store import KEY_VARIABLE, new_key
from laneway.units import SECOND
from tests.gateway.dashboard.conftest import HOSTILE, Browser, beat, running


def test_an_empty_store_teaches(tmp_path: Path) -> None:
    """Pages of an empty store say what to type."""
    with Laneway(f"sqlite:///{tmp_path}/empty.db") as app, running(app) as browser:
        assert "app.publish(" in browser.get("/").words
        assert "laneway worker" in browser.get("/").words
        assert "app.publish(" in browser.get("/topics").words
        assert "Nothing waits or runs in this topic" in browser.get("/topic?name=push.acme").words


@pytest.mark.parametrize("namespace", ["default", "of-ann"])
def test_what_is_to_be_typed_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """
    The examples of the pages run as they are, in another folder too, and their messages, tasks,
    gates, schedules and endpoints are in the store of the gateway.
    """
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    monkeypatch.chdir(tmp_path)
    paths = ("/", "/topics", "/limits", "/jobs", "/future", "/endpoints")
    with Laneway("sqlite:///empty.db", namespace=namespace) as app, running(app) as browser:
        found = [
            unescape(each)
            for path in paths
            for each in re.findall(r"<pre>(.*?)</pre>", browser.get(path).text, re.DOTALL)
        ]
        (curl,) = (each for each in found if each.startswith("curl "))
        _, url, _, header, _, body = shlex.split(curl)
        content_type = header.removeprefix("content-type: ")
        answer = browser.send("POST", urlsplit(url).path, body, content_type=content_type)
        assert answer.status == 201
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        names: dict[str, Any] = {}
        for each in found:
            if not each.startswith(("curl ", "laneway ")):
                exec(each, names)  # our own examples
                names["app"].engine.tallies()  # what is declared is in the store from then on
        names["app"].close()
        assert app.topic("push.acme").stats().waiting == 4
        assert [each["name"] for each in app.engine.gate_list()] == ["stripe"]
        assert [each.name for each in app.schedules.list()] == ["nightly"]
        assert [each.topic for each in app.endpoints.list()] == ["push.acme"]
        browser.token = tokens.create(app.engine, "one", ["read"], topics=["other.*"])[1]
        assert "app = Laneway(...)" in browser.get("/topics").words
        assert "empty.db" not in browser.get("/topics").words


def test_now(browser: Browser, app: Laneway) -> None:
    """The first page has figures, tiers, workers, and what stands out with a link."""
    for n in range(120):
        app.publish("push.flood", n)
    app.publish("render.poster", 1)
    app.policy("render.*", pool="gpu")
    beat(app, busy=3, pools=["default"])
    page = browser.get("/")
    assert "1 worker runs" in page.words
    assert "3 of 4 handlers are busy" in page.words
    assert "push.flood holds 99% of the backlog" in page.words
    assert "Pool gpu has 1 message that could run, and no worker" in page.words
    assert 'href="/topic?name=push.flood"' in page.text
    table = browser.get("/?range=15m&table=true").words
    assert "What happened, the newest first" in table
    assert "range: expected one of" in browser.get("/?range=2h", status=400).words


def test_a_part_of_the_history(browser: Browser, app: Laneway) -> None:
    """A zoom of the charts is in the URL; links move it in time, and an invalid one says so."""
    app.publish_many(Message("push.acme", n) for n in range(3))
    now = int(app.engine.time_us() / SECOND)
    around, before = f"from={now - 60}&to={now + 60}", f"from={now - 180}&to={now - 60}"
    page = browser.get(f"/?{around}&table=true")
    assert "Z 3 0 0 0 0 3 " in page.words, page.words
    for link in ("Earlier", "Zoom in", "Whole range"):
        assert link in page.words
    assert "Later" not in page.words
    assert f'href="/?range=1h&amp;{before.replace("&", "&amp;")}&amp;table=true"' in page.text
    page = browser.get(f"/?{before}&table=true")
    assert "Later" in page.words
    assert "Z 3 0 0 0 0 3 " not in page.words
    assert "Later" in browser.get("/?from=0&to=10").words
    for wrong in ("from=5", "to=5", "from=5&to=9", "from=9&to=5", f"from=0&to={now}"):
        assert "expected from and to as Unix seconds" in browser.get("/?" + wrong, status=400).words


def test_topics(browser: Browser, app: Laneway) -> None:
    """Topics are listed by an order, and filtered by pattern, state, tier, pool and group."""
    for n in range(3):
        app.publish(f"list.{n}", n)
    app.publish("list.paused", 1)
    app.policy("list.paused", paused=True)
    app.policy("list.gold", tier="high")
    app.publish("list.gold", 1)
    words = browser.get("/topics?filter=list.*").words
    assert all(f"list.{name}" in words for name in (0, 1, 2, "paused", "gold"))
    assert "ready no worker" in words
    words = browser.get("/topics?filter=list.*+state:paused").words
    assert "list.paused" in words
    assert "list.0" not in words
    assert "no worker" not in words
    words = browser.get("/topics?filter=list.*+tier:high&order=age").words
    assert "list.gold" in words
    assert "list.paused" not in words
    assert "No topic matches" in browser.get("/topics?filter=none.*").words
    assert 'there is no "colr:"' in browser.get("/topics?filter=colr:red", status=400).words
    assert "order: expected one of" in browser.get("/topics?order=size", status=400).words


def test_pages_by_name(browser: Browser, app: Laneway) -> None:
    """A list by name goes on at the next page."""
    for n in range(60):
        app.publish(f"paged.{n:02d}", n)
    first = browser.get("/topics?order=name&filter=paged.*")
    assert "paged.49" in first.words
    assert "paged.50" not in first.words
    found = re.search(r'<a href="([^"]+)">Next page', first.text)
    assert found
    assert "paged.50" in browser.get(unescape(found[1])).words


def test_a_topic(browser: Browser, app: Laneway) -> None:
    """A topic's page has its policy with sources, what binds it, messages and subscriptions."""
    app.policy("shown.*", rate="7/s", concurrency=3)
    app.policy("shown.a", weight=2)
    app.subscribe("shown.a", "audit")
    app.publish("shown.a", 1, key="k-1")
    app.publish("shown.a", 2, delay="1h")
    words = browser.get("/topic?name=shown.a").words
    assert "rate 7/s code, shown.*" in words
    assert "0 of 3" in words
    assert "k-1" in words
    assert "delayed" in words
    assert "shown.a#audit" in words
    assert "A subscription of shown.a" in browser.get("/topic?name=shown.a%23audit").words
    app.publish("bare", 1)
    assert "No policy covers it: no limits, tier mid." in browser.get("/topic?name=bare").words


SHOWN: dict[str, tuple[Any, str]] = {
    "rate": ("600/m", "10/s"),
    "burst": (20, "20"),
    "concurrency": ("auto", "auto"),
    "min_concurrency": (2, "2"),
    "max_concurrency": (2000, "2,000"),
    "weight": (0.5, "0.5"),
    "tier": ("high", "high"),
    "pool": ("slow", "slow"),
    "lease": ("2m", "2 min"),
    "time_limit": ("forever", "forever"),
    "retries": (3, "3"),
    "backoff": (["5s", "5m"], "5 s, 5 min; ± 20 %"),
    "ttl": ("36h", "1 d 12 h"),
    "on_expiry": ("drop", "drop"),
    "on_unhandled": ("90s", "1 min 30 s"),
    "dead_ttl": ("14d", "14 d"),
    "serial": (True, "hold"),
    "key_concurrency": (1, "1"),
    "key_rate": (0.5, "30/min"),
    "gate": (["a", "b"], "a, b"),
    "group": ("customer.{1}", "customer.{1}"),
    "merge": ("all", "all"),
    "merge_limit": (5000, "5,000"),
    "window": ("250ms", "250 ms"),
    "debounce": (True, "yes"),
    "max_wait": ("10m", "10 min"),
    "edge": ("leading", "leading"),
    "max_body": ("64KiB", "64 KiB"),
    "max_cost": (100, "100"),
    "dedupe": ("7d", "7 d"),
    "max_backlog": ("10GB", "10GB"),
    "on_full": ("block", "block"),
    "partitions": (8, "8"),
    "buckets": (64, "64"),
    "delivery": ("at_most_once", "at_most_once"),
    "paused": (True, "yes"),
    "own_backlog": (False, "no"),
    "history": (True, "yes"),
}
"""A value of each policy field, and how pages write it."""

NEEDED = {
    "edge": "window",
    "min_concurrency": "concurrency",
    "max_concurrency": "concurrency",
}
"""What some values need, besides the `needs` of their fields."""


def test_a_topic_shows_each_field_of_its_policy(browser: Browser, app: Laneway) -> None:
    """The page of a topic writes each policy field in words: those with a unit have it."""
    app.gate("a", concurrency=1)
    app.gate("b", concurrency=1)
    for name in FIELDS:
        fields, needed = {}, name
        while needed:
            fields[needed] = SHOWN[needed][0]
            needed = FIELDS[needed].needs or NEEDED.get(needed, "")
        pattern = f"{name}.one" if name == "history" else f"{name}.*"
        app.policy(pattern, **fields)
        shown = f"{name} {SHOWN[name][1]} code, {pattern}"
        assert shown in browser.get(f"/topic?name={name}.one").words


def test_topic_with_many_subscriptions(browser: Browser, app: Laneway) -> None:
    """Its page shows the largest backlogs only, and no subscription twice."""
    for n in range(60):
        app.subscribe("many", f"s{n:02}", where={"type": "b"} if n < 30 else None)
    app.publish("many", 1, headers={"type": "a"})
    page = browser.get("/topic?name=many").words
    assert "subscription:s" not in page
    assert "Its policy has only subscriptions: no limits, tier mid." in page
    assert "many#s59 shared every message 1 0 0" in page
    assert "many#s19 shared" in page
    assert "many#s20" not in page
    assert "The largest backlogs; 10 others: laneway subscription list many" in page
    assert "topic" in browser.get("/topic?name=*", status=400).words
    assert "name" in browser.get("/topic", status=400).words


def test_pause_and_undo(browser: Browser, app: Laneway) -> None:
    """Pausing says what was done, as a command too, and can be undone."""
    app.publish("stop.a", 1)
    back = "/topic?name=stop.a"
    page = browser.submit("pause", topic="stop.a", back=back)
    assert app.engine.topic_stats("stop.a").state == "paused"
    assert "stop.a: paused." in page.words
    assert "curl -X POST http://127.0.0.1" in page.words
    fields = re.search(r'name="fields" value="([^"]*)"', page.text)
    assert fields
    page = browser.submit("put_policy", pattern="stop.a", fields=unescape(fields[1]), back=back)
    assert app.engine.topic_stats("stop.a").state != "paused"
    assert "as it was before" in page.words


def test_many_topics_at_once(browser: Browser, app: Laneway) -> None:
    """The chosen topics of a list are paused together."""
    for n in range(3):
        app.publish(f"many.{n}", n)
    page = browser.submit("pause", topic=["many.0", "many.1"], back="/topics")
    assert "2 topics: paused." in page.words
    states = [app.engine.topic_stats(f"many.{n}").state for n in range(3)]
    assert states[:2] == ["paused", "paused"]
    assert states[2] != "paused"
    assert "no topic was chosen" in browser.submit("pause", status=400, back="/topics").words


def test_as_command(browser: Browser, app: Laneway) -> None:
    """A form is shown as the request that it makes, which changes nothing by itself."""
    app.publish("cmd.a", 1)
    fields: dict[str, Any] = {
        "topic": "cmd.a",
        "rate": "5/s",
        "was_rate": "",
        "back": "/topic?name=cmd.a",
    }
    page = browser.submit("change_policy", **fields | {"as": "command"})
    assert "curl -X PATCH" in page.words
    assert """-d '{"rate": "5/s"}'""" in page.words
    # It is no page that can be loaded again or kept live.
    assert ("data-live" in page.text, "aria-current" in page.text, "1970" in page.text) == (
        False,
        False,
        False,
    )
    assert app.engine.policy_of("cmd.a").rate is None
    page = browser.submit("change_policy", **fields)
    assert app.engine.policy_of("cmd.a").rate == 5.0
    assert "the policy was changed" in page.words


def test_fields_have_all_digits_of_a_setting(browser: Browser, app: Laneway) -> None:
    """The form shows 30 days in seconds, not as a power of ten."""
    app.policy("digits.a", ttl="30d", rate=1234.5678)
    text = browser.get("/topic?name=digits.a").text
    for name, value in (("ttl", "2592000"), ("rate", "1234.5678")):
        assert f'name="{name}" value="{value}"' in text
        assert f'name="was_{name}" value="{value}"' in text


def test_dry_run(browser: Browser, app: Laneway) -> None:
    """A dry run says what would be, and changes nothing."""
    app.publish("dry.a", 1)
    page = browser.submit("change_policy", topic="dry.a", rate="5/s", dry="1", back="/topics")
    assert "Nothing was changed" in page.words
    assert app.engine.policy_of("dry.a").rate is None
    page = browser.submit("change_policy", topic="dry.a", rate="fast", dry="1", back="/topics")
    assert 'got "fast"' in page.words or "got 'fast'" in page.words


def test_publish_and_purge(browser: Browser, app: Laneway) -> None:
    """A message is published by a form; a purge needs the topic's name."""
    back = "/topic?name=form.a"
    page = browser.submit("publish", topic="form.a", body='{"a": [1, "ü"]}', key="k", back=back)
    assert "accepted" in page.words
    (view,) = app.engine.topic_peek("form.a")
    assert (view.body, view.key) == ('{"a":[1,"ü"]}'.encode(), "k")
    assert "expected JSON" in browser.submit("publish", status=400, topic="form.a", body="{").words
    page = browser.submit("purge", topic="form.a", confirm="form", back=back)
    assert 'expected the name "form.a"' in page.words
    assert app.engine.topic_stats("form.a").waiting == 1
    page = browser.submit("purge", topic="form.a", confirm="form.a", back=back)
    assert "messages removed: 1." in page.words
    assert app.engine.topic_stats("form.a").waiting == 0


def test_hostile_texts_are_shown_as_they_are(browser: Browser, app: Laneway) -> None:
    """Names, keys and errors with markup appear as text, and forms send them back unchanged."""
    topic = "hostile.<b>&\"'{{x}}"
    app.publish(topic, HOSTILE, key=HOSTILE, id="<i>id</i>")
    app.policy(topic, concurrency=1)
    (lease,) = app.engine.lease(1, topics=[topic]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "dead", reason="x", error=HOSTILE)])
    app.publish(topic, HOSTILE, key=HOSTILE, headers={"h": HOSTILE}, id="<i>again</i>")
    for path in (
        "/",
        "/topics",
        f"/topic?name={_quoted(topic)}",
        f"/topic?name={_quoted(topic)}&show=dead",
    ):
        text = browser.get(path).text
        assert "<script>alert" not in text, path
        assert "<b>&" not in text, path
        assert "<i>" not in text, path
        assert "\u202e" not in text, path
    browser.submit("pause", topic=topic, back="/topics")
    assert app.engine.topic_stats(topic).state == "paused"
    assert "<script>" not in browser.get("/topics?filter=" + _quoted(HOSTILE), status=400).text


def _quoted(text: str) -> str:
    from urllib.parse import quote

    return quote(text, safe="")


def test_back_leads_to_pages_only(browser: Browser, app: Laneway) -> None:
    """A form cannot send a browser to another site."""
    app.publish("back.a", 1)
    for back in ("https://evil.example/", "//evil.example/topics", "/nowhere", "javascript:x"):
        found = browser.send("POST", "/actions/pause", f"topic=back.a&back={_quoted(back)}")
        assert found.status == 303
        assert found.headers["location"].startswith("/?did=")


def test_problems_are_pages(browser: Browser) -> None:
    """A page that is not there, and a wrong parameter, are pages for people."""
    page = browser.get("/nowhere", status=404)
    assert page.headers["content-type"].startswith("text/html")
    assert "The resource does not exist" in page.words
    assert 'unknown field "x"' in browser.get("/topics?x=1", status=400).words
    assert "no action" in browser.submit("explode", status=404).words


def test_under_a_prefix(app: Laneway) -> None:
    """Behind a proxy that serves it under a prefix, all links have the prefix."""
    with running(app, prefix="/queue") as browser:
        text = browser.get("/topics").text
        links = re.findall(r'(?:href|src|action|formaction|data-live)="([^"]*)"', text)
        assert links
        assert not [link for link in links if link and not link.startswith(("/queue/", "#"))]
        browser.submit("pause", topic="prefixed.a", back="/topics")


@pytest.fixture
def guarded(tmp_path: Path):
    """A store with tokens: one for everything, one for some topics, one that reads only."""
    with Laneway(f"sqlite:///{tmp_path}/guarded.db") as app:
        everything = ["publish", "consume", "read", "bodies", "operate", "admin"]
        texts = {
            "all": tokens.create(app.engine, "boss", everything)[1],
            "some": tokens.create(app.engine, "acme", ["read", "operate"], topics=["push.acme.*"])[
                1
            ],
            "read": tokens.create(app.engine, "reader", ["read"])[1],
            "publish": tokens.create(app.engine, "publisher", ["publish"])[1],
        }
        app.publish("push.acme.orders", {"secret": "body-text"}, key="k")
        app.publish("push.bolt.orders", {"secret": "other-text"})
        with running(app) as browser:
            yield app, browser, texts


def test_a_scoped_token_sees_its_topics_only(guarded) -> None:
    """No page shows a caller of some topics anything of the others."""
    app, browser, texts = guarded
    browser.token = texts["some"]
    assert browser.send("GET", "/").headers["location"] == "/topics"
    assert "push.acme.orders" in browser.get("/topics").words
    for page in ALL:
        found = browser.send("GET", page.path).text
        assert "bolt" not in found, page.path
    browser.get("/topic?name=push.bolt.orders", status=403)
    browser.get("/live?of=%2F", status=403)
    with browser.live("/topics") as events:
        found = events.until_tick()
        assert "push.acme.orders" in found["list"]
        assert "bolt" not in str(found)
    browser.submit("pause", topic="push.bolt.orders", back="/topics")
    assert app.engine.topic_stats("push.bolt.orders").state != "paused"
    browser.submit("pause", topic="push.acme.orders", back="/topics")
    assert app.engine.topic_stats("push.acme.orders").state == "paused"


def test_buttons_follow_scopes(guarded) -> None:
    """What a token may not do has no button, and is refused if it is sent all the same."""
    app, browser, texts = guarded
    browser.token = texts["read"]
    page = browser.get("/topic?name=push.bolt.orders")
    assert "/actions/" not in page.text
    page = browser.submit("pause", topic="push.bolt.orders", back="/topics")
    assert "lacks the scope operate" in page.words
    assert app.engine.topic_stats("push.bolt.orders").state != "paused"
    browser.token = texts["publish"]
    assert "lacks the scope read" in browser.get("/topics", status=403).words


def test_login_and_forms_of_sessions(guarded) -> None:
    """A browser logs in; its forms need the session's token, also those of live fragments."""
    app, browser, texts = guarded
    browser.token = ""
    location = browser.send("GET", "/topics").headers["location"]
    assert location.startswith("/login?next=")
    found = browser.send("POST", "/login", f"token={texts['all']}&next=/topics")
    browser.cookie = found.headers["set-cookie"].partition(";")[0]
    try:
        page = browser.get("/topics")
        csrf = re.search(r'name="csrf" content="([^"]+)"', page.text)
        assert csrf
        with browser.live("/topics") as events:
            assert csrf[1] not in str(events.until_tick())
        browser.submit("pause", status=403, topic="push.bolt.orders", back="/topics")
        page = browser.submit("pause", topic="push.bolt.orders", back="/topics", csrf=csrf[1])
        assert "push.bolt.orders: paused." in page.words
        assert app.engine.topic_stats("push.bolt.orders").state == "paused"
    finally:
        browser.cookie = ""


def test_a_notice_is_for_its_caller(guarded) -> None:
    """The result of an action is shown to nobody else."""
    _, browser, texts = guarded
    browser.token = texts["all"]
    found = browser.send("POST", "/actions/pause", "topic=push.acme.orders&back=/topics")
    location = found.headers["location"]
    assert "push.acme.orders: paused." in browser.get(location).words
    browser.token = texts["read"]
    assert "paused." not in browser.get(location).words
