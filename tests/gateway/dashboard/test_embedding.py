"""Pages without a menu, for the frame of a portal, and links to other namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway import Laneway, UsageError
from laneway.gateway.dashboard.view import Link, check_link
from laneway.gateway.login import tokens
from laneway.push.secret_store import KEY_VARIABLE, new_key
from tests.gateway.dashboard.conftest import HOSTILE, Browser, running


def test_a_page_without_menu(browser: Browser, app: Laneway) -> None:
    """A page for a frame has no menu, and its links, forms and live updates stay without one."""
    app.publish("portal.a", 1)
    app.publish("portal.b", 1)
    page = browser.get("/topics?filter=portal.*&embed=true")
    assert '<nav aria-label="Pages"' not in page.text
    assert 'id="help"' not in page.text
    assert "name=portal.a&amp;embed=true" in page.text
    assert "embed%3Dtrue" in page.text.partition("data-live=")[2].partition(">")[0]
    page = browser.submit("pause", topic="portal.a", back="/topic?name=portal.a&embed=true")
    assert "portal.a: paused." in page.words
    assert 'class="embedded"' in page.text
    fields = {"topic": "portal.a", "as": "command", "back": "/topic?name=portal.a&embed=true"}
    assert 'class="embedded"' in browser.submit("pause", **fields).text  # type: ignore[arg-type]
    with browser.live("/topics?filter=portal.*&embed=true") as events:
        assert "embed=true" in events.until_tick()["list"]
    assert "portal.b" in browser.get("/export?of=%2Ftopics%3Fembed%3Dtrue&embed=true").text


def test_a_portal_shows_the_topic_of_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic's own address shows its endpoint, or the topic; other topics are refused."""
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        app.endpoint("push.acme", url="https://acme.example/hooks")
        found = browser.send("GET", "/embed/topics/push.acme")
        assert found.headers["location"] == "/endpoint?topic=push.acme&embed=true"
        found = browser.send("GET", "/embed/topics/push.acme%23crm")
        assert found.headers["location"] == "/topic?name=push.acme%23crm&embed=true"
        _, browser.token, _ = tokens.create(
            app.engine, "acme", scopes=["read", "endpoints"], topics=["push.acme.*", "push.acme"]
        )
        assert "acme.example" in browser.get("/endpoint?topic=push.acme&embed=true").words
        assert browser.send("GET", "/embed/topics/push.other").status == 403
        assert browser.send("GET", "/embed/topics/push.acme").status == 303


def test_links_to_other_namespaces(tmp_path: Path) -> None:
    """The menu has the other namespaces that the gateway was told about."""
    assert check_link("eu=https://eu.example/q?a=b") == Link("eu", "https://eu.example/q?a=b")
    for wrong in ("eu", "=https://eu.example", "eu=javascript:alert(1)", "eu=ftp://eu"):
        with pytest.raises(UsageError, match="expected NAME=URL"):
            check_link(wrong)
    links = [Link("eu", "https://eu.example"), Link(HOSTILE, "/us/")]
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app, links=links) as browser:
        page = browser.get("/")
        assert '<a href="https://eu.example">eu</a>' in page.text
        assert "<script>alert" not in page.text
