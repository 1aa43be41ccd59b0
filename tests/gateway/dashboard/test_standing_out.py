"""What stands out on the first page, when much does at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from laneway import Laneway, Message, live
from laneway.admin import workers
from laneway.cli import main
from laneway.engines.base import WorkerFacts
from laneway.errors import BacklogFull, BadMessage
from laneway.gateway.dashboard import standing_out
from laneway.history import figures, sampling
from laneway.message import Settlement
from laneway.producing import refused
from laneway.push import events, table
from laneway.push.secret_store import KEY_VARIABLE, new_key
from laneway.testing.servers import until
from laneway.units import SECOND
from tests.conformance import postgres_setups, valkey_setups
from tests.gateway.dashboard.conftest import beat, running
from tests.tasks.conftest import working


def test_the_largest_backlog_is_named_whatever_else_is_wrong(tmp_path: Path) -> None:
    """Neither six pools without workers nor six gates that are waited for hide it."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        for n in range(6):
            app.gate(f"gate-{n}", concurrency=1)
            app.policy(f"gated-{n}.*", gate=f"gate-{n}")
            app.policy(f"pooled-{n}.*", pool=f"pool-{n}")
            topics = (f"gated-{n}.a", f"gated-{n}.a", f"pooled-{n}.a")
            app.publish_many([Message(topic, 1) for topic in topics])
            app.engine.lease(2, topics=[f"gated-{n}.a"])
        app.publish_many([Message("push.flood", n) for n in range(200)])
        words = browser.get("/").words
        assert "7 pools have work that could run, and no worker: default, pool-0, pool-1" in words
        assert "push.flood holds 9" in words
        assert "of the backlog" in words


def test_causes_that_are_not_shown_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five are shown, and the state in words counts all problems."""

    def rule(name: str) -> list[standing_out.Sentence]:
        return [standing_out.Sentence(f"{name}-{n}", "is sick", "/", "bad") for n in range(4)]

    monkeypatch.setattr(standing_out, "RULES", (lambda _: rule("a"), lambda _: rule("b")))
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.publish("a", 1)
        page = browser.get("/")
        assert page.text.count('<li class="bad">') == 5
        assert "8 problems." in page.words
        assert "3 more, less urgent" in page.words


def test_messages_that_were_returned_without_a_handler_stand_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are delayed until they are delivered again; what is delayed by its publisher is not."""
    monkeypatch.setattr(standing_out, "UNSERVED_SECONDS", 3600.0)
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.handler("push.*")(lambda _: None)
        app.publish("psuh.acme", 1)
        app.publish("later.acme", 1, delay="1h")
        with working(app):
            until(lambda: app.topic("psuh.acme").stats().delayed, "it is returned")
            until(app.workers, "the worker is listed")
            words = browser.get("/").words
        assert "psuh.acme has messages that no worker handles" in words


def test_topics_that_wait_for_their_rates_need_a_worker_too(tmp_path: Path) -> None:
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.policy("slow", rate="1/h")
        app.publish_many([Message("slow", 1), Message("slow", 2)])
        (lease,) = app.engine.lease(1).leases
        app.engine.settle([Settlement(lease.handle, lease.fence, "ack")])
        assert "Pool default has 1 message that could run, and no worker" in browser.get("/").words
        beat(app, pools=["default"])
        assert "no worker" not in browser.get("/").words


@pytest.mark.parametrize("start", ["sqlite", "valkey", "postgres"])
def test_delayed_messages_that_are_due_need_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """
    Where nobody leases, nothing makes them ready: the page, `explain`, `top` and the doctor still
    know.
    """
    monkeypatch.setattr(workers, "UNSERVED_SECONDS", 0.0)
    url = {
        "sqlite": lambda: f"sqlite:///{tmp_path}/store.db",
        "valkey": lambda: valkey_setups.server().url,
        "postgres": lambda: postgres_setups.server().url,
    }[start]()
    with Laneway(url, namespace=f"n{uuid4().hex}") as app, running(app) as browser:
        app.publish("later", 1, delay="1h")
        assert "no worker" not in browser.get("/").words
        assert [each.cause for each in app.explain_topic("later").reasons] == ["due"]
        assert workers.check(app.engine).ok
        app.publish("late", 1, delay=0.001)
        while app.engine.time_us("late") <= app.engine.topic_peek("late")[0].since_us:
            pass
        assert "Pool default has work that could run, and no worker" in browser.get("/").words
        assert live.look(app, app.engine.overview(), "backlog", 10).unserved_pools == ["default"]
        found = workers.check(app.engine)
        assert (found.ok, found.detail) == (
            False,
            'no worker serves pool "default", and messages wait',
        )
        [reason] = app.explain_topic("late").reasons
        assert (reason.cause, reason.text) == ("unserved", 'no worker serves pool "default"')
        app.policy("late", paused=True)
        assert "no worker" not in browser.get("/").words
        assert workers.check(app.engine).ok


@pytest.mark.parametrize(("growth", "grows"), [(-8.0, False), (8.0, True)])
def test_a_backlog_that_falls_does_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, growth: float, grows: bool
) -> None:
    """The growth decides: the flows of the last minute have a burst in them."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.publish_many([Message("push.a", n) for n in range(500)])
        real = figures.read

        def read(*arguments: Any, **options: Any) -> figures.History:
            history = real(*arguments, **options)
            history.growth, history.inflow, history.outflow = growth, 20.0, 11.7
            return history

        monkeypatch.setattr(figures, "read", read)
        assert ("The backlog grows" in browser.get("/").words) is grows


def test_the_state_in_words(tmp_path: Path) -> None:
    """Healthy; a flood that nobody else feels; a problem comes first."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        beat(app, pools=["default"])
        assert 'class="health state good">Healthy.<' in browser.get("/").text
        app.publish("quiet.a", 1)
        [quiet] = app.lease(1)
        quiet.ack()
        app.publish_many([Message("flood.a", n) for n in range(200)])
        app.publish("quiet.a", 1, delay="1h")
        page = browser.get("/")
        assert 'class="health state slow">flood.a floods; nobody else waits.<' in page.text
        app.policy("flood.*", pool="gpu", rate="1/h")
        assert "1 problem. flood.a floods; nobody else waits." in browser.get("/").words


def opened(record: Any) -> Any:
    record.condition.opened_us, record.condition.text = 1, "HTTP 503"
    return record


def test_open_breakers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints whose breaker is open stand out; those that recovered or were disabled do not."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        log = events.EndpointEvents(app.engine)
        for n in range(3):
            app.endpoint(f"push.{n}", url="https://shop.example/hooks")
            log.add("opened", f"push.{n}", "HTTP 503")
        assert "breaker open" not in browser.get("/").words
        table.update(app.engine, "push.1", opened)
        words = browser.get("/").words
        assert "push.1 endpoint fails, breaker open: HTTP 503, since 1970-01-01" in words
        app.publish_many([Message("push.1", n) for n in range(200)] + [Message("push.0", 1)])
        assert "since 1970-01-01 00:00:00Z ; holds 100% of the backlog" in browser.get("/").words
        for n in (0, 2):
            table.update(app.engine, f"push.{n}", opened)
        assert "3 endpoints opened their breaker" in browser.get("/").words
        app.endpoint("push.2").disable("by hand")
        page = browser.get("/")
        assert "2 endpoints opened their breaker" in page.words
        assert "/endpoints?state=open" in page.text
        assert "push.2 endpoint is disabled, so nothing is sent: by hand" in page.words


def test_lists_of_topics_show_what_is_wrong_with_endpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with an endpoint is in the list, in red, whatever state its topic has."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    url = f"sqlite:///{tmp_path}/store.db"
    with Laneway(url) as app, running(app) as browser:
        for n in range(3):
            app.endpoint(f"push.{n}", url="https://shop.example/hooks")
            app.publish(f"push.{n}", 1)
        assert "endpoint" not in CliRunner().invoke(main, ["-u", url, "topics"]).output
        table.update(app.engine, "push.1", opened)
        app.endpoint("push.2").disable("HTTP 410")
        page = browser.get("/topics")
        assert '<span class="state bad">endpoint fails: HTTP 503</span>' in page.text
        assert '<span class="state bad">endpoint disabled: HTTP 410</span>' in page.text
        assert page.text.count("state bad") == 2
        shown = CliRunner().invoke(main, ["-u", url, "topics", "--order", "name"]).output
        head, *lines = shown.splitlines()
        assert head.endswith("endpoint")
        ends = ["", "fails: HTTP 503", "disabled: HTTP 410"]
        assert [line[head.index("endpoint") :].strip() for line in lines] == ends


def test_messages_that_no_worker_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with a mistyped name stands out although workers serve its pool."""
    monkeypatch.setattr(standing_out, "UNSERVED_SECONDS", 0.0)
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        facts = WorkerFacts(id="one", pools=["default"], patterns=["push.*"], concurrency=1)
        app.engine.beat(facts, dead_after_us=3600 * SECOND, listed_us=3600 * SECOND)
        app.publish("push.m1", 1)
        assert "no worker handles" not in browser.get("/").words
        app.publish("psuh.m2", 1)
        assert "psuh.m2 has messages that no worker handles" in browser.get("/").words


def test_who_keeps_the_slots_is_named_with_the_cure(tmp_path: Path) -> None:
    """If topics wait that can deliver; also by `explain`, for the topic that waits."""
    slots = {"hook.*": (1, 0.01), "import.*": (90, 3.9)}
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:

        def heartbeat(name: str, **facts: Any) -> None:
            given = WorkerFacts(id=name, concurrency=100, **facts)
            app.engine.beat(given, dead_after_us=3600 * SECOND, listed_us=3600 * SECOND)

        heartbeat("one", pools=["default"], busy=91, slots=slots)
        assert "keeps 90 of 100" not in browser.get("/").words
        app.publish_many([Message("hook.a", 1), Message("import.a", 2)])
        words = browser.get("/").words
        kept = "import.* keeps 90 of 100 slots, for up to 3.9 s each"
        assert f"{kept}; 2 topics wait for a slot: more slots (-c 400), a pool or a gate" in words
        reason = app.explain_topic("hook.a").reasons[0]
        assert (reason.cause, kept in reason.text) == ("worker", True)
        assert reason.advice == (
            "more slots (-c 400), a pool or a gate for import.*, or a tier with a reserve for"
            " hook.*"
        )
        advice = app.explain_topic("import.a").reasons[0].advice
        assert advice == "more slots (-c 400), or another worker"
        heartbeat("two", pools=["default"], busy=100, slots={"import.*": (99, 0.4)})
        assert "import.* keeps 189 of 200 slots" in browser.get("/").words
        heartbeat("one", pools=["other"], busy=91, slots=slots)
        assert "keeps" not in browser.get("/").words, "0.4 s are not long"


def test_new_dead_letters(tmp_path: Path) -> None:
    """Messages that died in the last hour stand out."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.publish_many([Message("a", n) for n in range(2)])
        sampling.take(app.engine)
        for delivery in app.lease(2):
            delivery.dead("no such order")
        assert "2 dead letters in the last hour" in browser.get("/").words


def test_refused_publishes(tmp_path: Path) -> None:
    """Publishes that are refused stand out, and `explain` of their topic names them."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.policy("push.*", max_backlog=1)
        app.policy("llm.*", rate="1/s", max_cost=5)
        app.publish("push.acme", 1)
        assert "refused" not in browser.get("/").words
        for n in range(8):
            with pytest.raises(BacklogFull):
                app.publish("push.acme", n)
        with pytest.raises(BadMessage):
            app.publish("llm.a", 1, cost=6)
        receipts = app.publish_many([Message("push.many", n) for n in range(9)])
        assert [each.outcome for each in receipts].count("refused") == 8
        found = refused.read(app.engine)
        assert list(found) == ["push.acme", "push.many", "llm.a"]
        assert found["llm.a"].count == 1
        assert all(4 <= found[topic].count <= 8 for topic in ("push.acme", "push.many"))
        app.lease(10)
        for delivery in app.lease(10, wait=1):
            delivery.ack()
        [reason] = [
            each for each in app.explain_topic("push.acme").reasons if each.cause == "refused"
        ]
        assert re.match(r"at least \d publishes were refused: .*1 message", reason.text), reason
    with Laneway(f"sqlite:///{tmp_path}/store.db", buffer=True) as app, running(app) as browser:
        app.publish_many([Message("push.buffered", n) for n in range(2)])
        app.flush()
        assert app.explain_topic("push.buffered").reasons[-1].text.startswith("1 publish was")
        words = browser.get("/").words
        assert re.search(r"push.acme at least \d publishes were refused: ", words)
        assert "; so were publishes to push.many, " in words
