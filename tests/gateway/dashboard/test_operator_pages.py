"""The pages of messages, limits, the future, dead letters, workers, jobs, audit and tokens."""

from __future__ import annotations

import json
import re
import time
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from laneway import Laneway, Message
from laneway.admin.fingerprints import fingerprint_of
from laneway.engines.base import RunningMessage
from laneway.gateway import operations
from laneway.gateway.dashboard.pages.fairness import jain, lorenz
from laneway.gateway.login import tokens
from laneway.message import Settlement
from laneway.testing.servers import until
from tests.gateway.dashboard.conftest import HOSTILE, Browser, beat, running


def die(app: Laneway, topic: str, error: str, **options: Any) -> str:
    """Publish a message and let it die."""
    receipt = app.publish(topic, {"secret": "body-text"}, **options)
    (lease,) = app.engine.lease(1, topics=[topic]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "dead", reason="no", error=error)])
    return receipt.id


def test_a_dead_letter_is_one_line(browser: Browser, app: Laneway) -> None:
    """A row has the error, and the user's own file and line: no frame of Laneway, no reason."""
    error = (
        "ValueError: no stock\n"
        '  File "/srv/shop/orders.py", line 42, in deliver\n    check()\n'
        '  File "/x/src/laneway/working/executors/threads.py", line 190, in run\n'
    )
    die(app, "line.a", error)
    for path in ("/dead", "/topic?name=line.a&show=dead"):
        page = browser.get(path)
        assert "ValueError: no stock (orders.py:42)" in page.words
        assert "threads.py" not in page.words


def test_a_message(browser: Browser, app: Laneway) -> None:
    """A message's page has its state, what it waits for, its headers, body and commands."""
    app.publish("msg.a", {"order": [1, "ü"]}, id="one", key="k-7", headers={"x": HOSTILE})
    page = browser.get("/message?topic=msg.a&id=one")
    assert "published ready leased finished" in page.words
    assert "k-7" in page.words
    assert '"order": [' in page.words
    assert "curl" in page.words
    assert "app.find('one', topic='msg.a')" in page.words
    assert "<script>alert" not in page.text
    assert "No message has this id" in browser.get("/message?topic=msg.a&id=two").words
    app.publish("msg.a", b"\xff\x00", id="raw")
    assert "ff 00" in browser.get("/message?topic=msg.a&id=raw").words
    app.publish("msg.a", "x" * 200_000, id="long")
    assert "The first part" in browser.get("/message?topic=msg.a&id=long").words


def test_the_whole_body_is_a_file(browser: Browser, app: Laneway) -> None:
    """A body is saved as it was published; a browser never shows it as a page."""
    app.publish("file.a", "<b>" * 60_000, id="long")
    app.publish("file.a", b"<script>\xff", id="raw")
    page = browser.get("/message?topic=file.a&id=long")
    assert "The first part. Download all of it , 180.0 kB" in page.words
    (path,) = re.findall(r'href="(/message/body[^"]*)"', page.text)
    file = browser.get(unescape(path))
    assert json.loads(file.content) == "<b>" * 60_000
    assert file.headers["content-type"] == "application/json"
    assert file.headers["content-disposition"] == 'attachment; filename="laneway-message.json"'
    file = browser.get("/message/body?topic=file.a&id=raw")
    assert file.content == b"<script>\xff"
    assert file.headers["content-type"] == "application/octet-stream"
    assert file.headers["x-content-type-options"] == "nosniff"
    gone = browser.get("/message/body?topic=file.a&id=none", status=404)
    assert "no longer exists" in gone.words
    for scopes, topics in ((["read"], None), (["bodies"], None), (["read", "bodies"], ["x"])):
        browser.token = tokens.create(app.engine, "some", scopes, topics=topics)[1]
        browser.get("/message/body?topic=file.a&id=raw", status=403)


def test_actions_on_a_message(browser: Browser, app: Laneway) -> None:
    """A message is made ready, made dead, dropped, cancelled and released by its page."""
    back = "/message?topic=act.a&id=m"
    app.publish("act.a", 1, id="m", delay="1h")
    assert "Retry now" in browser.get(back).words
    assert "m: ready." in browser.submit("message_retry", topic="act.a", id="m", back=back).words
    assert app.engine.topic_stats("act.a").ready == 1
    assert "m: dead." in browser.submit("message_dead", topic="act.a", id="m", back=back).words
    assert app.engine.topic_stats("act.a").dead == 1
    app.publish("act.a", 1, id="held")
    app.lease(topics=["act.a"])
    held = back.replace("id=m", "id=held")
    assert "Release" in browser.get(held).words
    page = browser.submit("message_release", topic="act.a", id="held", back=held)
    assert "held: released." in page.words
    page = browser.submit("message_drop", topic="act.a", id="m", back=back, sure="yes")
    assert "m: dropped." in page.words
    page = browser.submit("message_cancel", topic="act.a", id="m", back=back, sure="yes")
    assert 'class="notice bad"' in page.text


def test_back_off(browser: Browser, app: Laneway) -> None:
    """A topic backs off for a time that is typed."""
    app.publish("off.a", 1)
    page = browser.submit("back_off", topic="off.a", delay="10m", back="/topic?name=off.a")
    assert "off.a: backs off for 10m." in page.words
    assert app.engine.topic_stats("off.a").backs_off_until_us is not None
    assert "off.a" in browser.get("/limits").words


def test_search(browser: Browser, app: Laneway) -> None:
    """A topic is found by the beginning of its name, a message by id, or by topic and key."""
    receipt = app.publish("find.a.b", 1, key="order-42")
    app.publish("find.c", 1, id="mine")
    words = browser.get("/search?q=find").words
    assert "find.a.b" in words
    assert "find.c" in words
    assert receipt.id in browser.get(f"/search?q={receipt.id}").words
    assert receipt.id in browser.get("/search?q=find.a.b+order-42").words
    assert "/message?topic=find.c&amp;id=mine" in browser.get("/search?q=find.c+mine").text
    assert "Nothing waits" in browser.get("/search?q=find.none").words
    assert "by its name" in browser.get("/search").words


def test_fairness(browser: Browser) -> None:
    """Tiers have what they are due; a tier's share is changed by a form."""
    words = browser.get("/fairness").words
    assert "60%" in words
    page = browser.submit("set_tier", name="low", share="4", back="/fairness")
    assert "Tier low: changed." in page.words
    browser.submit("set_tier", name="low", share="1", reserve="0.2", back="/fairness")
    assert "low 1 20%" in browser.get("/fairness").words
    browser.submit("set_tier", name="low", share="1", reserve="0", back="/fairness")


def test_measures_of_evenness() -> None:
    """Jain's index and the Lorenz curve have their known values."""
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
    assert lorenz([1.0, 1.0]) == "0,100 50.0,50.0 100.0,0.0"


def test_limits(browser: Browser, app: Laneway) -> None:
    """Gates, groups, and held topics are listed; a gate is changed by a form."""
    app.gate("psp", concurrency=1)
    app.policy("gated.*", gate="psp")
    app.topic_group("customer.x", rate="3/s", weight=2)
    app.publish("gated.a", 1)
    app.publish("gated.b", 1)
    app.engine.lease(1, topics=["gated.a"])
    app.policy("paused.*", paused=True)
    words = browser.get("/limits").words
    assert "psp" in words
    assert "customer.x" in words
    assert "paused.*" in words
    page = browser.submit("set_gate", name="psp", concurrency="9", back="/limits")
    assert "Gate psp: changed." in page.words
    assert app.engine.gate_list()[0]["concurrency"] == 9
    page = browser.submit("reset_gate", name="psp", back="/limits")
    assert "Gate psp: reset." in page.words


def test_future(browser: Browser, app: Laneway) -> None:
    """Schedules are listed with their next firing, and paused."""
    assert "There are no schedules" in browser.get("/future").words
    app.schedules.add("nightly", Message("reports.nightly", None), cron="0 3 * * *")
    words = browser.get("/future").words
    assert "nightly" in words
    assert "reports.nightly" in words
    page = browser.submit("pause_schedule", name="nightly", back="/future")
    assert "nightly: paused." in page.words
    assert "Resume" in page.words


def test_dead_letters(browser: Browser, app: Laneway) -> None:
    """Letters are grouped by what failed, and redriven and dropped by group or one by one."""
    for n in range(3):
        die(app, f"dead.{n}", "ConnectError: refused")
    die(app, "dead.odd", f"KeyError: {HOSTILE}", id="odd")
    page = browser.get("/dead")
    assert "ConnectError" in page.words
    assert "<script>alert" not in page.text
    found = re.findall(r'name="fingerprint" value="([^"]+)"', page.text)
    assert len(set(found)) >= 2
    link = re.search(r'href="(/dead\?fingerprint=[^"]+)"[^>]*>ConnectError', page.text)
    assert link
    assert "dead.0" in browser.get(unescape(link[1])).words
    refused = unescape(link[1]).partition("fingerprint=")[2]
    some: dict[str, Any] = {
        "topic": ["dead.0", "dead.1", "dead.2"],
        "fingerprint": refused,
        "back": "/dead",
    }
    page = browser.submit("redrive", dry="1", **some)
    assert "It would be 3 messages" in page.words
    page = browser.submit("redrive", topic="dead.odd", id="odd", back="/dead")
    assert "1 redriven" in page.words
    page = browser.submit("drop", limit="100", sure="yes", **some)
    assert "3 dropped" in page.words
    assert app.engine.topic_stats("dead.0").dead == 0


def test_workers(browser: Browser, app: Laneway) -> None:
    """Workers are listed with what they run; a command that no worker answers is told."""
    running_message = RunningMessage("push.acme", "m-1", app.engine.time_us() - 5_000_000)
    beat(app, "worker-9", busy=2, version="2.4.0", pools=["default"], oldest=running_message)
    words = browser.get("/workers").words
    assert "worker-9" in words
    assert "2 of 4" in words
    assert "shop 2.4.0" in words
    assert "push.acme" in words
    assert (
        'class="notice bad"'
        in browser.submit("drain_worker", worker="none", sure="yes", back="/workers").text
    )


def test_jobs(browser: Browser, app: Laneway) -> None:
    """A job is found by its id, with its status."""

    @app.task(topic="jobs.add")
    def add(a: int, b: int) -> int:
        return a + b

    job = add.delay(1, 2)
    words = browser.get(f"/jobs?id={job.id}").words
    assert "pending" in words
    assert "jobs.add" in words
    assert "No job with this id" in browser.get("/jobs?id=none").words
    page = browser.submit(
        "cancel_job", id=job.id, pattern="jobs.add", sure="yes", back=f"/jobs?id={job.id}"
    )
    assert "cancelled" in page.words


def test_store(browser: Browser, app: Laneway) -> None:
    """The store's page has its URL without secrets, and totals."""
    words = browser.get("/store").words
    assert "Where it is kept" in words
    assert re.search(r"SQLite 3[.0-9]+ 1 [0-9.,]+ .?B", words)
    assert "sqlite:///" in words
    assert "laneway doctor" in words
    del app


def test_audit_and_undo(browser: Browser, app: Laneway) -> None:
    """What the pages changed is in the audit log, where a policy is undone."""
    app.publish("audited.a", 1)
    browser.submit("pause", topic="audited.a", back="/topics")
    page = browser.get("/audit")
    assert "POST /v1/topics/audited.a/pause" in page.words
    number = re.search(r'name="number" value="(\d+)"', page.text)
    assert number
    browser.submit("undo_change", number=number[1], back="/audit")
    assert app.engine.topic_stats("audited.a").state != "paused"


def test_tokens(tmp_path: Path) -> None:
    """The first token is shown once, at once; then everyone needs one."""
    with Laneway(f"sqlite:///{tmp_path}/tokens.db") as app, running(app) as browser:
        assert "There are no tokens" in browser.get("/tokens").words
        fields: dict[str, Any] = {
            "name": "boss",
            "scope": ["read", "admin"],
            "patterns": "",
            "expires": "90d",
        }
        page = browser.submit("create_token", **fields, back="/tokens")
        text = re.search(r"lw_\w+", page.text)
        assert text
        browser.token = text[0]
        page = browser.get("/tokens")
        assert "boss" in page.words
        assert text[0] not in page.text
        page = browser.submit("create_token", name="x", scope=["operate"], back="/tokens")
        assert "lacks the scope operate" in page.words
        ((token_id, _),) = tokens.listed(app.engine, limit=10)
        browser.submit("revoke_token", 403, name="none", back="/tokens") if False else None
        assert "revoked" in browser.submit(
            "revoke_token", name=token_id, sure="yes", back="/nowhere"
        ).text or (browser.send("GET", "/tokens").status in (200, 303))


def test_bodies_need_their_scope(tmp_path: Path) -> None:
    """Without the scope `bodies` no page shows a body; with topics, no page shows other topics."""
    with Laneway(f"sqlite:///{tmp_path}/bodies.db") as app, running(app) as browser:
        app.publish("push.acme.a", {"secret": "body-text"}, id="m")
        app.publish("push.bolt.a", {"secret": "body-text"}, id="b", key="the-key")
        generated = app.publish("push.bolt.a", 1).id
        die(app, "push.acme.dead", "boom")
        die(app, "push.bolt.dead", "bolt-error")
        _, reader, _ = tokens.create(app.engine, "reader", ["read", "operate"])
        _, some, _ = tokens.create(app.engine, "acme", ["read", "operate"], topics=["push.acme.*"])
        browser.token = reader
        page = browser.get("/message?topic=push.acme.a&id=m")
        assert "lacks the scope bodies" in page.words
        assert "body-text" not in page.text
        assert "body-text" not in browser.get("/dead").text
        browser.token = some
        assert "push.acme.dead" in browser.get("/dead").words
        assert "bolt" not in browser.get("/dead").text
        assert "boom" in browser.get("/dead?topic=push.acme.dead").words
        browser.get("/dead?topic=push.bolt.dead", status=403)
        browser.get("/message?topic=push.bolt.a&id=b", status=403)
        found = browser.send("GET", f"/message?topic=push.acme.a&id={generated}").text
        assert "bolt" not in found
        for query in ("push", "push.bolt.a", "push.bolt.a+the-key", "push.bolt.a+b", generated):
            found = browser.get(f"/search?q={query}").text
            assert "/topic?name=push.bolt" not in found
            assert "/message?topic=push.bolt" not in found
        for path in ("/fairness", "/limits", "/future", "/workers", "/jobs", "/store"):
            browser.get(path, status=403)
        page = browser.submit("redrive", topic="push.bolt.dead", back="/dead")
        assert 'class="notice bad"' in page.text
        assert app.engine.topic_stats("push.bolt.dead").dead == 1


def test_operations_are_shown_and_stopped(browser: Browser, app: Laneway) -> None:
    """Redriving many at a rate goes on in the background; the page shows it, and stops it."""
    for _ in range(12):
        die(app, "dead.many", "KeyError: 'x'")
    fingerprint = fingerprint_of("no", "KeyError: 'x'")
    assert "Redrive one Redrive 10 Redrive all at 10/s" in browser.get("/dead").words
    some = {"topic": "dead.many", "fingerprint": fingerprint, "rate": "1/s", "back": "/dead"}
    page = browser.submit("redrive", **some, background="1")  # type: ignore[arg-type]
    assert "It continues in the background" in page.words
    until(lambda: operations.newest(app.engine)[0][1].state == "done", "it has ended")
    assert "redrive done 12" in browser.get("/dead").words
    now_us = time.time_ns() // 1000
    running_ = operations.Operation(
        kind="drop",
        who="night",
        total=9,
        done=3,
        state="running",
        started_us=now_us,
        written_us=now_us,
    )
    app.engine.record_swap("gateway", "operation zz1", None, msgspec.json.encode(running_))
    assert "drop running 33% 3 of 9 all topics night" in browser.get("/dead").words
    page = browser.submit("stop_operation", id="zz1", back="/dead")
    assert "zz1: it stops." in page.words
    assert "drop stopping" in page.words


def test_limits_of_chosen_topics_are_set(browser: Browser, app: Laneway) -> None:
    """The list shows how much of a limit is used, and sets rate and weight of chosen topics."""
    app.policy("use.a", concurrency=4)
    app.publish_many([Message("use.a", n) for n in range(4)] + [Message("use.b", 1)])
    app.engine.lease(1, topics=["use.a"])
    page = browser.get("/topics?filter=use.*")
    assert page.text.count('aria-label="limit used"') == 1
    assert 'value="0.25"' in page.text
    page = browser.submit(
        "change_policy", topic=["use.a", "use.b"], rate="50/s", weight="2", back="/topics"
    )
    assert "2 topics: the policy was changed." in page.words
    assert app.engine.policy_of("use.b").rate == 50
    assert app.engine.policy_of("use.a").weight == 2


def test_what_cannot_be_undone_is_asked_first(browser: Browser, app: Laneway) -> None:
    """A click on Delete changes nothing yet; what can be undone is done, with a button Undo."""
    app.publish("ask.a", 1, id="m")
    back = "/message?topic=ask.a&id=m"
    page = browser.submit("message_drop", topic="ask.a", id="m", back=back)
    assert "Delete?" in page.text
    assert "This cannot be undone." in page.words
    assert 'name="sure" value="yes"' in page.text
    page = browser.submit("message_dead", topic="ask.a", id="m", back=back)
    assert "m: dead." in page.words
    assert re.search(r'action="/actions/redrive".*?>Undo<', page.text, re.DOTALL)
    page = browser.submit("redrive", topic="ask.a", id="m", name="", back=back)
    assert app.engine.topic_stats("ask.a").waiting == 1
    page = browser.submit("pause", topic="ask.a", back="/topic?name=ask.a")
    assert re.search(r'action="/actions/resume".*?>Undo<', page.text, re.DOTALL)


def test_a_refused_form_keeps_what_was_typed(browser: Browser, app: Laneway) -> None:
    """The form is open again, with the error above it, and without a field lost."""
    app.publish("typed.a", 1)
    page = browser.submit(
        "change_policy", topic="typed.a", rate="fast", weight="3", back="/topic?name=typed.a"
    )
    assert 'class="notice bad"' in page.text
    assert '<details id="edit" open>' in page.text
    assert 'name="rate" value="fast"' in page.text
    assert 'name="weight" value="3"' in page.text
    assert '<details id="publish">' in page.text
    page = browser.submit("publish", topic="typed.a", body="{", back="/topic?name=typed.a")
    assert '<details id="publish" open>' in page.text
    assert ">{</textarea>" in page.text
