"""Shared by the benchmarks: options, timing, tables, and their JSON files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server
from tests.server_groups import Cluster

BODY = b"x" * 100
BATCH = 500
ENGINES = ("sqlite", "valkey", "redis", "cluster", "postgres")
RESULTS = Path(__file__).parent / "results"
SOURCE = Path(__file__).parents[1] / "src"


def options(
    about: str, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """
    The command line of a benchmark: --full, --quick or --smoke, --json, --seed, --engine, and the
    options that `add` adds.

    SIGTERM ends a benchmark by SystemExit, so that it stops its workers and removes its files.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--full", action="store_true", help="the full numbers, minutes (the default)"
    )
    parser.add_argument("--quick", action="store_true", help="smaller numbers, a minute at most")
    parser.add_argument("--smoke", action="store_true", help="run once, tiny: it still works")
    parser.add_argument(
        "--json",
        type=Path,
        help="where to write the figures (default: bench/results/SIZE/NAME.json)",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--engine",
        default="sqlite",
        metavar="NAME",
        help="sqlite (the default), valkey, redis, cluster, postgres, or a URL",
    )
    if add is not None:
        add(parser)
    chosen = parser.parse_args()
    if chosen.full + chosen.quick + chosen.smoke > 1:
        parser.error("--full, --quick and --smoke: name one of them")
    if chosen.engine not in ENGINES and "://" not in chosen.engine:
        parser.error(f"--engine: expected {', '.join(ENGINES)} or a URL, got {chosen.engine!r}")
    return chosen


def size(chosen: argparse.Namespace) -> str:
    """full, quick or smoke; each has its own results."""
    return "smoke" if chosen.smoke else "quick" if chosen.quick else "full"


def place(chosen: argparse.Namespace) -> str:
    """The folder of the results; for SQLite it is named after the size only."""
    name = chosen.engine.partition("://")[0]
    return size(chosen) if name == "sqlite" else f"{size(chosen)}-{name}"


def pick(chosen: argparse.Namespace, full: Any, quick: Any, smoke: Any) -> Any:
    """The value for the chosen size."""
    return smoke if chosen.smoke else quick if chosen.quick else full


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder, removed with the block."""
    with tempfile.TemporaryDirectory(prefix="laneway-bench-") as name:
        yield Path(name)


class Store:
    """The store of a benchmark: its URL and its size. This one is a file."""

    def __init__(self, url: str, path: Path | None = None) -> None:
        self.url = url
        self._path = path

    def size(self) -> int:
        """full, quick or smoke; each has its own results."""
        assert self._path is not None
        with sqlite3.connect(self._path) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()
        return self._path.stat().st_size

    def cpu(self) -> float:
        """The processor time of its servers, in seconds; a file has none."""
        return 0.0

    def left(self) -> int:
        """The number of rows or entries that belong to messages and topics."""
        assert self._path is not None
        with sqlite3.connect(self._path) as raw:
            found = sum(
                raw.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in COMES_AND_GOES
            )
        raw.close()
        return int(found)


COMES_AND_GOES = (
    "lane",
    "message",
    "ready",
    "lease",
    "event",
    "ident",
    "note",
    "merge_key",
    "serial_key",
    "dead",
)


SLOWLOG: dict[str, object] = {"slowlog_log_slower_than": 2000, "slowlog_max_len": 1000}
"""Servers note each call over 2 ms: every benchmark prints the longest one."""

SCRIPTS = ("EVAL", "EVALSHA")
"""Commands that Laneway does not use: it calls functions."""

_longest_calls: list[float] = []
"""Of servers that the benchmark has stopped, in milliseconds."""

_loads: list[float] = []
"""How long servers took to load the functions, in milliseconds, as far as it was read."""

_running: list[ServerStore] = []


def note_longest(servers: Sequence[Server]) -> None:
    """Remember the longest call of servers that the benchmark stops now."""
    _longest_calls.append(longest_call(servers))


def longest_so_far() -> float | None:
    """The longest call of all servers of this benchmark, in milliseconds; None: no server."""
    noted = [*_longest_calls, *(place.longest() for place in _running)]
    return max(noted) if noted else None


def longest_call(servers: Sequence[Server]) -> float:
    """
    Laneway's longest call in the servers' slow logs, in milliseconds; 0: none over 2 ms. Not
    `FUNCTION LOAD`, which a server runs once for each version of Laneway: see `longest_load`. Not
    the scripts of the raw ceiling and of other queues, which hold their own servers as they like.
    """
    durations = [0.0]
    for server in servers:
        for entry in server.run("SLOWLOG", "GET", 1000):
            duration, command = int(entry[2]) / 1e3, entry[3]
            if command[0] == "FUNCTION":
                _loads.append(duration)
            elif command[0] not in SCRIPTS:
                durations.append(duration)
    return max(durations)


def longest_load() -> float:
    """The longest time that a server took to load the functions, in milliseconds."""
    return max(_loads, default=0.0)


class ServerStore(Store):
    """One or more empty servers, started for the benchmark; the URL is that of the first."""

    STAYS = ("settings", "resolved", "policies", "shard", "gates", "tiers")

    def __init__(self, url: str, servers: list[Server]) -> None:
        super().__init__(url)
        self.servers = servers
        self._longest = 0.0
        self._before = self._used()

    def _used(self) -> int:
        self._longest = max(self._longest, self.longest())
        for server in self.servers:
            server.run("SLOWLOG", "RESET")  # reading it is a slow call itself
        return sum(int(server.info("used_memory")) for server in self.servers)

    def size(self) -> int:
        return self._used() - self._before

    def left(self) -> int:
        found = 0
        for server in self.servers:
            for key in server.run("KEYS", "laneway:*"):
                if key.rpartition(":")[2] not in self.STAYS:
                    kind = server.run("TYPE", key)
                    found += server.run(
                        {"hash": "HLEN", "zset": "ZCARD", "list": "LLEN"}[kind], key
                    )
        return found

    def longest(self) -> float:
        """The duration of the longest call so far, in milliseconds."""
        return max(self._longest, longest_call(self.servers))

    def cpu(self) -> float:
        return sum(
            float(server.info("used_cpu_user")) + float(server.info("used_cpu_sys"))
            for server in self.servers
        )


class PostgresStore(Store):
    """An empty PostgreSQL server, started for the benchmark."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server.url)
        self.server = server
        self._before = self._used()

    def _used(self) -> int:
        return int(self.server.execute("SELECT pg_database_size(current_database())")[0][0])

    def size(self) -> int:
        self.server.execute("VACUUM FULL")
        return self._used() - self._before

    def left(self) -> int:
        return sum(
            self.server.execute(f"SELECT count(*) FROM laneway_default.{table}")[0][0]
            for table in COMES_AND_GOES
        )

    def cpu(self) -> float:
        return self.server.cpu()


def usual(chosen: argparse.Namespace) -> str:
    """The default durability of the engine."""
    return "fsync" if chosen.engine in ("sqlite", "postgres") else "memory"


@contextmanager
def store(chosen: argparse.Namespace, durability: str = "memory") -> Iterator[Store]:
    """An empty store of the chosen engine with this durability, removed with the block."""
    if chosen.engine == "sqlite":
        with folder() as place:
            yield Store(f"sqlite:///{place}/q.db", place / "q.db")
        return
    if "://" in chosen.engine:
        yield Store(chosen.engine)
        return
    if chosen.engine == "postgres":
        with PostgresServer() as postgres:
            yield PostgresStore(postgres)
        return
    config = dict(SLOWLOG)
    if durability == "fsync":
        config |= {"appendonly": "yes", "appendfsync": "always"}
    if chosen.engine == "cluster":
        with Cluster(3, 0, **config) as cluster:
            yield from _noted(ServerStore(cluster.url, cluster.servers))
        return
    if chosen.engine == "redis":
        os.environ["LANEWAY_SERVER_BINARY"] = "redis-server"
    with Server(**config) as server:
        yield from _noted(ServerStore(server.url, [server]))


def _noted(place: ServerStore) -> Iterator[ServerStore]:
    _running.append(place)
    try:
        yield place
        _longest_calls.append(place.longest())
    finally:
        _running.remove(place)


def seconds(work: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures were measured with."""
    return {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": platform.platform(terse=True),
        "laneway": version("laneway"),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def command() -> str:
    """The command line of this run."""
    return " ".join(["python", "-m", f"bench.{Path(sys.argv[0]).stem}", *sys.argv[1:]])


def commit() -> str:
    """The measured commit; "" outside a checkout."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip()


def publish_table(
    name: str,
    chosen: argparse.Namespace,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: str = "",
    *,
    repeats: Any = None,
) -> None:
    """
    Print the table and write it as JSON; `repeats`: minimum, median and maximum of repeated
    measurements, for the JSON only.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(column), *(len(row[n]) for row in cells)) if cells else len(column)
        for n, column in enumerate(columns)
    ]
    print(f"\n{name}" + (f" ({notes})" if notes else ""))
    for line in (list(columns), *cells):
        print(
            "  "
            + "  ".join(
                cell.rjust(width) if n else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        )
    longest = longest_so_far()
    if longest is not None:
        print(
            f"  the longest call held a server up for {longest:.1f} ms (0: none over 2 ms);"
            f" loading the functions, once: {longest_load():.1f} ms"
        )
    write_figures(name, chosen, columns, rows, notes, repeats=repeats)


def write_figures(
    name: str,
    chosen: argparse.Namespace,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: str = "",
    *,
    repeats: Any = None,
) -> None:
    """
    Write the table as JSON.

    A long benchmark calls this after each row: a run that is interrupted keeps the rows so far.
    """
    bench = Path(sys.argv[0]).stem
    path = chosen.json or RESULTS / place(chosen) / f"{name}.json"
    if chosen.json and name != bench:
        path = path.with_stem(f"{path.stem}-{name}")  # a benchmark's second table
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "bench": name,
        "command": command(),
        "size": size(chosen),
        "seed": chosen.seed,
        "machine": machine(),
        "notes": notes,
        "figures": [dict(zip(columns, row, strict=True)) for row in rows],
    }
    longest = longest_so_far()
    if longest is not None:
        result["longest_call_ms"] = longest
        result["longest_load_ms"] = longest_load()
    if repeats is not None:
        result["repeats"] = repeats
    path.write_text(json.dumps(result, indent=1))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def worker(
    command: Sequence[str], path: Path, environment: dict[str, str], program: str = sys.executable
) -> Iterator[subprocess.Popen[bytes]]:
    """
    Run a worker of some library in a folder, without output, by this Python or another program. It
    ends with the block.
    """
    quiet = subprocess.DEVNULL
    running = subprocess.Popen(
        [program, *command], cwd=path, env=environment, stdout=quiet, stderr=quiet
    )
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextmanager
def process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """
    Run a program text in another process of this Python. It ends with the block, also after an
    error.
    """
    started = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate()


def line(started: subprocess.Popen[str]) -> str:
    """The next line that the process prints. Raises RuntimeError if the process has ended."""
    assert started.stdout is not None
    text = started.stdout.readline()
    if not text:
        raise RuntimeError(f"a worker ended with {started.wait()}; its output is above")
    return text


def go(started: subprocess.Popen[str]) -> None:
    """Start the work of a process that waits for a line."""
    assert started.stdin is not None
    started.stdin.write("go\n")
    started.stdin.flush()
