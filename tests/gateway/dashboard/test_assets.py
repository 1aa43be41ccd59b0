"""Static files: what is vendored is unchanged, and templates keep to the strict policy."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from laneway import Laneway, Message
from laneway.gateway.dashboard import rendering
from laneway.gateway.dashboard.menu import ALL
from laneway.gateway.dashboard.view import ASSETS
from tests.gateway.dashboard.conftest import Browser, beat

FOLDER = Path(rendering.__file__).parent
VENDOR = FOLDER / "static" / "vendor"
TEMPLATES = sorted((FOLDER / "templates").rglob("*.html"))
SCRIPTS = sorted((FOLDER / "static").glob("*.js"))

MOST_SCRIPT = 8 << 10
MOST_STYLE = 12 << 10
MOST_ALL = 90 << 10


def test_vendored_files_are_unchanged() -> None:
    """Each vendored file has the sha256 that `VENDORED.md` says, and is listed there."""
    rows = re.findall(
        r"^\| ([\w.-]+) \| .* \| ([0-9a-f]{64}) \|$",
        (VENDOR / "VENDORED.md").read_text(),
        re.MULTILINE,
    )
    assert {name for name, _ in rows} == {each.name for each in VENDOR.iterdir()} - {"VENDORED.md"}
    for name, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.name)
def test_templates_keep_to_the_policy(template: Path) -> None:
    """No template has inline scripts, styles or handlers, or writes without escaping."""
    text = template.read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"<style|\sstyle=|\son\w+=|hx-on|hx-vals|javascript:|\bjs:", text)
    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', text)


def test_each_fragment_is_in_its_page() -> None:
    """Each live fragment is a block of the template, in the element with that id."""
    for page in ALL:
        text = (FOLDER / "templates" / f"{page.name}.html").read_text()
        found = re.findall(r'id="(\w+)" data-fragment', text)
        assert sorted(found) == sorted(page.fragments), page.name
        for name in page.fragments:
            assert f"{{% block {name} %}}" in text, (page.name, name)


def test_sizes() -> None:
    """What a browser loads for the first page is small."""

    def size(files: list[Path]) -> int:
        return sum(len(gzip.compress(each.read_bytes(), 9)) for each in files)

    styles = [FOLDER / "static" / "dashboard.css"]
    scripts = [each for each in SCRIPTS if each.name != "login.js"]  # that of another page
    assert size(scripts) <= MOST_SCRIPT
    assert size(styles) <= MOST_STYLE
    vendored = [each for each in VENDOR.iterdir() if each.suffix in (".js", ".css")]
    assert size([*SCRIPTS, *styles, *vendored]) <= MOST_ALL - MOST_STYLE


def test_files_are_kept_by_browsers(browser: Browser) -> None:
    """A file is sent compressed, to be kept; a page is not kept."""
    found = browser.send("GET", ASSETS.url("main.js"), accept_encoding="gzip")
    assert found.status == 200
    assert "immutable" in found.headers["cache-control"]
    found = browser.send("GET", ASSETS.url("dashboard.css"), accept_encoding="gzip")
    assert b"--ground" in gzip.decompress(found.content)
    page = browser.get("/")
    assert page.headers["cache-control"] == "no-store"
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_series_of_the_namespace(browser: Browser, app: Laneway) -> None:
    """Delayed messages are apart, workers are counted, and a file's hash makes no new series."""
    app.publish_many([Message("push.a", 1), Message("push.b", 1)])
    app.publish("push.later", 1, delay=3600)
    beat(app)
    browser.get(ASSETS.url("charts.js"))
    lines = browser.get("/metrics").text.splitlines()
    for line in (
        'laneway_waiting{namespace="default"} 3',
        'laneway_ready{namespace="default"} 2',
        'laneway_delayed{namespace="default"} 1',
        'laneway_workers{namespace="default",state="running"} 1',
        'laneway_workers{namespace="default",state="dead"} 0',
        'laneway_gateway_requests_total{method="GET",path="/static/{file}",status="200"} 1',
    ):
        assert line in lines
    assert any(
        re.match(r'laneway_oldest_seconds\{namespace="default"\} \d', line) for line in lines
    )
