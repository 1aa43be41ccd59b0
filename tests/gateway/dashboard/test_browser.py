"""
The dashboard in a real browser: no page asks other sites for anything or breaks its own policy,
axe-core finds nothing, and keys, live updates and forms work.

Skipped where there is no Chromium (`apt-get install chromium`) or no axe-core: it is read from
`LANEWAY_AXE`, or `node_modules/axe-core/axe.min.js` (`npm install axe-core`).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from docs_tools.pictures import FLAGS, SHOWN, beat, fill
from laneway import Laneway, Message
from laneway.gateway.dashboard import collector as collecting
from laneway.gateway.login.local_login import LocalLogin
from laneway.message import Settlement
from tests.gateway.dashboard.conftest import Browser, running

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
AXE = Path(os.environ.get("LANEWAY_AXE", "node_modules/axe-core/axe.min.js"))
ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine; apt-get install chromium"
)

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Laneway, Browser]]:
    folder = tmp_path_factory.mktemp("shop")
    with (
        pytest.MonkeyPatch.context() as patched,
        Laneway(f"sqlite:///{folder}/shop.db", namespace="shop", durability="memory") as app,
    ):
        patched.setattr(collecting, "BUDGET_SECONDS", 60.0)  # a busy machine is no slow store
        fill(app)
        beat(app.engine)
        with running(app) as browser:
            yield app, browser


@pytest.fixture(scope="module")
def chromium(shop: tuple[Laneway, Browser]) -> Iterator[Any]:
    """A browser. After the shop: its worker cannot run beside playwright's event loop."""
    del shop
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


UNHURRIED = """
window.forgetting = [];
const plain = { setTimeout: window.setTimeout, clearTimeout: window.clearTimeout };
window.setTimeout = (call, wait, ...rest) => {
  if (wait !== 1500) return plain.setTimeout.call(window, call, wait, ...rest);
  const end = { call };
  window.forgetting.push(end);
  return end;
};
window.clearTimeout = (it) => {
  if (it?.call) it.call = () => {};
  else plain.clearTimeout.call(window, it);
};
"""
"""
The 1.5 s for the letter after "g" do not end by themselves, because a machine may pause between two
keys. What would happen at their ends is in `forgetting`.
"""


class Opened:
    """A tab that fails the test if the page asks for something elsewhere, or has an error."""

    def __init__(self, chromium: Any, port: int, **options: Any) -> None:
        self.base = f"http://127.0.0.1:{port}"
        self.page = chromium.new_page(**options)
        self.page.set_default_timeout(60_000)
        self.errors: list[str] = []
        self.page.add_init_script(UNHURRIED)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.base, "data:")):
            self.errors.append(f"asked for {request.url}")

    def go(self, path: str) -> Any:
        self.page.goto(self.base + path)
        return self.page

    def close(self) -> None:
        self.page.close()
        assert not self.errors


def test_charts_zoom_into_the_url(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """Dragging over a chart is a page of its own, with a URL; a double click ends it."""
    opened = Opened(chromium, shop[1].port, viewport={"width": 1280, "height": 900})
    page = opened.go("/?range=6h")
    page.wait_for_selector("#charts .u-over")
    page.keyboard.press("p")  # else a live change may replace it between the steps
    page.wait_for_selector("[data-live-state][data-kind=off]")
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url) if "from=" in each.url else None)
    box = page.locator("#charts .u-over").first.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + 40, steps=4)
    page.evaluate("document.querySelector('#workers').append(document.createElement('wbr'))")
    plot = page.query_selector("#charts .u-over")
    page.keyboard.press("p")
    page.wait_for_selector("#workers:not(:has(wbr))", state="attached")  # after the charts
    assert plot.evaluate("it => it.isConnected")
    page.mouse.move(box["x"] + 200, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"range=6h&from=\d+&to=\d+$"))
    pages = [each for each in asked if each.startswith(f"http://127.0.0.1:{shop[1].port}/?")]
    assert len(pages) == 1, "the charts that follow do not ask for it again"
    start, end = map(int, re.findall(r"=(\d+)", page.url.split("6h")[1]))
    assert 60 < end - start < 6 * 3600
    page.wait_for_selector("text=Whole range")
    page.wait_for_selector("#charts .u-over")
    page.keyboard.press("p")
    page.wait_for_selector("[data-live-state][data-kind=off]")
    page.locator("#charts .u-over").first.dblclick()
    page.wait_for_url(re.compile(r"range=6h$"))
    opened.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_nothing(
    shop: tuple[Laneway, Browser], chromium: Any, theme: str, width: int
) -> None:
    """No page breaks a rule of WCAG 2.2 AA that axe-core knows, and none is wider than its tab."""
    axe = AXE if AXE.is_absolute() else ROOT / AXE
    if not axe.exists():
        pytest.skip(f"no axe-core at {axe}; npm install axe-core, or set LANEWAY_AXE")
    opened = Opened(
        chromium,
        shop[1].port,
        viewport={"width": width, "height": 900},
        color_scheme=theme,
        bypass_csp=True,  # axe-core is no part of the page
    )
    found = {}
    for name, path in SHOWN.items():
        page = opened.go(path)
        page.wait_for_selector("main")
        page.add_script_tag(path=str(axe))
        violations = page.evaluate(
            "tags => axe.run({runOnly: tags}).then(found => found.violations.map(each =>"
            " [each.id, each.nodes.slice(0, 3).map(node => node.html + node.failureSummary)]))",
            TAGS,
        )
        if violations:
            found[name] = violations
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            found[f"{name} is wider than the tab"] = wide
    opened.close()
    assert not found


def test_live_updates_and_keys(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """A page changes by itself, stays paused, and is left and entered by keys alone."""
    app, browser = shop
    opened = Opened(chromium, browser.port)
    page = opened.go("/topic?name=keys.a")
    page.wait_for_selector("[data-live-state][data-kind=good]")
    app.publish("keys.a", 1)
    page.wait_for_selector("#messages code")
    page.keyboard.press("p")
    page.wait_for_selector("[data-live-state][data-kind=off]")
    page.keyboard.press("p")
    page.wait_for_selector("[data-live-state][data-kind=good]")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.wait_for_selector("#list table")
    page.keyboard.press("j")
    page.keyboard.press("j")
    name = marked(page)
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?name=*")
    assert page.text_content("h1") == name
    page.keyboard.press("/")
    page.keyboard.type("keys.a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=keys.a")
    assert "keys.a" in page.text_content("main")
    opened.close()


REFUSED = """
const asked = JSON.parse(sessionStorage.getItem("asked") ?? "[]");
class Refused {
  constructor(url) {
    this.url = url;
    this.readyState = 2;
    setTimeout(() => this.onerror({ target: this }));
  }
  addEventListener() {}
  close() {}
}
if (asked.length < 2) {
  window.EventSource = Refused;
  window.fetch = async (url, { method }) => {
    asked.push(`${method} ${url}`);
    sessionStorage.setItem("asked", JSON.stringify(asked));
    return { status: [502, 401][asked.length - 1] };
  };
}
"""


def test_a_refused_stream_is_opened_again(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """A proxy answers 502 while the gateway restarts: the page comes back to life by itself."""
    opened = Opened(chromium, shop[1].port)
    opened.page.add_init_script(REFUSED)
    # The second stream is refused because the login ended: the page is loaded again.
    with opened.page.expect_response(lambda answer: "/live?" in answer.url):
        page = opened.go("/topics")
    url = page.get_attribute("main", "data-live")
    assert page.evaluate("JSON.parse(sessionStorage.getItem('asked'))") == [f"HEAD {url}"] * 2
    opened.close()


def marked(page: Any) -> str | None:
    """What the chosen row of a table is named: read at once, since a live page may change."""
    name: str | None = page.evaluate("document.querySelector('tr.at th a')?.textContent")
    return name


def marked_link(page: Any) -> str:
    """Where the chosen row leads."""
    link: str | None = page.evaluate("document.querySelector('tr.at th a')?.getAttribute('href')")
    return link or ""


def test_live_updates_keep_the_chosen_row(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """A new dead letter redraws the list; the chosen row and the focus stay at their letter."""
    app, browser = shop
    opened = Opened(chromium, browser.port)
    page = opened.go("/dead")
    page.wait_for_selector("[data-live-state][data-kind=good]")
    letters = page.locator("#letters tbody tr").count()
    rows = page.locator("main tbody tr").count()
    for _ in range(rows - letters + 2):
        page.keyboard.press("j")
    link = marked_link(page)
    assert link == page.locator("#letters tbody tr th a").nth(1).get_attribute("href")
    app.publish("chosen.a", 1)
    (lease,) = app.engine.lease(1, topics=["chosen.a"]).leases
    app.engine.settle([Settlement(lease.handle, lease.fence, "dead", reason="rejected")])
    page.wait_for_selector("#letters :text('chosen.a')")
    assert marked_link(page) == link
    assert page.evaluate("document.activeElement.getAttribute('href')") == link
    opened.close()


def test_a_change_waits_for_the_end_of_a_selection(
    shop: tuple[Laneway, Browser], chromium: Any
) -> None:
    """Text that the reader selects stays as it is; what changed meanwhile is shown afterwards."""
    app, browser = shop
    opened = Opened(chromium, browser.port)
    page = opened.go("/topic?name=selected.a")
    page.wait_for_selector("[data-live-state][data-kind=good]")
    page.evaluate("getSelection().selectAllChildren(document.getElementById('messages'))")
    app.publish("selected.a", 1)
    page.wait_for_selector("#strip dd[title='1'], #strip .figure[title='1']")
    assert "No message waits" in page.text_content("#messages")
    page.evaluate("getSelection().removeAllRanges()")
    page.wait_for_selector("#messages code")
    opened.close()


def test_quick_keys_lead_to_the_last_page(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """A page that is slow does not replace the one that was asked for after it."""
    opened = Opened(chromium, shop[1].port)
    page = opened.go("/")
    slow: list[Any] = []

    def hold(route: Any) -> None:
        slow.append(route)

    page.route("**/limits", hold)
    with page.expect_request("**/limits"):
        page.keyboard.press("g")
        page.keyboard.press("l")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.wait_for_selector("h1:text-is('Topics')")
    assert len(slow) == 1
    slow[0].continue_()
    page.wait_for_timeout(500)
    assert page.text_content("h1") == "Topics"
    # The end of the time for the letter after an earlier "g" is not that of a later one.
    page.evaluate("window.forgetting = []")
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.keyboard.press("g")
    page.evaluate("forgetting[0].call()")
    page.keyboard.press("f")
    page.wait_for_url("**/fairness")
    page.evaluate("window.forgetting = []")
    page.keyboard.press("g")
    page.evaluate("forgetting[0].call()")
    page.keyboard.press("d")  # too late: the key of the theme
    assert page.evaluate("document.documentElement.dataset.theme")
    assert page.url.endswith("/fairness")
    # htmx writes a request that it ended to the console
    opened.errors = [error for error in opened.errors if not error.startswith("htmx:")]
    opened.close()


class Keys:
    """A person without a mouse."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.presses = 0

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
            self.presses += 1

    def type(self, text: str) -> None:
        self.page.keyboard.type(text)

    def tab_to(self, selector: str) -> None:
        """Press Tab until the focus is there, and can be seen."""
        for _ in range(60):
            self.press("Tab")
            if self.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
                break
        else:
            raise AssertionError(f"60 tabs do not lead to {selector}")
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert self.page.evaluate(outline) != "none", selector


def test_tasks_by_keyboard(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """
    A merchant's topic is found, explained, paused, resumed and given another rate, and a dead
    letter is retried, and an endpoint's failures are replayed, by keys alone.
    """
    app, browser = shop
    engine = app.engine
    app.publish_many(Message("push.keyboard", n) for n in range(3))
    opened = Opened(chromium, browser.port)
    page = opened.go("/")
    keys = Keys(page)
    keys.press("/")
    keys.type("keyboard")
    keys.press("Enter")
    page.wait_for_url("**/search?q=keyboard")
    assert "It waits for its turn" in page.text_content(".reasons")
    keys.press("j", "Enter")
    page.wait_for_url("**/topic?name=push.keyboard")
    keys.tab_to(".skip")
    keys.press("Enter")
    keys.tab_to(".actions button")
    keys.press("Enter")
    page.wait_for_selector(".notice.good")
    assert engine.topic_stats("push.keyboard").state == "paused"
    page.wait_for_selector(".reasons button:has-text('Resume')")
    keys.tab_to(".reasons button")
    keys.press("Enter")
    page.wait_for_selector("text=push.keyboard: resumed.")
    assert engine.topic_stats("push.keyboard").state != "paused"
    engine.policy_set("operator", "push.keyboard", {"rate": "1/min", "burst": 1})
    (lease,) = engine.lease(1, topics=["push.keyboard"]).leases
    engine.settle([Settlement(lease.handle, lease.fence, "ack")])
    page.wait_for_selector("text=the topic's rate (1/min)")
    keys.tab_to(".reasons a")
    left = re.search(r"in [\d.]+ s", page.text_content(".reasons"))
    assert left
    page.wait_for_selector(f".reasons:not(:has-text('{left[0]}'))")  # live: the focus is kept
    assert page.evaluate("document.activeElement.textContent") == "Change it"
    keys.press("Enter")
    page.wait_for_selector("#edit-rate:focus")
    keys.press("Control+a")
    keys.type("7/s")
    keys.press("Enter")
    page.wait_for_selector("text=the policy was changed")
    assert engine.policy_of("push.keyboard").rate == 7
    (first,) = engine.dead_list("push.acme", limit=1)
    keys.press("g", "d")
    page.wait_for_url("**/dead")
    page.wait_for_selector("#letters table")
    while first[1].id not in marked_link(page):
        keys.press("j")
    keys.press("Enter")
    page.wait_for_url("**/message?*")
    keys.tab_to(".actions button")
    keys.press("Enter")
    page.wait_for_selector(".notice.good")
    assert not engine.dead_list("push.acme", limit=1)
    keys.press("g", "e")
    page.wait_for_url("**/endpoints")
    page.wait_for_selector("#list table")
    keys.press("j", "Enter")
    page.wait_for_url("**/endpoint?*")
    keys.tab_to(".skip")
    keys.press("Enter")
    keys.tab_to("#many summary")
    keys.press("Enter")
    keys.tab_to("#many-since")
    keys.press("Enter")
    page.wait_for_selector("text=Messages sent again: ")
    assert keys.presses < 200
    opened.close()


def test_a_skip_keeps_what_the_reader_does_next(
    shop: tuple[Laneway, Browser], chromium: Any
) -> None:
    """The event of a link within the page comes late: the focus stays where Tab has moved it."""
    opened = Opened(chromium, shop[1].port)
    page = opened.go("/topic?name=push.acme")
    focused = page.evaluate(
        """async () => {
            const event = new Promise(come => addEventListener("hashchange", come, {once: true}));
            document.querySelector(".skip").click();
            document.querySelector(".actions button").focus();
            await event;
            return document.activeElement.textContent;
        }"""
    )
    assert focused == "Pause"
    opened.close()


def test_forms_and_the_theme(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """A button of the page changes something, says so, and undoes it; a theme stays chosen."""
    app, browser = shop
    app.publish("forms.a", 1)
    opened = Opened(chromium, browser.port, color_scheme="light")
    page = opened.go("/topic?name=forms.a")
    page.click(".actions button >> nth=0")
    page.wait_for_selector(".notice.good")
    assert app.engine.topic_stats("forms.a").state == "paused"
    page.click(".notice button:has-text('Undo') >> nth=0")
    page.wait_for_selector("text=as it was before")
    assert app.engine.topic_stats("forms.a").state != "paused"
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page = opened.go("/topics")
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"
    opened.close()


def test_without_javascript(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """Pages are read, and forms sent, by a browser that runs no scripts."""
    app, browser = shop
    app.publish("plain.a", 1)
    opened = Opened(chromium, browser.port, java_script_enabled=False)
    page = opened.go("/topics?filter=plain.*")
    page.check("input[type=checkbox][name=topic]")
    page.click(".chosen button >> nth=0")
    assert "plain.a: paused." in page.text_content(".notice")
    assert app.engine.topic_stats("plain.a").state == "paused"
    opened.close()


RECORD_TEXTS = """
window.drawn = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const { width } = this.measureText(text);
  const left = this.textAlign === "right" ? x - width : x;
  window.drawn.push({ text, left, right: left + width, y, whole: this.canvas.width });
  return fill.call(this, text, x, y);
};
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_deployments_are_marked_on_charts(
    shop: tuple[Laneway, Browser], chromium: Any, width: int
) -> None:
    """Each chart has a mark where a version began to run, whose name is inside the plot."""
    opened = Opened(chromium, shop[1].port, viewport={"width": width, "height": 900})
    opened.page.add_init_script(RECORD_TEXTS)
    page = opened.go("/?range=15m")
    page.wait_for_selector("#charts .u-over")
    charts = page.evaluate(
        "[...document.querySelectorAll('[data-chart]')].map(it => JSON.parse(it.dataset.chart))"
    )
    (mark,) = charts[0]["marks"]
    assert mark["name"] == "shop 2.4.0, shop 2.3.9"
    assert charts[0]["x"][0] <= mark["at"] <= charts[0]["x"][-1] + 900
    drawn = [each for each in page.evaluate("window.drawn") if each["text"].startswith("shop")]
    assert len(drawn) >= len(charts) == 4
    for each in drawn:
        assert 0 <= each["left"] <= each["right"] <= each["whole"]
        assert 0 < each["y"] < 20  # above the plot
    page.click("text=as table")
    page.wait_for_selector("#charts table")
    opened.close()


@pytest.mark.parametrize("points", [0, 1, 3])
def test_charts_of_a_new_store_have_different_times(
    chromium: Any, tmp_path: Path, points: int
) -> None:
    """Without points, with one, and with some of the same minute: past times, none twice."""
    with (
        Laneway(f"sqlite:///{tmp_path}/new.db", durability="memory") as app,
        running(app) as browser,
    ):
        app.publish("t", 1)
        opened = Opened(chromium, browser.port, viewport={"width": 1280, "height": 900})
        opened.page.add_init_script(RECORD_TEXTS)
        opened.page.add_init_script(NEW_CHARTS % points)
        page = opened.go("/")
        page.wait_for_selector("#charts .u-over")
        found = [each["text"] for each in page.evaluate("window.drawn")]
        labels = [text for text in found if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)]
        assert len(labels) > 4
        assert all(one != other for one, other in itertools.pairwise(labels)), labels
        now = page.evaluate("new Date().getHours() * 60 + new Date().getMinutes()")
        for label in labels:
            hour, minute = map(int, label.split(":")[:2])
            assert (now - hour * 60 - minute) % 1440 <= 61  # the hour before
        opened.close()


NEW_CHARTS = """
const parse = JSON.parse;
JSON.parse = (text) => {
  const found = parse(text);
  if (!found?.names) return found;
  found.x = [0, 9, 20].slice(0, %d).map((more) => Math.floor(Date.now() / 60000) * 60 + more);
  found.y = found.names.map(() => found.x.map(() => 1));
  return found;
};
"""


def test_the_menu_of_a_narrow_screen(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """Every page is reached from a row that scrolls; the present one is in sight after a tap."""
    opened = Opened(chromium, shop[1].port, viewport={"width": 390, "height": 844}, has_touch=True)
    page = opened.go("/")
    page.wait_for_selector("main")
    links = page.locator(".side nav a")
    names = [name.strip() for name in links.all_inner_texts()]
    assert names[0] == "Now"
    assert len(names) == 12
    boxes = [links.nth(n).bounding_box() for n in range(len(names))]
    assert len({round(box["y"]) for box in boxes}) == 1  # one row
    assert all(box["height"] >= 24 for box in boxes)  # WCAG 2.2, 2.5.8
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in ("Store", "Topics", "Tokens"):
        page.locator(f".side nav a:text-is('{name}')").tap()
        page.wait_for_selector(f"h1:text-is('{name}')")
        current = page.locator(".side nav [aria-current]")
        assert current.inner_text().strip() == name
        box = current.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 390, name
    opened.close()


STILL = """
window.EventSource = class {
  addEventListener(name, receive) {
    const tick = JSON.stringify({ every: 1, at: Date.now() / 1000 });
    if (name === "tick") setTimeout(() => receive({ data: tick }), 1);
  }
  close() {}
};
"""
"""A stream that says one thing, and then nothing any more."""


def test_times_are_local_and_show_their_age(shop: tuple[Laneway, Browser], chromium: Any) -> None:
    """Times are in the reader's zone, UTC on hover; a silent stream shows for how many seconds."""
    app, browser = shop
    app.publish("clock.a", 1, delay="40d")
    app.publish("clock.a", 2)
    zone = ZoneInfo("Asia/Kolkata")
    opened = Opened(chromium, browser.port, timezone_id=zone.key, locale="en-US")
    page = opened.page
    page.add_init_script(STILL)
    page.clock.install()
    began = time.monotonic()
    opened.go("/topic?name=clock.a")
    page.wait_for_selector("[data-live-state][data-kind=good]")
    times = page.evaluate(
        "[...document.querySelectorAll('#messages time')].map(it => [it.dateTime, it.textContent,"
        " it.title])"
    )
    assert len(times) >= 2
    for moment, shown, title in times:
        at = datetime.fromisoformat(moment)
        assert at.utcoffset() == timedelta(0)
        is_today = at.astimezone(zone).date() == datetime.now(zone).date()
        wanted = "%H:%M:%S" if is_today else "%b %-d, %H:%M"
        assert shown == at.astimezone(zone).strftime(wanted)
        assert title.startswith(at.strftime("%Y-%m-%d %H:%M")), title
    assert any("," in shown for _, shown, _ in times)  # in 40 days
    page.clock.fast_forward(20_000)
    page.wait_for_selector("[data-live-state][data-kind=bad]")
    words = page.text_content("[data-live-state] .live-words")
    shown = re.fullmatch(r"last seen (\d+) s ago, trying again", words)
    assert shown, words
    assert 20 <= int(shown[1]) <= 21 + time.monotonic() - began
    assert page.evaluate("document.body.classList.contains('stale')")
    opened.close()


def test_a_one_time_login(tmp_path: Path, chromium: Any) -> None:
    """The link of `laneway dev` logs in by itself; its code is in no address, and no second use."""
    logins = LocalLogin(bytes(32))
    with (
        Laneway(f"sqlite:///{tmp_path}/shop.db", durability="memory") as app,
        running(app, login=logins) as browser,
    ):
        code = logins.new_code()
        opened = Opened(chromium, browser.port)
        asked: list[str] = []
        opened.page.on("request", lambda request: asked.append(request.url))
        page = opened.go(f"/login#{code}")
        page.wait_for_selector("h1:text-is('Now')")
        assert page.url == opened.base + "/"
        assert not [url for url in asked if code in url.partition("#")[0]]
        page.reload()
        page.wait_for_selector("h1:text-is('Now')")
        opened.close()
        context = chromium.new_context()
        second = context.new_page()
        second.goto(f"{opened.base}/login#{code}")
        second.wait_for_selector("text=This link was used already")
        assert code not in second.content() + second.url
        second.fill("#code", logins.new_code())
        second.click("button.main >> nth=0")
        second.wait_for_selector("h1:text-is('Now')")
        context.close()
