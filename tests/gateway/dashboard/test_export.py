"""Tables of pages as CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from laneway import Laneway
from laneway.gateway.dashboard.menu import ALL
from laneway.gateway.login import tokens
from laneway.message import Settlement
from tests.gateway.dashboard.conftest import HOSTILE, Browser, beat, running


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        app.publish("push.a", 1, key="=cmd|calc")
        app.publish("push.a", 2)
        app.publish("mail.b", 3)
        (lease,) = app.engine.lease(1, topics=["push.a"]).leases
        end = Settlement(lease.handle, lease.fence, "dead", reason="-1+2", error=HOSTILE)
        app.engine.settle([end])
        beat(app, pools=["default"])
        yield app


@pytest.fixture
def browser(app: Laneway) -> Iterator[Browser]:
    with running(app) as browser:
        yield browser


def table(browser: Browser, of: str) -> list[dict[str, str]]:
    found = browser.get(f"/export?of={quote(of, safe='')}")
    assert found.headers["content-type"] == "text/csv; charset=utf-8"
    assert found.headers["content-disposition"].startswith('attachment; filename="laneway-')
    return list(csv.DictReader(io.StringIO(found.text)))


def test_no_table_no_links(browser: Browser, app: Laneway) -> None:
    """A page without a table links no file of it."""
    empty = ("/endpoints", "/topics?filter=none.*", "/dead?topic=mail.b")
    for path in empty:
        assert "This table as" not in browser.get(path).words, path
    with Laneway(app.url, namespace="bare") as bare, running(bare) as unused:
        for path in ("/topics", "/dead", "/workers", "/endpoints"):
            assert "This table as" not in unused.get(path).words, path


def test_each_page_with_an_export_links_it(browser: Browser, app: Laneway, tmp_path: Path) -> None:
    """The links of a page give what it shows, filtered and ordered as it is."""
    (tmp_path / "q.db").chmod(0o600)  # secrets need it
    app.endpoint("push.a", url="https://acme.example/hooks")
    for path in ("/topics", "/dead", "/workers", "/endpoints"):
        assert 'format=csv">CSV' in browser.get(path).text.replace("&amp;", "&"), path
        assert json.loads(browser.get(f"/export?of={quote(path)}&format=json").text) is not None
    assert "CSV" not in browser.get("/store").words
    (row,) = table(browser, "/topics?filter=push.*")
    assert (row["topic"], row["waiting"], row["dead"]) == ("push.a", "1", "1")
    rows = json.loads(browser.get("/export?of=/topics%3Forder%3Dname&format=json").text)
    assert [each["topic"] for each in rows] == ["mail.b", "push.a"]
    assert list(row)[:4] == ["topic", "state", "waiting", "ready"]
    (worker,) = table(browser, "/workers")
    assert json.loads(worker["pools"]) == ["default"]
    assert table(browser, "/topics?filter=none.*") == []


def test_no_cell_is_a_formula(browser: Browser) -> None:
    """A spreadsheet computes nothing that a publisher has written."""
    (letter,) = table(browser, "/dead")
    assert (letter["key"], letter["reason"]) == ("'=cmd|calc", "'-1+2")
    assert letter["error"] == HOSTILE


def test_what_is_refused(browser: Browser, app: Laneway) -> None:
    """An export shows nobody more than the page does."""
    for of, status in (
        ("/store", 404),
        ("/nowhere", 404),
        ("//[", 404),
        ("//evil.example/topics", 200),
        ("/topics?order=size", 400),
        ("/topics?colr=red", 400),
    ):
        browser.get(f"/export?of={quote(of, safe='')}", status=status)
    browser.get("/export?of=/topics&format=xml", status=400)
    browser.token = tokens.create(app.engine, "some", ["read"], topics=["mail.*"])[1]
    for page in ALL:
        found = browser.send("GET", f"/export?of={quote(page.path)}")
        assert "push" not in found.text.replace("Push", ""), page.path
    assert [each["topic"] for each in table(browser, "/topics")] == ["mail.b"]
    browser.get("/export?of=/workers", status=403)
    browser.get("/export?of=/endpoints", status=403)
