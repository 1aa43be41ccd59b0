"""
One merchant does not get its orders: the search page, the topic's page, the API and `laneway
explain` say why, and what to do.

`LANEWAY_MERCHANTS=50000` runs it among so many.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from click.testing import CliRunner

from laneway import Laneway, Message
from laneway.admin import workers
from laneway.admin.topic_reasons import TopicReason
from laneway.cli.main import main
from laneway.engines.base import DeliveryLog, LogEntry, MessageView
from laneway.gateway.login import tokens
from laneway.message import Settlement
from laneway.push import delivery_log, table
from laneway.push.secret_store import KEY_VARIABLE, new_key
from laneway.testing.servers import Server, until
from laneway.units import SECOND
from tests.gateway.dashboard.conftest import Browser, beat, running
from tests.tasks.conftest import working

MERCHANTS = int(os.environ.get("LANEWAY_MERCHANTS", "200"))
HOSTILE = "push.it's <b>$(reboot)</b> \u202e"

CASES = {
    "push.open": ("endpoint", "its breaker is open: HTTP 503", "laneway endpoint test push.open"),
    "push.paused": (
        "paused",
        "the topic is paused by an operator for this topic",
        "laneway resume push.paused",
    ),
    "push.gone": (
        "disabled",
        "ago, so nothing is sent: gone: HTTP 410",
        "laneway endpoint enable push.gone",
    ),
    "push.slow": (
        "rate",
        "rate (1/h) admits the next delivery in",
        "laneway policy set push.slow --rate RATE",
    ),
    "push.gpu": (
        "unserved",
        'no worker serves pool "gpu"',
        "laneway worker MODULE:APP --pool gpu",
    ),
    "pay.mine": (
        "gate",
        (
            'the gate "psp" is shut; 2 leases go through it (concurrency 2); most running'
            " handlers: pay.other (2)"
        ),
        "laneway gate set psp --concurrency COUNT",
    ),
    "shop.big.mine": (
        "group",
        (
            'the limit of its topic group "big" is reached; 2 leases go through it (concurrency 2);'
            " most running handlers: shop.big.other (2)"
        ),
        "laneway topic-group set big --concurrency COUNT",
    ),
    "hour.mine": (
        "gate",
        'the gate "hourly" is shut: its rate admits the next delivery in',
        "laneway gate set hourly --rate RATE",
    ),
    "shop.hour.mine": (
        "group",
        'the limit of its topic group "hour" is reached: its rate admits the next delivery in',
        "laneway topic-group set hour --rate RATE",
    ),
    "work.failing": (
        "retry",
        "its next message has failed once and waits for its next attempt: it is due in",
        "laneway message retry failed --topic work.failing",
    ),
    "work.dead": (
        "dead",
        " ago: expired: its ttl ended before it was delivered",
        "laneway dead redrive --topic work.dead",
    ),
    "work.dropped": (
        "own_backlog",
        (
            "messages published to it are dropped: own_backlog no is set by an operator for this"
            " topic, and it has no subscription"
        ),
        "laneway policy set work.dropped --own-backlog yes",
    ),
    "work.nightly": (
        "schedule",
        "the schedule nightly, which publishes to it, is paused",
        "laneway schedules resume nightly",
    ),
    "push.refused": (
        "endpoint",
        "endpoint needs attention: it refuses our requests: HTTP 401",
        "laneway endpoint test push.refused",
    ),
    "push.expired": (
        "secrets",
        "all secrets of its endpoint have expired, so requests are not signed",
        "laneway endpoint rotate push.expired",
    ),
    "push.full": (
        "backlog",
        (
            "its backlog is full: 5 messages wait, the limit of 5 is set by an operator for this"
            " topic; publishes are refused"
        ),
        "laneway policy set push.full --max-backlog COUNT",
    ),
    "stock.keys": (
        "key",
        'the key "sku-1" is busy with first, which is leased',
        "laneway message cancel first --topic stock.keys",
    ),
    HOSTILE: (
        "paused",
        "the topic is paused by an operator for this topic",
        f"laneway resume {shlex.quote(HOSTILE)}",
    ),
}
"""By topic: the cause of its first reason, a part of its sentence, and the advice."""


def fill(app: Laneway) -> None:
    """
    A shop of many merchants, of which each of `CASES` does not get its orders. It stays so until
    the last test of a slow machine: leases, times to wait and limits last for hours.
    """
    engine = app.engine
    app.policy("*", lease="1d")
    app.policy("push.*", rate="50/s", concurrency=8)
    app.gate("psp", concurrency=2)
    app.policy("pay.*", gate="psp")
    app.policy("shop.*", group="{1}")
    app.topic_group("big", concurrency=2)
    app.topic_group("hour", rate="1/h")
    app.gate("hourly", rate="1/h")
    app.policy("hour.*", gate="hourly")
    app.policy("push.gpu", pool="gpu")
    app.policy("stock.*", serial=True)
    app.publish_many((Message(f"push.m{n}", n) for n in range(MERCHANTS)), progress=False)
    engine.policy_set("operator", "push.slow", {"rate": "1/h", "burst": 1})
    engine.policy_set("operator", "push.full", {"max_backlog": 5})
    topics = (
        *("push.slow", "pay.other", "shop.big.other", "push.refused"),
        *("hour.other", "shop.hour.other"),
    )
    for topic in topics:
        for n in range(5):
            app.publish(topic, n)
    app.publish("stock.keys", 1, key="sku-1", id="first")
    leases = [
        lease
        for topic in (*topics, "stock.keys")
        for lease in engine.lease(2 if topic[0] in "ps" else 1, topics=[topic]).leases
    ]
    for lease in leases:
        if lease.topic == "push.slow" or "hour" in lease.topic:
            engine.settle([Settlement(lease.handle, lease.fence, "ack")])
        elif lease.topic == "push.refused":
            retry = Settlement(lease.handle, lease.fence, "retry", error="HTTP 401: Unauthorized")
            retry.delay_us = 86_400 * SECOND
            engine.settle([retry])
    _without_backlog(app)
    for topic in (each for each in CASES if not each.startswith("work.")):
        for n in range(5):
            key = "sku-1" if topic == "stock.keys" else None
            app.publish(topic, n, key=key)
    for topic in ("push.open", "push.gone", "push.refused", "push.expired"):
        app.endpoint(topic, url="https://shop.example/hooks")
    _conditions(app)
    app.topic("push.open").back_off("1d")
    app.endpoint("push.gone").disable("gone: HTTP 410: Gone")
    app.topic("push.paused").pause()
    app.topic(HOSTILE).pause()


def _without_backlog(app: Laneway) -> None:
    """Topics in which nothing waits, or one message that failed."""
    app.engine.policy_set("operator", "work.dropped", {"own_backlog": False})
    app.publish("work.dropped", 1)
    app.schedules.add("nightly", Message("work.nightly"), every="1d")
    app.schedules.pause("nightly")
    app.publish("work.dead", 1, ttl=0.001)
    app.publish("work.failing", 1, id="failed")
    time.sleep(0.002)  # its ttl ends
    assert app.engine.lease(1, topics=["work.dead"]).leases == []
    (lease,) = app.engine.lease(1, topics=["work.failing"]).leases
    error = 'ValueError: no stock\n  File "shop.py", line 9, in work\n    ^^^^^^'
    retry = Settlement(lease.handle, lease.fence, "retry", error=error)
    retry.delay_us = 86_400 * SECOND
    app.engine.settle([retry])


def change(**fields: Any) -> Callable[[table.Record | None], table.Record]:
    """A change of an endpoint's condition."""

    def apply(record: table.Record | None) -> table.Record:
        assert record is not None
        for name, value in fields.items():
            setattr(record.condition, name, value)
        return record

    return apply


def _conditions(app: Laneway) -> None:
    now_us = app.engine.time_us()

    failing = {"failing_since_us": now_us - 60 * SECOND, "failures": 12}
    table.update(
        app.engine,
        "push.open",
        change(**failing, text="HTTP 503: Service Unavailable", opened_us=now_us),
    )
    answer = "HTTP 401: Unauthorized"
    table.update(
        app.engine,
        "push.refused",
        change(**failing, text=answer, attention=f"it refuses our requests: {answer}"),
    )

    def expire(record: table.Record | None) -> table.Record:
        assert record is not None
        for secret in record.secrets:
            secret.until_us = now_us - SECOND
        return record

    table.update(app.engine, "push.expired", expire)


@pytest.fixture(scope="module", params=["sqlite", "valkey"])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Laneway, Browser]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(KEY_VARIABLE, new_key())
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db"
            yield from _open(url)
        else:
            with Server() as server:
                yield from _open(server.url)


def _open(url: str) -> Iterator[tuple[Laneway, Browser]]:
    with Laneway(url, durability="memory") as app:
        fill(app)
        busy = {"pay.other": 2.0, "shop.big.other": 2.0}
        beat(app, pools=["default"], busy_topics=busy)
        with running(app) as browser:
            yield app, browser


@pytest.mark.parametrize("topic", CASES)
def test_the_reason_is_shown(shop: tuple[Laneway, Browser], topic: str) -> None:
    """
    One search from any page says why the topic stands still, and what to do; so do its page, the
    API, Python and the first two lines of the command line.
    """
    app, browser = shop
    cause, text, advice = CASES[topic]
    found = app.explain_topic(topic)
    assert found.reasons[0].cause == cause, found
    assert text in found.reasons[0].text
    assert found.reasons[0].advice == advice
    shown = advice.encode("unicode_escape").decode() if topic == HOSTILE else advice
    for page in (f"/topic?name={quote(topic)}", f"/search?q={quote(topic.replace(' ', '+'))}"):
        if topic == HOSTILE and page.startswith("/search"):
            continue  # a search stops at the first space
        answer = browser.get(page)
        assert text[1:] in answer.words  # a sentence begins with a capital there
        assert shown in unescape(answer.text)
    reasons = browser.send("GET", f"/v1/topics/{quote(topic, safe='')}/explain").text
    assert cause in reasons
    lines = CliRunner().invoke(main, ["--url", app.url, "explain", topic]).output.splitlines()
    assert text in lines[0]
    assert lines[1] == f"    try: {shown}"


def test_a_merchant_is_found_by_what_the_star_stands_for(
    shop: tuple[Laneway, Browser],
) -> None:
    """`paused` finds `push.paused`, because there is a policy of `push.*`."""
    _, browser = shop
    page = browser.get("/search?q=paused").words
    assert "push.paused" in page
    assert "The topic is paused by an operator" in page
    assert "push.m1 " in browser.get("/search?q=m1").words


def test_a_topic_in_which_nothing_waits(shop: tuple[Laneway, Browser]) -> None:
    """It says whether something was published, and the command line names an unknown one."""
    app, _ = shop
    found = app.explain_topic("push.nobody").reasons
    assert [each.cause for each in found] == ["empty"]
    assert "no publish is on record" in found[0].text
    answer = CliRunner().invoke(main, ["--url", app.url, "explain", "push.nobody"])
    assert answer.exit_code == 1
    assert 'no message has the id "push.nobody", and no topic of this name' in answer.output
    assert "an id that you chose needs its --topic" in answer.output


def test_a_message_that_failed(shop: tuple[Laneway, Browser]) -> None:
    """How often, and why: the first line of the error, not that of its innermost frame."""
    app, browser = shop
    text = "it has failed once and waits for its next attempt: it is due in"
    (reason,) = app.explain("failed", "work.failing").reasons
    assert reason.startswith(text)
    assert reason.endswith("; its last error: ValueError: no stock")
    assert app.explain_topic("work.failing").reasons[0].text.endswith(": ValueError: no stock")
    page = browser.get("/message?topic=work.failing&id=failed").words
    assert f"I{text[1:]}" in page
    assert "; its last error: ValueError: no stock." in page


def test_a_message_that_was_sent(shop: tuple[Laneway, Browser]) -> None:
    """
    Where is the order? The delivery log knows it after the store has forgotten it. A topic is
    known by its endpoint, too.
    """
    app, browser = shop
    app.endpoint("push.sent", url="https://shop.example/hooks")
    (untold,) = app.explain_topic("push.sent").reasons[1:]
    assert untold.text == "it has an endpoint, and the delivery log has no attempt"
    assert "the delivery log has no attempt" in browser.get("/search?q=sent").words
    entry = delivery_log.Entry(id="order-1", status=200, text="HTTP 200")
    written = LogEntry("push.sent", app.engine.time_us(), msgspec.json.encode(entry))
    assert isinstance(app.engine, DeliveryLog)
    app.engine.delivery_log_append([written], keep_us=delivery_log.KEEP_US, max_bytes=1_000_000)
    text = "ago (attempt 1): acked, HTTP 200; `laneway endpoint attempts push.sent --id order-1`"
    assert text in app.explain("order-1", "push.sent").reasons[0]
    page = browser.get("/message?topic=push.sent&id=order-1").words
    assert text in page
    assert "No message has this id" not in page
    (sent,) = app.explain_topic("push.sent").reasons
    assert sent.text.startswith("nothing waits; its endpoint got order-1")
    assert sent.text.endswith("s ago: acked, HTTP 200")
    run = CliRunner().invoke(main, ["--url", app.url, "explain", "order-1", "--topic", "push.sent"])
    assert run.exit_code == 0
    assert text in run.output


def test_a_message_that_would_expire_again(app: Laneway) -> None:
    """The advice to redrive says how long the message then waits, or nothing without a ttl."""
    again = "by an operator for this topic: once redriven, it expires again after 0.05 s unless"
    app.engine.policy_set("operator", "push.late", {"ttl": 0.05})
    app.publish("push.late", 1, id="late")
    for _ in range(2):
        time.sleep(0.06)  # its ttl ends
        assert app.engine.lease(1, topics=["push.late"]).leases == []
        assert again in app.explain_topic("push.late").reasons[0].text
        assert "ttl, if any, begins again" in app.explain("late", "push.late").reasons[0]
        assert app.dead_letters.redrive("push.late") == 1
    time.sleep(0.06)
    assert app.engine.lease(1, topics=["push.late"]).leases == []
    app.engine.policy_set("operator", "push.late", {"ttl": None})
    dead = app.explain_topic("push.late").reasons[0]
    assert (dead.cause, "again" in dead.text) == ("dead", False)
    assert app.dead_letters.redrive("push.late") == 1
    assert len(app.engine.lease(1, topics=["push.late"]).leases) == 1


def test_who_changed_it(app: Laneway, browser: Browser) -> None:
    """Who paused a topic or set its rate is shown to those who may read the audit log."""
    app.publish("push.acme", 1)
    texts = {}
    for name, scopes in (("ann", ["operate", "admin", "read"]), ("bob", ["read"])):
        browser.token = tokens.create(app.engine, name, scopes)[1]
        if name == "ann":
            browser.send("POST", "/v1/topics/push.acme/pause")
        pages = ("/topic?name=push.acme", "/search?q=push.acme", "/v1/topics/push.acme/explain")
        texts[name] = [browser.send("GET", path).text for path in pages]
    reason = "paused by an operator for this topic (last changed by ann at 20"
    assert reason in app.explain_topic("push.acme").reasons[0].text
    assert all(reason in text for text in texts["ann"])
    assert all("paused by an operator" in text and "by ann" not in text for text in texts["bob"])


def test_the_page_of_a_leased_message(app: Laneway, browser: Browser) -> None:
    """It names the program that holds the lease, but not to tokens for some topics."""
    app.publish("taken.mine", 1, id="taken")
    assert len(app.lease(topics=["taken.mine"])) == 1
    for topics, is_named in ((None, True), (["taken.*"], False)):
        browser.token = tokens.create(app.engine, "reader", ["read"], topics=topics)[1]
        page = browser.send("GET", "/message?topic=taken.mine&id=taken")
        assert "lease ends" in page.text
        assert ("(app.lease) holds it" in page.text) is is_named


def test_the_command_line_finds_a_merchant(shop: tuple[Laneway, Browser]) -> None:
    """`laneway explain paused` is about push.paused; of several topics it names each."""
    app, _ = shop
    run = CliRunner().invoke(main, ["--url", app.url, "explain", "paused"])
    assert run.output.startswith("push.paused: the topic is paused by an operator")
    app.endpoint("push.other", url="https://shop.example/hooks")
    run = CliRunner().invoke(main, ["--url", app.url, "explain", "other"])
    assert "`laneway explain pay.other` or `laneway explain push.other`" in run.output


def test_a_message_of_a_disabled_endpoint(shop: tuple[Laneway, Browser]) -> None:
    """Its pause is the endpoint's: the advice is to enable that, not to resume the topic."""
    app, browser = shop
    (message,) = app.topic("push.gone").peek(1)
    found = app.explain(message.id, "push.gone")
    assert found.causes.count("paused") == 1
    assert "its endpoint is disabled: gone: HTTP 410" in found.reasons[0]
    assert "`laneway endpoint enable push.gone`" in found.reasons[0]
    assert not any("resume" in reason for reason in found.reasons)
    path = f"/v1/topics/push.gone/messages/{message.id}/explain"
    for page in (f"/message?topic=push.gone&id={message.id}", path):
        assert "laneway endpoint enable push.gone" in browser.send("GET", page).text
    page = browser.get("/topic?name=push.gone").text
    assert "/actions/enable_endpoint" in page
    assert "/actions/resume" not in page
    refused = browser.send("POST", "/v1/topics/push.gone/resume")
    assert (refused.status, "laneway endpoint enable push.gone" in refused.text) == (409, True)
    assert "push.gone disabled its endpoint is enabled" in browser.get("/limits").words


def test_messages_that_an_endpoint_does_not_take(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merchant whose endpoint filters events, and one who has no endpoint."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    app.endpoint("push.picky", url="https://shop.example/hooks", events=["invoice.*"])
    app.publish_many(Message(topic, {"type": "order"}) for topic in ("push.picky", "push.none"))
    (lease,) = app.engine.lease(1, topics=["push.picky"]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "ack")])
    first, second = app.explain_topic("push.picky").reasons
    assert "invoice.*" in app.explain("order", "push.picky").reasons[1]
    assert first.cause == "events"
    assert "takes only the events invoice.*; messages of other types are acked" in first.text
    assert second.cause == "empty"
    (lease,) = app.engine.lease(1, topics=["push.none"]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "unhandled")])
    reasons = app.explain_topic("push.none").reasons
    assert "it has no endpoint, and other topics of push.* have one" in reasons[0].text
    assert reasons[0].advice == "laneway endpoint set push.none URL"
    assert all(each.cause != "unhandled" for each in reasons)
    app.publish("mail.none", 1)
    (lease,) = app.engine.lease(1, topics=["mail.none"]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "unhandled")])
    assert app.explain_topic("mail.none").reasons[0].cause == "unhandled"


def test_who_sees_some_topics_learns_nothing_of_others(
    app: Laneway, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics that hold a limit, and endpoints, are named to those who may see them only."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    app.gate("psp", concurrency=1)
    app.policy("pay.*", gate="psp")
    app.publish_many(Message(topic, 1) for topic in ("pay.other", "pay.mine"))
    app.engine.lease(1, topics=["pay.other"])
    beat(app, pools=["default"], busy_topics={"pay.other": 1.0})
    app.endpoint("pay.mine", url="https://shop.example/hooks")
    failing = {"failing_since_us": 1, "attention": "it refuses our requests"}
    table.update(app.engine, "pay.mine", change(**failing))
    found = {}
    for name, scopes, topics in (
        ("all", ["read", "endpoints"], None),
        ("some", ["read"], ["pay.mine"]),
    ):
        browser.token = tokens.create(app.engine, name, scopes, topics=topics)[1]
        pages = ("/topic?name=pay.mine", "/search?q=pay.mine", "/v1/topics/pay.mine/explain")
        found[name] = [browser.send("GET", path).text for path in pages]
    for text in found["all"]:
        assert "pay.other" in text
        assert "refuses our requests" in text
    for text in found["some"]:
        assert "psp" in text
        assert "pay.other" not in text
        assert "refuses our requests" not in text


def test_a_backlog_that_is_delivered_while_it_is_read(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something waits, so the reason is never that nothing does, whatever a worker takes."""
    engine, peek = app.engine, app.engine.topic_peek
    taken: list[str] = []

    def peek_and_take(topic: str, **options: Any) -> list[MessageView]:
        found = peek(topic, **options)
        if len(taken) < times:
            taken.extend(lease.id for lease in engine.lease(1, topics=[topic]).leases)
        return found

    monkeypatch.setattr(engine, "topic_peek", peek_and_take)
    beat(app, pools=["default"])
    app.policy("push.*", rate="1/s", burst=50)
    reasons = []
    for times in (1, 10):
        for topic, count, cause in (
            (f"push.{times}", 200, "rate"),
            (f"mail.{times}", 20, "worker"),
        ):
            taken.clear()
            app.publish_many(Message(topic, n) for n in range(count))
            reasons += app.explain_topic(topic).reasons
            assert (reasons[-1].cause, len(taken)) == (cause, min(times, 3))
    assert [reason.cause for reason in reasons] == ["rate", "worker"] * 2
    assert reasons[-1].text == "18 messages wait; its messages are being delivered"


@pytest.mark.parametrize("limit", ["topic", "gate", "group"])
def test_a_rate_at_which_a_backlog_takes_long(app: Laneway, limit: str) -> None:
    """It is the reason even while a permit is free, unless the handlers are all busy."""
    expected = {
        "topic": ("the topic's rate is 2/s, set by the program for push.*", "policy set push.acme"),
        "gate": ('the rate of the gate "psp" is 2/s', "gate set psp"),
        "group": ('the rate of its topic group "big" is 2/s', "topic-group set big"),
    }
    app.policy("push.*", rate="2/s" if limit == "topic" else "50/s", burst=100)
    if limit == "gate":
        app.gate("psp", rate="2/s", burst=100)
        app.policy("push.*", gate="psp")
    elif limit == "group":
        app.topic_group("big", rate="2/s", burst=100)
        app.policy("push.*", group="big")
    app.publish_many(Message("push.acme", n) for n in range(600))
    beat(app, pools=["default"])
    (reason,) = app.explain_topic("push.acme").reasons
    text, advice = expected[limit]
    assert reason.text == f"{text}; at 2/s its 600 messages take 5.0 min"
    assert reason.advice == f"laneway {advice} --rate RATE"
    beat(app, pools=["default"], busy=10)
    assert app.explain_topic("push.acme").reasons[0].cause == "worker"


def test_what_became_of_all_messages_of_an_empty_topic(app: Laneway) -> None:
    """Nothing is told to be delivered that was removed, or that never was."""
    app.publish("gone.a", 1, id="x")
    assert app.engine.cancel("x", "gone.a") == "cancelled"
    app.publish("gone.b", 1)
    app.lease(topics=["gone.b"])[0].dead()
    app.publish_many([Message("gone.c", n) for n in range(2)])
    for delivery in app.lease(2, topics=["gone.c"]):
        delivery.dead() if delivery.body else delivery.ack()
    ended = [app.explain_topic(f"gone.{name}").reasons[-1].text for name in "abc"]
    nothing = "nothing waits or runs in this topic"
    assert ended == [
        f"{nothing}: every published message has been delivered or removed",
        nothing,
        f"{nothing}; the other messages have been delivered",
    ]


@pytest.mark.parametrize("has_another", [False, True])
def test_a_handler_with_a_concurrency_of_its_own(app: Laneway, *, has_another: bool) -> None:
    """
    The handler's limit is the reason, although 19 of 20 slots are free; another handler for all
    topics, or for a topic of its pattern, changes nothing.
    """
    goes_on = threading.Event()

    @app.handler("one.*", concurrency=1)
    def one(_: Message) -> None:
        goes_on.wait()

    if has_another:
        app.handler("*")(lambda _: None)
        app.handler("one.b")(lambda _: time.sleep(0.01))

    app.publish_many([Message("one.a", n) for n in range(200)])
    expected = (
        "each worker runs as many calls of its handler as the handler's own concurrency allows (1)"
    )
    with working(app):
        until(
            lambda: (
                workers.ping(app.engine, None, 5) and first_reason(app, "one.a").text == expected
            ),
            expected,
        )
        assert (
            first_reason(app, "one.a").advice
            == "more workers, or a larger concurrency= of the handler"
        )
        head = app.explain_topic("one.a").message
        assert app.explain(head or "", "one.a").reasons[0] == expected
        assert workers.Coverage(app.engine).handler_limit("default", "one.b") == (
            None if has_another else expected
        )
        goes_on.set()


def first_reason(app: Laneway, topic: str) -> TopicReason:
    return app.explain_topic(topic).reasons[0]


def test_leased_messages_do_not_all_run(app: Laneway) -> None:
    """A worker leases more messages than it runs; they count as leased."""
    app.publish_many([Message("work.a", n) for n in range(3)])
    app.lease(3)
    assert first_reason(app, "work.a").text == "nothing waits; 3 messages are leased"
    shown = CliRunner().invoke(main, ["--url", app.url, "explain", "work.a"]).output
    assert shown.splitlines()[-1] == "  0 wait, 3 leased, 0 dead"
    app.publish("work.a", 3)
    app.policy("work.a", concurrency=3)
    text = "3 messages of its topic are leased, and its concurrency is 3"
    assert first_reason(app, "work.a").text.startswith(text)


def test_an_error_is_named_once(app: Laneway) -> None:
    """The reason of a dead letter whose retries are used up has the error already."""

    app.policy("work.*", retries=0)

    @app.handler("work.*")
    def fail(_: Message) -> None:
        raise ValueError("no such customer")

    receipt = app.publish("work.a", 1)
    with working(app):
        until(lambda: app.topic("work.a").stats().dead, "it is dead")
    assert first_reason(app, "work.a").text.count("no such customer") == 1
    assert str(app.explain(receipt.id, "work.a").reasons).count("no such customer") == 1


def test_only_workers_that_may_take_it_are_counted(app: Laneway) -> None:
    """Handlers of other pools, and of workers for other topics, are not free for the topic."""
    app.publish("work.a", 1)
    beat(app, "serves", pools=["default"], busy=4)
    beat(app, "other-pool", pools=["gpu"], patterns=["*"])
    beat(app, "other-topics", pools=["default"], topics=["mail"])
    beat(app, "other-handlers", pools=["default"], patterns=["mail.*"])
    assert "; 4 of 4 handlers are busy" in first_reason(app, "work.a").text
