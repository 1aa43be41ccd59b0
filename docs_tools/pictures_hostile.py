"""A demo store in which everything that users write is as bad as it may be, for `pictures.py`."""

from __future__ import annotations

import contextlib

import msgspec

from laneway import Laneway, Message, chain, chord
from laneway.engines.base import LogEntry, RunningMessage, WorkerFacts
from laneway.errors import LanewayError
from laneway.message import Settlement
from laneway.push import table
from laneway.push.delivery_log import Entry
from laneway.units import SECOND

BIDI = "push.<b>bold</b>\u202etxt.exe\u2066 {{7+7}} ' \" & ]]>"
LONG = "push." + "a_very_long_merchant_name_without_any_dash_" * 5
NAMES = (LONG[:200], BIDI, "push.\U0001f525" * 8, "push.ÜñïçødéÄÖ日本語العربية")
"""Names of topics: 200 characters, markup and bidirectional text, emoji, scripts."""

STACK = "Traceback (most recent call last):\n" + "".join(
    f'  File "/srv/shop/deliver.py", line {n}, in deliver_{n}\n    raise ShopError({"x" * 60!r})\n'
    for n in range(400)
)
ERROR = STACK + "shop.errors.ShopError: " + "no_space_" * 400
"""An error text of 50 kB."""

HANDLERS = {
    LONG[:200]: (140, 0.9, 4.5),
    BIDI: (0.001, 1.0, 13.6),
    "\U0001f525" * 40: (1_000_000, 0.001, 0.2),
    "ÜñïçødéÄÖ日本語العربية." * 6: (9, 0.02, 8.0),
}
"""Handlers with names of these kinds, as `pictures.HANDLERS`."""


def flow(app: Laneway) -> str:
    """Begin a flow of tasks with such names that waits; the path of its page."""

    @app.task(name=LONG[:200], topic="flow.part.{n}", retries=0)
    def part(n: int) -> int:
        return n

    @app.task(name=BIDI, topic="flow.total")
    def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="\U0001f525" * 40, topic="flow.next")
    def after(number: int) -> None:
        del number

    chain(chord([part.s(n) for n in range(60)], total.s()), after.s()).enqueue()
    app.run_worker(burst=True, topics=[f"flow.part.{n}" for n in range(30)])
    (body,) = app.engine.topic_peek("flow.total")
    return f"/jobs?id={body.id}&topic=flow.total"


def fill(app: Laneway) -> None:
    """Fill an empty store."""
    engine = app.engine
    app.gate(LONG[5:100], concurrency=1, rate="1/h")
    app.policy("push.*", rate="1/min", concurrency=1, gate=LONG[5:100], retries=1_000_000)
    app.gate("<i>g</i>", concurrency=1_000_000, rate=1_000_000)
    app.topic_group(LONG[5:100], weight=0.01, concurrency=1)
    app.policy("shop.*", group=LONG[5:100])
    for name in NAMES:
        app.publish_many(
            [
                Message(name, {"n": n, "text": "\u202e<script>alert(1)</script>" * 20}, key=name)
                for n in range(3)
            ]
        )
        app.publish(name.replace("push.", "mail."), "x" * 500_000, id="huge", key="k" * 200)
        app.publish(name.replace("push.", "shop."), 1)
    leases = engine.lease(12, topics=[name.replace("push.", "mail.") for name in NAMES]).leases
    engine.settle(
        [Settlement(each.handle, each.fence, "dead", reason=LONG, error=ERROR) for each in leases]
    )
    app.publish(
        "mail.huge",
        {"rows": [{"id": n, "name": "x" * 40, "deep": {"a": [None] * 5}} for n in range(4000)]},
        id="huge",
        headers={f"x-header-{n}-" + "h" * 60: "v" * 900 for n in range(20)},
    )
    for lease in engine.lease(1, topics=["mail.huge"]).leases:
        engine.settle(
            [Settlement(lease.handle, lease.fence, "retry", delay_us=SECOND, error=ERROR)]
        )
    app.schedules.add(LONG[:150], Message(BIDI, 1), cron="0 3 * * *")
    app.topic(NAMES[1]).pause()
    _endpoints(app)
    beat(engine)


def _endpoints(app: Laneway) -> None:
    now_us = app.engine.time_us()
    entries = []
    for name in NAMES:
        with contextlib.suppress(LanewayError):
            app.endpoint(name, url="https://shop.example/" + "a" * 1500, headers={"x-a": "b" * 900})

            def fail(record: table.Record | None) -> table.Record:
                assert record is not None
                condition = record.condition
                condition.failing_since_us, condition.failures = now_us - 86_400 * SECOND, 999_999
                condition.text = condition.attention = "HTTP 500: " + "<b>error</b>" * 15
                return record

            table.update(app.engine, name, fail)
            entry = Entry(
                id="huge",
                attempt=999,
                result="retried",
                status=500,
                text="HTTP 500: " + "<b>error</b>" * 40,
                ms=(1.0, 12.0, 31.0, 80_000.0, 82_000.0),
                got={"x-" + "h" * 100: "v" * 900},
                body="<html>" + "\u202eerror " * 500,
                sender="host-" + "h" * 80,
            )
            entries.append(LogEntry(name, now_us, msgspec.json.encode(entry)))
    app.engine.delivery_log_append(entries, keep_us=14 * 86_400 * SECOND, max_bytes=1 << 30)


def beat(engine) -> None:
    """A worker with names of the longest kind, which was killed while it was busy."""
    now_us = engine.time_us()
    facts = WorkerFacts(
        id="host-" + "h" * 90,
        host="host-" + "h" * 90,
        pid=4_194_303,
        program="<b>shop</b>",
        version="2026.11.22+" + "f" * 40,
        laneway="0.1.0",
        pools=["pool-" + "p" * 40, "default"],
        concurrency=10_000,
        busy=9_999,
        busy_topics={NAMES[0]: 9_999.0},
        leased=1_000_000,
        oldest=RunningMessage(NAMES[0], "i" * 200, now_us - 90_000 * SECOND),
        loop_lag=120.0,
    )
    engine.beat(facts, dead_after_us=SECOND, listed_us=600 * SECOND)
