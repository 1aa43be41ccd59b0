"""
The pictures of the dashboard: fills a demo store, serves it, and takes a picture of each page.

   python -m docs_tools.pictures docs/dashboard              for the docs (`make pictures`)
   python -m docs_tools.pictures out --all                   the same as tall PNG files
   python -m docs_tools.pictures out --all --store empty     of an empty store
   python -m docs_tools.pictures out --all --store broken    of a store that has gone away
   python -m docs_tools.pictures out --all --store hostile   with the worst names and texts
   python -m docs_tools.pictures out --all --sheets          with sheets of many pictures

It needs a Chromium (`apt-get install chromium`) and the Python package playwright.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import math
import os
import random
import re
import shutil
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch
from urllib.parse import urlencode

import msgspec
import uvicorn

from docs_tools import pictures_hostile
from laneway import Laneway, Message, chain, chord, group
from laneway.admin import audit_log
from laneway.engines.base import (
    WAIT_BOUNDS_US,
    LogEntry,
    RunningMessage,
    WaitCounts,
    WorkerFacts,
)
from laneway.engines.shared.doctor import finding
from laneway.errors import EngineUnavailable
from laneway.gateway import operations
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.dashboard.view import Link
from laneway.gateway.gateway import Gateway
from laneway.gateway.login import tokens
from laneway.history.records import (
    AGE_BUCKETS,
    RINGS,
    Cell,
    HandlerCounts,
    Row,
    bucket_of,
    encode,
    name_of,
)
from laneway.message import Settlement
from laneway.push import events, table
from laneway.push.delivery_log import Entry
from laneway.push.secret_store import KEY_VARIABLE, new_key
from laneway.schedules import store
from laneway.units import SECOND

MERCHANTS = 400
WIDTHS = {"wide": 1280, "narrow": 390}
THEMES = ("light", "dark")

SHOWN = {
    "now": "/",
    "topics": "/topics",
    "topic": "/topic?name=push.acme",
    "message": "/message?topic=orders.import&id=import-2",
    "search": "/search?q=push.slow",
    "fairness": "/fairness",
    "limits": "/limits",
    "future": "/future",
    "dead": "/dead",
    "failures": "/topics?order=failures",
    "workers": "/workers",
    "endpoints": "/endpoints",
    "endpoint": "/endpoint?topic=push.acme",
    "jobs": "/jobs?task=shop.deliver",
    "flow": "/jobs",
    "embed": "/endpoint?topic=push.acme&embed=true",
    "store": "/store",
    "audit": "/audit",
    "tokens": "/tokens",
}
"""The pages by the names of their pictures."""

HOSTILE_SHOWN = {
    **SHOWN,
    "topic": "/topic?" + urlencode({"name": pictures_hostile.NAMES[0]}),
    "topic-bidi": "/topic?" + urlencode({"name": pictures_hostile.BIDI}),
    "message": "/message?topic=mail.huge&id=huge",
    "message-dead": "/message?"
    + urlencode({"topic": pictures_hostile.NAMES[0].replace("push.", "mail."), "id": "huge"}),
    "search": "/search?" + urlencode({"q": pictures_hostile.NAMES[0]}),
    "endpoint": "/endpoint?" + urlencode({"topic": pictures_hostile.NAMES[0]}),
    "problem": "/endpoint?" + urlencode({"topic": "push.nobody." + "x" * 150}),
}
"""The same for the store with the worst names."""

STORES = ("busy", "empty", "broken", "hostile")

NOT_IN_DOCS = ("embed", "failures")
"""The endpoint without the menu, and topics in another order."""

QUALITY = 25
"""The quality of the WebP files of the docs: text stays readable, and they are small."""

ERRORS = (
    "ConnectError: [Errno 111] Connection refused",
    "HTTPStatusError: 503 Service Unavailable",
    "KeyError: 'customer'",
)


# The demo store


def fill(app: Laneway) -> None:
    """A shop that pushes orders to its merchants: one floods, some fail, some are held back."""
    random.seed(7)
    engine = app.engine
    app.policy("push.*", rate="50/s", concurrency=8, retries=5)
    app.policy("push.slow.*", rate="10/min")
    app.policy("mail.*", tier="low")
    app.policy("billing.*", tier="high", weight=3)
    app.policy("render.*", pool="gpu")
    app.policy("customer.*", group="customer.{1}")
    app.gate("psp", concurrency=4)
    app.policy("billing.capture", gate="psp")
    app.topic_group("customer.globex", rate="20/s", weight=2)
    app.subscribe("orders", "audit")
    app.subscribe("orders", "search", where={"kind": "new"})
    merchants = ["acme", *(f"slow.{n}" for n in range(6)), *(f"m{n:03d}" for n in range(MERCHANTS))]
    for n, merchant in enumerate(merchants):
        count = 2400 if merchant == "acme" else 260 if "slow" in merchant else 1 + n % 3 // 2
        app.publish_many(
            Message(f"push.{merchant}", {"order": 10_000 + n * 100 + k, "total": round(k * 3.7, 2)})
            for k in range(count)
        )
    for n in range(40):
        app.publish("billing.capture", {"invoice": n}, priority=n % 3, key=f"invoice-{n}")
        app.publish("mail.receipt", {"to": f"user{n}@example.com"})
        app.publish(f"customer.globex.{n % 5}", n)
        app.publish(f"customer.initech.{n % 3}", n)
        app.publish("orders", {"order": n}, headers={"kind": "new" if n % 2 else "change"})
        app.publish("mail.digest", {"week": n}, delay=f"{n + 1}h")
    for n in range(600):
        app.publish("mail.reminder", {"n": n}, delay=f"{abs(random.gauss(9, 7)) * 60:.0f}m")
    _schedules(engine)
    _flow(app)
    for n in range(12):
        app.publish("render.poster", {"poster": n})
    app.policy("mail.receipt", paused=True)
    app.schedules.add("nightly report", Message("reports.nightly", {}), cron="0 3 * * *")
    app.schedules.add("ping", Message("ping", {"to": "all"}), every="10m", missed="skip")
    app.schedules.add("weekly invoice", Message("billing.weekly", {}), cron="0 9 * * MON")
    app.schedules.pause("weekly invoice")
    _work(app, engine)
    for n in range(5):
        body = {"file": f"orders-{n}.csv", "rows": [1, 2, {"a": None}]}
        headers = {"trace": "4f1c"}
        app.publish("orders.import", body, id=f"import-{n}", headers=headers, delay="20m")
    _write_history(engine)
    with patch.dict(os.environ, {KEY_VARIABLE: new_key()}):
        _endpoints(app)


def _schedules(engine) -> None:
    """Three schedules. One has fired every five minutes but once."""
    now = datetime.now(UTC)
    for name, options in (
        ("sync-stock", {"every": "5m"}),
        ("nightly-report", {"cron": "0 3 * * *", "timezone": "Europe/Berlin"}),
        ("month-end", {"cron": "0 18 L * *"}),
    ):
        message = Message(f"cron.{name}", {"by": name})
        schedule = store.declared("schedule", name, message, options)
        store.put(engine, schedule)
        times = [firing.at for firing in store.last_firings(engine, name)]
        engine.put([schedule.firing(at) for n, at in enumerate(times) if n != 4 and at <= now])
    leases = engine.lease(30, topics=["cron.sync-stock", "cron.nightly-report"]).leases
    engine.settle(
        [
            Settlement(lease.handle, lease.fence, "dead" if n == 6 else "ack", reason="no answer")
            for n, lease in enumerate(leases)
        ]
    )


def _flow(app: Laneway) -> None:
    """A report of six parts, four of which have ended; a chart and a mail follow it."""

    @app.task(name="report.part", topic="report.part.{n}", retries=0)
    def part(n: int) -> int:
        return n

    @app.task(name="report.total", topic="report.total")
    def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="report.mail", topic="report.mail")
    def mail(number: int) -> None:
        del number

    @app.task(name="report.draw_chart_of_the_month", topic="report.chart")
    def draw(number: int) -> int:
        return number

    flow = chain(chord([part.s(n) for n in range(6)], total.s()), group(draw.s(), mail.s()))
    flow.enqueue()
    (body,) = app.engine.topic_peek("report.total")
    SHOWN["flow"] = f"/jobs?id={body.id}&topic=report.total"
    app.run_worker(burst=True, topics=[f"report.part.{n}" for n in range(4)])


def _endpoints(app: Laneway) -> None:
    """Endpoints of the merchants, one of which answers 503, and what is in the log of it."""
    merchants = ["acme", *(f"m{n:03d}" for n in range(30))]
    app.endpoints.set_many(
        (
            f"push.{merchant}",
            {
                "url": f"https://{merchant}.example/hooks",
                "headers": {"x-shop": "7", "authorization": "Bearer demo"},
                "events": ["order.*"],
            },
        )
        for merchant in merchants
    )
    app.endpoint("push.m003").disable("gone: the receiver answered 410")
    now_us, failing = app.engine.time_us(), ("push.acme", "push.m007")

    def fail(record):
        record.condition.failing_since_us = now_us - 1500 * SECOND
        record.condition.failures, record.condition.text = 41, "HTTP 503: Service Unavailable"
        record.condition.opened_us = now_us - 20 * SECOND
        return record

    table.update(app.engine, failing[0], fail)
    events.EndpointEvents(app.engine).add("opened", failing[0], "HTTP 503: Service Unavailable")
    app.topic(failing[0]).back_off("4m")
    entries = []
    for n in range(60):
        is_bad = n > 30 and n % 7
        entry = Entry(
            id=f"order-{10_000 + n}",
            attempt=1 + (n % 3 if is_bad else 0),
            result="backed_off" if is_bad else "acked",
            status=503 if is_bad else 200,
            text="HTTP 503: Service Unavailable" if is_bad else "HTTP 200",
            ms=(1.0, 12.0, 31.0, 80.0 + n * 3, 82.0 + n * 3),
            got={"server": "nginx", "content-type": "text/plain"},
            body="upstream connect error" if is_bad else "ok",
            sender="web-1:4100",
        )
        at_us = now_us - (60 - n) * 30 * SECOND
        entries.append(LogEntry("push.acme", at_us, msgspec.json.encode(entry)))
    app.engine.delivery_log_append(entries, keep_us=14 * 86_400 * SECOND, max_bytes=1 << 30)


def _work(app: Laneway, engine) -> None:
    """Deliver some, and let some fail."""
    batch = engine.lease(400)
    settlements = []
    for n, lease in enumerate(batch.leases):
        if n % 9 == 0:
            error = ERRORS[n // 9 % 3]
            settlements.append(
                Settlement(
                    lease.handle, lease.fence, "dead", reason="no attempts left (5)", error=error
                )
            )
        elif n % 7 == 0:
            settlements.append(
                Settlement(
                    lease.handle, lease.fence, "retry", delay_us=600 * SECOND, error=ERRORS[n % 3]
                )
            )
        elif n % 5:
            settlements.append(Settlement(lease.handle, lease.fence, "ack"))
    engine.settle(settlements)


def beat(engine) -> None:
    """The heartbeats of four workers; the last one is late, and of an older version."""
    now_us = engine.time_us()
    for n, (host, version) in enumerate(
        (("web-1", "2.4.0"), ("web-1", "2.4.0"), ("web-2", "2.4.0"), ("web-3", "2.3.9"))
    ):
        since_us = now_us - (3 + 900 * (n == 3)) * SECOND
        facts = WorkerFacts(
            id=f"{host}-{4100 + n}",
            host=host,
            pid=4100 + n,
            program="shop",
            version=version,
            laneway="0.1.0",
            pools=["default"],
            concurrency=16,
            busy=(11, 14, 7, 16)[n],
            busy_topics={"push.acme": (6.2, 7.0, 3.1, 9.5)[n], f"push.m{n:03d}": 2.25},
            leased=(14, 18, 9, 20)[n],
            oldest=RunningMessage("push.acme", f"order-{10_017 + n}", since_us),
            loop_lag=(0.002, 0.004, 0.001, 0.84)[n],
        )
        engine.beat(facts, dead_after_us=3600 * SECOND, listed_us=7200 * SECOND)


BEAT_SECONDS = 0.5
WARM_UP_SECONDS = 25.0
"""How long before the first picture messages flow, so that charts do not end with a gap."""


def flow(app: Laneway) -> None:
    """What comes in and is done between two heartbeats, about as the history has it."""
    per_beat = round(220 * BEAT_SECONDS)
    names = ["acme"] * 150 + [f"m{n:03d}" for n in range(0, MERCHANTS, 4)]
    app.publish_many(
        (Message(f"push.{random.choice(names)}", {"order": n}) for n in range(per_beat)),
        progress=False,
    )
    leases = app.engine.lease(round(140 * BEAT_SECONDS)).leases
    app.engine.settle(
        [
            Settlement(lease.handle, lease.fence, "ack")
            if n % 60
            else Settlement(
                lease.handle, lease.fence, "retry", delay_us=600 * SECOND, error=ERRORS[0]
            )
            for n, lease in enumerate(leases)
        ]
    )


def _audit(app: Laneway) -> None:
    """What operators changed, and two tokens."""
    for name, scopes, topics in (
        ("deploy", ["admin"], None),
        ("acme", ["read", "endpoints"], ["push.acme"]),
    ):
        tokens.create(app.engine, name, scopes, topics=topics)
    for n, (who, method, path, request) in enumerate(
        (
            ("ann", "POST", "/v1/topics/push.m003/pause", None),
            ("bob", "PATCH", "/v1/policies/push.*", {"rate": "50/s", "concurrency": 8}),
            ("deploy", "POST", "/v1/dead/redrive", {"topic": "push.m007", "rate": "10/s"}),
        )
    ):
        change = audit_log.Change(
            who=who,
            address="10.0.0.7",
            method=method,
            path=path,
            at_us=app.engine.time_us() - (3 - n) * 800 * SECOND,
            request=msgspec.Raw(msgspec.json.encode(request)),
            pattern="push.*" if method == "PATCH" else None,
            undo={"rate": "20/s"} if method == "PATCH" else None,
        )
        audit_log.append(app.engine, change)
    by_command = audit_log.Change(
        who="carol",
        address="command line",
        method="laneway",
        path="purge",
        at_us=app.engine.time_us() - 90 * SECOND,
        request=msgspec.Raw(b'{"topic":"mail.digest","yes":true}'),
    )
    audit_log.append(app.engine, by_command)


def _doctor(engine) -> None:
    """A check of the doctor that found something."""
    now_us = engine.time_us()
    checks = [
        *(check for check in engine.doctor() if check.name != "cache"),
        finding("policies", 1, "files that do not have the current policies", repair=False),
    ]
    operation = operations.Operation(
        kind="doctor",
        who="ann",
        done=len(checks),
        total=len(checks),
        state="done",
        started_us=now_us - 310 * SECOND,
        written_us=now_us - 300 * SECOND,
        ended_us=now_us - 300 * SECOND,
        checks=checks,
    )
    record = msgspec.json.encode(operation)
    engine.record_swap(operations.KIND, f"{operations.PREFIX}0000demo", None, record)


def _write_history(engine) -> None:
    """Two hours of rows by 10 s, and a week by quarter of an hour."""
    now_us = engine.time_us()
    for seconds, count in ((10, RINGS[10] - 1), (60, 1500), (900, 700)):
        records = {}
        for back in range(count, 0, -1):
            at = now_us - back * seconds * SECOND
            records[name_of(seconds, at)] = encode(_history_row(at, seconds, now_us))
        before = engine.history_read(["demo"])[0]
        engine.history_write("demo", before, {**records, "demo": str(seconds).encode()})


def _history_row(at_us: int, seconds: int, now_us: int) -> Row:
    ago = (now_us - at_us) / SECOND
    wave = 1 + 0.3 * math.sin(at_us / SECOND / 5400 * math.tau) + random.uniform(-0.06, 0.06)
    flood = 1.7 if ago < 1500 else 1.0
    waiting = int(9000 + max(0.0, 1500 - ago) * 9) if ago < 1500 else int(900 * wave)
    cells, waits = [], []
    for tier, part in (("high", 0.55), ("mid", 0.36), ("low", 0.09)):
        per = 210 * wave * part * seconds
        failed = int(per * (0.09 if 600 < ago < 1200 else 0.012))
        cells.append(
            Cell(
                tier,
                "push.*" if tier == "mid" else "*",
                published=int(per * flood),
                delivered=int(per),
                done=int(per) - failed,
                retried=failed,
                died=failed // 6,
                throttled_us=int(per * 2000),
                waiting=int(waiting * part),
                oldest_us=int((max(2.0, min(240.0, 1500 - ago) if ago < 1500 else 3)) * SECOND),
            )
        )
        quick = [int(per * each) for each in (0.1, 0.3, 0.3, 0.15, 0.1, 0.03, 0.02)]
        rest = [0] * (len(WAIT_BOUNDS_US) + 1 - len(quick))
        slow = [0] * (len(WAIT_BOUNDS_US) + 1)
        slow[2 if ago > 1500 else min(10, 4 + int((1500 - ago) / 150))] = int(per)
        waits.append(WaitCounts(tier, slow, quick + rest))
    row = Row(at_us, at_us, at_us + seconds * SECOND, waiting, cells, waits)
    row.ages = _ages(ago)
    row.gates = {"psp": round(seconds * SECOND * 0.64)} if ago < 2400 else {}
    row.handlers = {
        name: _durations(seconds, *each, slower=name == "shop.deliver" and ago < 1500)
        for name, each in HANDLERS.items()
    }
    return row


HANDLERS = {
    "shop.deliver": (140, 0.06, 4.5),
    "shop.receipt": (48, 0.001, 2.2),
    "billing.capture": (9, 0.02, 5.2),
    "reports.nightly": (0.2, 0.0, 8.4),
}
"""Handlers: attempts a second, the part that fails, and the class of their usual duration."""


def _ages(ago: float) -> bytes:
    """One bucket floods for 25 minutes, two are slow all the time; the rest is quick."""
    found = bytearray(random.choice((3, 4, 5, 5, 6)) for _ in range(AGE_BUCKETS))
    found[17] = 8 if ago > 2400 else 9
    found[41] = 7 + (ago < 3000)
    if ago < 1500:
        found[bucket_of("push.acme")] = 9 + (ago < 1200) + (ago < 300)
    return bytes(found)


def _durations(
    seconds: int, rate: float, failing: float, usual: float, *, slower: bool
) -> HandlerCounts:
    counts = [0] * (len(WAIT_BOUNDS_US) + 1)
    for _ in range(200):
        place = round(random.gauss(usual + 1.5 * slower, 0.9 if slower else 0.6))
        counts[min(len(counts) - 1, max(0, place))] += 1
    counts = [round(count * rate * seconds / 200) for count in counts]
    return HandlerCounts(round(sum(counts) * failing * (4 if slower else 1)), counts)


# Serving and taking pictures


@contextlib.contextmanager
def serving(app: Laneway, *, beats: bool):
    """A gateway with the dashboard, in a thread. Yields its URL."""
    gateway = Gateway(app, is_open=True, extensions=[Dashboard(app, [Link("shop-eu", "/")])])
    config = uvicorn.Config(gateway, port=0, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ended = threading.Event()

    def keep_beating() -> None:
        while beats and not ended.wait(BEAT_SECONDS):
            beat(app.engine)
            flow(app)

    beating = threading.Thread(target=keep_beating, daemon=True)
    if beats:
        beat(app.engine)
    beating.start()
    while not server.started:
        time.sleep(0.05)
    if beats:
        ended.wait(WARM_UP_SECONDS)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        ended.set()
        beating.join()
        gateway.stop()
        server.should_exit = True
        thread.join(10)
        gateway.close()


FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


TALLEST = 8000
"""Pixels of the tallest picture."""

SHEET_STYLE = """body { margin: 8px; columns: %d; column-gap: 8px; background: #777; }
figure { margin: 0 0 8px; break-inside: avoid; font: 12px sans-serif; }
img { width: 100%%; max-height: 1800px; object-fit: cover; object-position: top; }"""

FAULTS = """() => {
  const faults = [], over = document.documentElement.scrollWidth - innerWidth;
  const left_out = ".scroll, .unseen, svg, .uplot, pre, details:not([open]) > :not(summary)";
  if (over > 0) faults.push(`wider than the page by ${over} px`);
  for (const each of document.querySelectorAll("main *")) {
    if (each.closest(left_out)) continue;
    const { width, right } = each.getBoundingClientRect();
    const name = `${each.tagName}.${each.className}`;
    if (width && right > innerWidth + 1) faults.push(`${name} ends at ${Math.round(right)} px`);
    const isCut = each.scrollWidth > each.clientWidth + 2;
    if (isCut && getComputedStyle(each).overflowX === "hidden") faults.push(`${name} is cut off`);
  }
  return [...new Set(faults)].slice(0, 8);
}"""
"""What a browser can say of a page's faults."""


def take(url: str, folder: Path, arguments: argparse.Namespace, after_loading, shown) -> None:
    """Take the pictures of the pages `shown`. `after_loading`: is called before each one."""
    from playwright.sync_api import sync_playwright

    chosen = [
        (name, theme, width)
        for theme in arguments.themes
        for width in WIDTHS
        for name in shown
        if (not arguments.only or name in arguments.only)
        and (arguments.all or name not in NOT_IN_DOCS)
    ]
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium") or "/usr/bin/chromium", args=FLAGS
        )
        for name, theme, width in chosen:
            page = browser.new_page(
                viewport={"width": WIDTHS[width], "height": 760},
                color_scheme=theme,
                locale="en-US",
            )
            page.on("console", lambda each: print("console:", each.type, each.text))
            page.on("pageerror", lambda each: print("error:", each))
            page.goto(url + shown[name])
            page.wait_for_timeout(1600)
            after_loading(page)
            suffix = f"-{theme}-{width}"
            if arguments.all:
                # As tall as the page, so that nothing sticks to the middle of the picture.
                height = page.evaluate("document.documentElement.scrollHeight")
                page.set_viewport_size({"width": WIDTHS[width], "height": min(height, TALLEST)})
                _tell_faults(page, f"{name}{suffix}")
                page.screenshot(path=folder / f"dashboard-{name}{suffix}.png")
            else:
                _tell_faults(page, f"{name}{suffix}")
                _save(page, folder / f"{name}{suffix}.webp")
            page.close()
        browser.close()


def _save(page, place: Path) -> None:
    """Write what is visible as WebP, which only the browser's own protocol can do."""
    found = page.context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "webp", "quality": QUALITY}
    )
    place.write_bytes(base64.b64decode(found["data"]))


def _tell_faults(page, name: str) -> None:
    """Print what is wider than the page, and text that is cut off."""
    for fault in page.evaluate(FAULTS):
        print(f"{name}: {fault}")


def sheets(folder: Path) -> None:
    """Put the pictures of each theme and width on one sheet, `sheet-THEME-WIDTH.png`."""
    from playwright.sync_api import sync_playwright

    kinds: dict[str, list[Path]] = {}
    for each in sorted(folder.glob("dashboard-*-*.png")):
        kind = re.search(r"-(\w+-(?:wide|narrow))\.png$", each.name)
        if kind is not None:
            kinds.setdefault(kind[1], []).append(each)
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium") or "/usr/bin/chromium", args=FLAGS
        )
        for kind, pictures in kinds.items():
            columns = 6 if kind.endswith("narrow") else 3
            figures = "".join(
                f"<figure><figcaption>{each.stem}</figcaption><img src='{each.resolve().as_uri()}'>"
                "</figure>"
                for each in pictures
            )
            sheet = folder / "sheet.html"
            sheet.write_text(f"<!doctype html><style>{SHEET_STYLE % columns}</style>{figures}")
            page = browser.new_page(viewport={"width": 2400, "height": 800})
            page.goto(sheet.resolve().as_uri())
            page.screenshot(path=folder / f"sheet-{kind}.png", full_page=True)
            page.close()
            sheet.unlink()
        browser.close()


def breaking(app: Laneway, store: str):
    """What breaks the store under an open page, and repairs it for the next one."""
    if store != "broken":
        return lambda page: None
    names = (
        *("overview", "topic_list", "topic_stats", "workers", "explain", "dead_list"),
        *("records", "record_read", "delivery_log_read"),
    )

    def away(*_, **__):
        raise EngineUnavailable("valkey://shop does not answer: connection refused")

    def break_and_wait(page) -> None:
        for name in names:
            setattr(app.engine, name, away)
        with contextlib.suppress(Exception):
            page.wait_for_selector("[data-live-state][data-kind=bad]", timeout=12_000)
        for name in names:
            delattr(app.engine, name)

    return break_and_wait


def main() -> None:
    """Take the pictures that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--store", choices=STORES, default="busy")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--themes", nargs="+", choices=THEMES, default=THEMES)
    parser.add_argument("--sheets", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    shown = SHOWN
    with (
        tempfile.TemporaryDirectory() as folder,
        Laneway(f"sqlite:///{folder}/shop.db", namespace="shop") as app,
    ):
        if arguments.store == "hostile":
            with patch.dict(os.environ, {KEY_VARIABLE: new_key()}):
                pictures_hostile.fill(app)
            with patch.dict(HANDLERS, pictures_hostile.HANDLERS, clear=True):
                _write_history(app.engine)
            task = {"task": pictures_hostile.BIDI}
            shown = {
                **HOSTILE_SHOWN,
                "jobs": "/jobs?" + urlencode(task),
                "flow": pictures_hostile.flow(app),
            }
        elif arguments.store != "empty":
            fill(app)
            _audit(app)
            _doctor(app.engine)
        with serving(app, beats=arguments.store == "busy") as url:
            take(url, arguments.folder, arguments, breaking(app, arguments.store), shown)
    if arguments.sheets:
        sheets(arguments.folder)


if __name__ == "__main__":
    main()
