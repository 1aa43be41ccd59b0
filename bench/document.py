"""
Writes docs/benchmarks.md and its charts from bench/figures.json, the figures that are kept.

    python -m bench.document                                write both again
    python -m bench.document --keep bench/results/full/*.json     take new results first

A new result replaces the table of the same benchmark and engine; rows of `bench.peers` replace
those of the same peers only, so that a run of some peers (--peers) can be added.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.chart import drain_chart, name_of, number, shown, soak_chart

DOCS = Path(__file__).parents[1] / "docs"
FIGURES = Path(__file__).parent / "figures.json"
PAGE, CHART = DOCS / "benchmarks.md", DOCS / "drain.svg"
ENGINES = {
    "sqlite": "SQLite",
    "valkey": "Valkey",
    "redis": "Redis",
    "cluster": "Valkey cluster",
    "postgres": "PostgreSQL",
}
Table = dict[str, Any]
Row = dict[str, Any]


class Section(NamedTuple):
    """A part of the page: the benchmark, a heading, what it measures, and which rows are shown."""

    bench: str
    heading: str
    about: str
    shown: Callable[[Row], bool] = lambda _: True
    engines: tuple[str, ...] = tuple(ENGINES)


SECTIONS = (
    Section(
        "peers",
        "Compared with other queues",
        "Tasks that do nothing, published by one client and then drained by one worker process:"
        " 100,000 where a library publishes in bulk, 10,000 otherwise and one at a time.\n"
        "Each library runs with the best settings that we found; the last column names them.\n"
        "Columns: messages per second published one at a time and in bulk; tasks per second drained"
        " when they are spread over that many queues; the median time in milliseconds until an idle"
        " worker starts a task.\n"
        "`-`: not supported, or one worker cannot serve that many queues.\n"
        "`~`: not drained within the time limit; the rate until then.",
    ),
    Section(
        "beside_postgres",
        "On PostgreSQL, compared with other queues",
        "Tasks that do nothing, published in bulk and then drained by one worker process.\n"
        "Processor time, in microseconds, and bytes are those of one task, for the client (the"
        " publisher or the worker) and for the server; bytes of the database are counted while all"
        " tasks wait.",
    ),
    Section(
        "topics",
        "One topic to a million",
        "The same messages, spread over more and more topics: published in bulk, then drained by"
        " one worker with an async handler that does nothing.",
    ),
    Section(
        "engine",
        "The engine alone",
        "Put, lease and settle in batches of 500 with all policies in force, compared with the same"
        " storage operations without policies (`raw`), in the same run.",
    ),
    Section(
        "features",
        "What features cost",
        "Put, lease and settle in batches of 500 with one feature each, and with all of them"
        " together.\n"
        "The ratio is to plain messages in the same run, over all three steps.",
    ),
    Section("endtoend", "End to end", "Publish, lease, handle and settle with real workers."),
    Section(
        "processes",
        "Several processes",
        "Two and four worker processes compared with one, on a store with one lock and with four.",
    ),
    Section(
        "network",
        "A distant store",
        "One worker with handlers that do nothing, over a network that needs a millisecond each"
        " way, and without it.",
        engines=("postgres",),
    ),
    Section("publish", "Publishing", "Messages per second by the way they are published."),
    Section(
        "spool",
        "Publishing without waiting",
        "Messages per second that one thread publishes into a buffer in memory and into a spool,"
        " compared with `publish_many`; and until the store has them.",
    ),
    Section("latency", "Latency", "The time until an idle worker starts a message."),
    Section(
        "single",
        "Single calls",
        "Sequential calls, and calls of 100 coroutines, compared with those of other libraries.",
    ),
    Section(
        "tasks",
        "Tasks and results",
        "Task throughput and latency, end to end, compared with other task libraries.",
    ),
    Section(
        "typed",
        "Typed tasks and messages",
        "What a typed task costs one worker process compared with a plain message, and what"
        " bee-queue drains in the same run.",
        engines=("sqlite",),  # its rows are of both engines
    ),
    Section(
        "policies",
        "Policies",
        "The cost of one exact policy when other topics have policies of their own.",
    ),
    Section(
        "limited",
        "Limits on every topic",
        "The cost of a lease of 500 messages when each topic has a rate and a concurrency limit.",
    ),
    Section(
        "adaptive",
        "Concurrency that adapts",
        "Calls a second at a simulated destination whose capacity changes, with"
        ' `concurrency="auto"`, compared with the best fixed limit.',
    ),
    Section(
        "groups",
        "Topic groups",
        "What a lease of 500 messages costs when its topics are in groups.",
    ),
    Section(
        "others",
        "Topics of other workers",
        "What topics that only other workers serve cost a worker whose handlers cover three topics:"
        " how fast it drains 5,000 messages; and how long a webhook waits for a reserved slot while"
        " handlers of one second for the other topics hold all common slots.",
    ),
    Section(
        "floods",
        "Messages that are due at one time",
        "How late another customer's messages are while many of one customer arrive, or expire, at"
        " one time; without priorities or tiers.",
    ),
    Section(
        "subscriptions",
        "Subscriptions",
        "What a subscription's copy costs compared with a plain message, over put, lease and"
        " settle.",
    ),
    Section(
        "top",
        "Lists of the largest topics",
        "The time of `topics(order=…)`, the first 20, among 1,000,000 topics.",
        lambda row: row["topics"] == "many" and row["pattern"] != "other.*",
    ),
    Section(
        "push",
        "Push",
        "Signed requests to webhook receivers on the same machine, compared with HTTP clients"
        " that send the same bodies and do nothing else.",
    ),
    Section(
        "push_neighbors",
        "Push and bad endpoints",
        "From publishing to the receiver, while one endpoint hangs and another asks for pauses.",
    ),
    Section(
        "push_names",
        "Push with names that do not resolve",
        "As above, while the look-ups of other endpoints' names never get an answer.\n"
        "The control has the same endpoints, paused: what their topics cost without look-ups.",
    ),
    Section("reads", "Reads at 1,000,000 topics", "A page of topics, `explain` and `stats`."),
    Section(
        "gateway",
        "HTTP gateway",
        "Requests to `laneway serve` on loopback, client and server on the same two cores.",
    ),
    Section(
        "dashboard",
        "Pages of the dashboard",
        "Each page as a browser gets it, and a second of live pages with one viewer and with 200.\n"
        "With up to 1,000 topics, the latest figures are read topic by topic, so some pages cost"
        " more than with many.\n"
        "With 60 endpoints of 30 logged attempts each and 1,000,000 topics (SQLite, 27 Nov 2026,"
        " other programs running), the slowest pages took 28.0 ms (`/endpoints`), 13.4 ms"
        " (`/fairness`) and 13.1 ms (`/`) of processor time."
        "\n`python -m bench.dashboard --topics 1e6 --endpoints 60` repeats it.",
    ),
    Section("dev", "laneway dev", "How long a developer waits."),
    Section("fairness", "Fairness", "How long quiet topics wait while one topic is flooded."),
    Section(
        "rates",
        "Rates",
        "How exactly a rate limit holds with the default burst and two workers.",
    ),
    Section("backlog", "Deep backlogs", "Throughput as the backlog grows."),
    Section("waiting", "Idle workers", "What 1,000 idle workers cost a server."),
    Section(
        "workers",
        "Heartbeats",
        "What the heartbeats of many workers cost the store, and the plain path during them.",
    ),
    Section(
        "locality",
        "Shards of workers",
        "How often a topic changes its worker, with and without shards of the workers' own.",
    ),
    Section(
        "capacity",
        "Predicted and measured",
        "What `laneway capacity` predicts from the costs of one server, compared with what was"
        " measured: microseconds of processor time, round trips and bytes of one message.\n"
        "All nodes share one machine, so only counters are compared.",
    ),
    Section(
        "lifetime",
        "Topics over a lifetime",
        "Entries and bytes that distinct topics leave in the store after they have ended.",
    ),
    Section("scale", "Cluster", "Throughput of a cluster compared with one server."),
    Section(
        "soak",
        "Soak",
        "Half the highest rate for a long time, with topics that come and go, policies that change"
        " each second, and a worker killed each minute.\n"
        "Flat: the mean of the last sixth is within the spread of the second sixth.\n"
        "Both engines ran at the same time on the two cores: each at half the highest rate that it"
        " reached along with the other one, while tests of low priority ran too.\n"
        "SQLite's file keeps the size of the largest backlog so far.\n"
        "The benchmark makes a backlog of 4 seconds in the first sixth; a kill on a busy machine"
        " leaves fewer messages waiting than that.",
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keep", type=Path, nargs="+", default=[], help="result files to take over"
    )
    parser.add_argument("--note", help="a sentence about the machine during the run")
    chosen = parser.parse_args()
    kept = json.loads(FIGURES.read_text())
    if chosen.note is not None:
        kept["note"] = chosen.note
    for path in chosen.keep:
        keep(kept["tables"], json.loads(path.read_text()))
    if chosen.keep or chosen.note is not None:
        FIGURES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(kept))
    CHART.write_text(chart(kept))
    for table in kept["tables"]:
        if table["bench"] == "soak":
            _soak_path(table).write_text(
                soak_chart(
                    ENGINES[engine(table)],
                    table["repeats"]["each minute"],
                    table["notes"].partition(":")[0] + ".",
                )
            )


def _soak_path(table: Table) -> Path:
    return DOCS / f"soak-{engine(table)}.svg"


def keep(tables: list[Table], new: Table) -> None:
    """Put a result in the place of the kept one."""
    place = next((n for n, old in enumerate(tables) if _key(old) == _key(new)), None)
    if place is None:
        tables.append(new)
        return
    if new["bench"] == "peers":
        new = _with_other_peers(tables[place], new)
    tables[place] = new


def _with_other_peers(old: Table, new: Table) -> Table:
    """The new rows; peers that were not measured again, or failed, keep theirs, with their date."""
    measured = [row for row in new["figures"] if any(number(value) for value in row.values())]
    names = {_peer(row) for row in measured}
    others = [
        {"date": old["machine"]["date"], **row} for row in old["figures"] if _peer(row) not in names
    ]
    return {**new, "figures": [*measured, *others]}


def _peer(row: Row) -> str:
    return f"{name_of(row)}, {'SQLite' if 'SQLite' in row['settings'] else ''}"


def _key(table: Table) -> tuple[str, str]:
    return table["bench"], engine(table)


def engine(table: Table) -> str:
    """The engine that a result was measured with, from its command."""
    words = table["command"].split()
    return words[words.index("--engine") + 1] if "--engine" in words else "sqlite"


def chart(kept: dict[str, Any]) -> str:
    """The SVG."""
    peers = next(table for table in kept["tables"] if table["bench"] == "peers")
    machine = peers["machine"]
    days = {row["date"] for row in peers["figures"] if "date" in row}
    other_run = f"; * {', '.join(map(_date, sorted(days)))}" if days else ""
    notes = [
        "not possible: one worker cannot serve that many queues.  ~ not finished; rate until then.",
        f"{_date(machine['date'])}{other_run}.  {machine['cpus']} cores, tasks that do nothing.",
    ]
    return drain_chart(peers["figures"], notes)


def page(kept: dict[str, Any]) -> str:
    """The Markdown page."""
    parts = [
        "# Benchmarks",
        "<!-- Written by `python -m bench.document` from bench/figures.json: do not edit. -->",
        "Every figure comes from a program in `bench/`; its command is above each table.\n"
        + _filled("`make bench` runs all of them, peers included.\n" + kept["note"]),
        _summary(kept["tables"]),
        "![Tasks per second drained by one worker over 1 to 10,000 queues](drain.svg)",
    ]
    for section in SECTIONS:
        tables = [
            table
            for table in kept["tables"]
            if table["bench"] == section.bench and engine(table) in section.engines
        ]
        if tables:
            parts += [f"## {section.heading}", _filled(section.about)]
            for table in tables:
                parts += _table(table, section)
    return "\n\n".join(parts) + "\n"


def _summary(tables: list[Table]) -> str:
    """What most readers need, from the tables below."""

    def rows_of(bench: str, name: str) -> list[Row]:
        return next(
            table["figures"]
            for table in tables
            if table["bench"] == bench and engine(table) == name
        )

    def worker(name: str, topics: int) -> str:
        row = next(
            row
            for row in rows_of("typed", "sqlite")
            if (row[""], row["topics"], row["kind"]) == (name, topics, "messages")
        )
        return f"{_cell(row['drained/s'])}/s at {_cell(row['worker CPU us'])} µs"

    def put(name: str) -> str:
        rows = rows_of("topics", name)
        first, last = rows[0], rows[-1]
        return (
            f"{_cell(first['publish_many/s'])}/s; over {last['topics']} topics"
            f" {_cell(last['publish_many/s'])}/s"
        )

    def start(name: str) -> str:
        row = rows_of("latency", name)[1]
        return f"{_cell(row['p50 ms'])} ms, p99 {_cell(row['p99 ms'])} ms"

    lines = [
        ("", "SQLite, fsync", "Valkey, memory"),
        ("---", "---", "---"),
        (
            "one worker, one topic: rate, and processor time of the worker for a message",
            worker("SQLite, fsync", 1),
            worker("Valkey, memory", 1),
        ),
        (
            "the same over 1,000 topics",
            worker("SQLite, fsync", 1000),
            worker("Valkey, memory", 1000),
        ),
        ("publish in bulk, one topic (SQLite: memory)", put("sqlite"), put("valkey")),
        ("an idle worker starts a message: median", start("sqlite"), start("valkey")),
    ]
    return "\n".join(
        [
            "## Four figures\n",
            *(f"| {' | '.join(cells)} |" for cells in lines),
            "",
            "Handlers do nothing, on two shared cores.",
            "On Valkey, the server's processor time is added to the worker's.",
            "A difference of less than 10 % is a tie, and rates in tables of different days differ",
            "by up to a factor of two.",
            "Processor time for a message is steadier: plan with it, see [Capacity](capacity.md).",
        ]
    )


def _table(table: Table, section: Section) -> Iterator[str]:
    rows = [row for row in table["figures"] if section.shown(row)]
    days = {row["date"] for row in rows if "date" in row}
    if section.bench not in ("peers", "beside_postgres"):
        yield f"### {section.heading}: {ENGINES.get(engine(table), engine(table))}"
    machine = table["machine"]
    yield f"`{table['command']}`\n" + _filled(
        f"{_date(machine['date'])}, {machine['cpus']} cores, Python {machine['python']},"
        f" SQLite {machine['sqlite']}; {table['notes']}."
    )
    columns = [name for name in rows[0] if name != "date"]
    shown = ["compared with" if name == "beside" else name for name in columns]
    lines = [shown, ["---" if n == 0 else "---:" for n in range(len(columns))]]
    for row in rows:
        cells = [_cell(row[name]) for name in columns]
        cells[0] += f" ({_date(row['date'])})" if "date" in row else ""
        lines.append(cells)
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    if section.bench == "soak":
        yield f"![Each quantity over the time of the soak]({_soak_path(table).name})"
    if days:
        yield "Rows with a date were measured in another run, on that day."


def _filled(text: str) -> str:
    """Each line of the text in lines of at most 100 characters."""
    return "\n".join(textwrap.fill(line, 100) for line in text.splitlines())


def _cell(value: object) -> str:
    is_figure = isinstance(value, int | float) or str(value).startswith("~")
    return shown(value) if is_figure else "–" if value is None else str(value)


def _date(text: str) -> str:
    day = time.strptime(text, "%Y-%m-%d")
    return f"{day.tm_mday} {time.strftime('%b %Y', day)}"


if __name__ == "__main__":
    main()
