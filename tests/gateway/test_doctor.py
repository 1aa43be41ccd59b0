"""The doctor in the background: its progress and findings, who may run it, and how it stops."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.engines.base import DoctorStep
from laneway.gateway.login import tokens
from laneway.gateway.routes import operations
from tests.gateway.dashboard.conftest import Browser, running


@pytest.fixture
def shop(tmp_path: Any) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/shop.db", durability="memory") as app:
        app.publish_many((Message(f"a.{n}", n) for n in range(200)), progress=False)
        yield app


@pytest.fixture
def web(shop: Laneway) -> Iterator[Browser]:
    with running(shop) as browser:
        yield browser


def ended(web: Browser, operation_id: str) -> Any:
    """The operation, once it has ended."""
    until = time.monotonic() + 30
    while not (found := web.json(f"/v1/operations/{operation_id}"))["ended"]:
        assert time.monotonic() < until, found
    return found


def test_findings_on_the_page(web: Browser, shop: Laneway) -> None:
    """The page begins a check and shows what it found, with what to do about it."""
    assert "Is it healthy?" in web.get("/store").words
    begun = web.submit("run_doctor", back="/store")
    assert "It continues in the background" in begun.words
    (operation,) = web.json("/v1/operations")["operations"]
    found = ended(web, operation["id"])
    assert (found["kind"], found["state"]) == ("doctor", "done")
    assert found["done"] == found["total"] > 5
    assert all(check["ok"] for check in found["checks"])
    assert {"file", "order", "messages", "totals"} <= {each["name"] for each in found["checks"]}
    shown = web.get("/store").words
    assert "checks found nothing wrong" in shown
    assert "Fine: file, order, messages" in shown
    assert "doctor" not in web.get("/dead").words  # there are operations on dead letters

    path = shop.url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM ready WHERE lane = (SELECT min(lane) FROM lane)")
    connection.commit()
    connection.close()
    again = web.json("/v1/doctor", "POST")["operation"]
    checks = {each["name"]: each for each in ended(web, again)["checks"]}
    assert checks["messages"]["detail"].startswith("1 that waited nowhere")
    assert "laneway doctor --repair" in checks["messages"]["advice"]
    shown = web.get("/store").words
    assert "checks found something wrong" in shown
    assert "run laneway doctor --repair" in shown
    (file,) = [check for check in shop.engine.doctor(repair=True) if check.name == "messages"]
    assert file.detail.endswith("repaired")


def test_who_may_run_it(web: Browser, shop: Laneway) -> None:
    """It takes the scope admin for all topics; a reader sees the findings, and the command."""
    _, web.token, _ = tokens.create(shop.engine, "reader", ["read", "operate"])
    assert web.send("POST", "/v1/doctor").status == 403
    assert "Run the doctor" not in web.get("/store").words
    assert "laneway doctor" in web.get("/store").words
    _, web.token, _ = tokens.create(shop.engine, "customer", ["admin"], topics=["a.*"])
    assert web.send("POST", "/v1/doctor").status == 403
    _, web.token, _ = tokens.create(shop.engine, "admin", ["admin"])
    operation = web.json("/v1/doctor", "POST")["operation"]
    assert ended(web, operation)["who"] == "admin"


def test_one_at_a_time_and_stopped(
    web: Browser, shop: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one is the first; progress is shown while it runs, and it can be stopped."""

    def endless(pause: Any) -> Iterator[DoctorStep]:
        for done in itertools.count(1):
            yield DoctorStep(min(done, 999), 1000)
            if pause(0.01):
                return

    monkeypatch.setattr(type(shop.engine), "doctor_steps", lambda _, pause: endless(pause))
    monkeypatch.setattr(operations, "WRITTEN_SECONDS", 0.0)
    first = web.json("/v1/doctor", "POST")["operation"]
    assert web.json("/v1/doctor", "POST")["operation"] == first
    until = time.monotonic() + 30
    while not web.json(f"/v1/operations/{first}")["done"] and time.monotonic() < until:
        pass
    assert "of 1,000 parts checked" in web.get("/store").words
    web.submit("stop_operation", id=first, back="/store")
    found = ended(web, first)
    assert (found["state"], found["checks"]) == ("stopped", None)
    assert "stopped after" in web.get("/store").words


def test_it_pauses_as_long_as_it_reads(shop: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long statement is cut into slices, ends when it is told, and holds up no other call."""
    from laneway.engines.sqlite import engine as of_sqlite

    monkeypatch.setattr(of_sqlite, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(of_sqlite, "OPERATIONS", 10)
    pauses = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 3:
            shop.publish("a.1", 1)  # the check's own connection holds no lock
        return len(pauses) > 50

    steps = list(shop.engine.doctor_steps(pause))
    assert len(pauses) == 51
    assert not steps or not steps[-1].checks
    assert [each for each in shop.engine.doctor() if not each.ok] == []
