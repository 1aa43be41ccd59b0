"""
Single calls: `publish` and `delay` one at a time from one thread, `apublish` and `adelay` from 100
coroutines, and typed tasks in bulk. All in one process. The paths take turns, single calls in short
slices, because the disk of a shared machine is not the same for long. They are measured when each
path has written its log once and overwrites it, as in a store that has been used for some seconds:
a commit into a file that grows takes about twice as long.

Beside a single call stand Huey on the same kind of store (on SQLite with synchronous=FULL) and the
least that the store allows: on SQLite a transaction that inserts one row, with WAL and
synchronous=FULL; on Valkey an LPUSH by redis-py and one over a bare socket. Beside the coroutines
stands the least that asyncio and the store allow: a thread that stores all that has come meanwhile
by one transaction, or one packet of LPUSH, and answers all of it by one callback. Beside these and
the tasks in bulk stands `publish_many` with bodies of the same size.

A second table says what one commit writes to the WAL of SQLite: whole frames, of 4,096 bytes and a
head of 24.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import statistics
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from bench.common import folder, options, pick, publish_table, seconds, store, usual
from laneway import Laneway, Message

BODY = "x" * 98
COROUTINES = 100
FRAME = 4096 + 24
COMMITS = 100
"""Commits whose frames are counted."""

WARM_UP = 1_200
"""Single calls before the first measured ones: more than a WAL of 1,000 pages, SQLite's default."""


class Work(NamedTuple):
    """A path: how `count` messages are published, and the paths that stand beside it."""

    name: str
    call: Callable[[int], object]
    count: int
    beside: tuple[str, ...] = ()


def main() -> None:
    chosen = options(__doc__ or "")
    rounds = pick(chosen, (200, 10), (60, 4), (1, 1))
    one, many = pick(chosen, 25, 25, 20), pick(chosen, 20_000, 10_000, 200)
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        singles, others = _works(chosen, stack, one, many)
        for work in singles:
            work.call(pick(chosen, WARM_UP, WARM_UP, 0))
        for works, times in ((singles, rounds[0]), (others, rounds[1])):
            for _ in range(times + 1):
                for work in works:
                    rates.setdefault(work.name, []).append(
                        work.count / seconds(partial(work.call, work.count))
                    )
    found = {name: statistics.median(each[1:] or each) for name, each in rates.items()}
    rows = [
        (work.name, found[work.name], max(rates[work.name]), other, _ratio(found, work.name, other))
        for work in (*singles, *others)
        for other in work.beside or ("",)
    ]
    publish_table(
        "single",
        chosen,
        ("path", "median/s", "best/s", "beside", "ratio"),
        rows,
        f"durability {usual(chosen)}; {rounds[0]} times {one} single calls of each path,"
        f" {rounds[1]} times {many:,} of the others",
    )
    if chosen.engine == "sqlite":
        columns = ("commit of", "frames", "bytes", "WAL bytes")
        publish_table("frames", chosen, columns, list(_frames()), f"mean of {COMMITS} commits")


def _ratio(found: dict[str, float], name: str, other: str) -> Any:
    return found[name] / found[other] if other else "-"


def _works(
    chosen: Namespace, stack: ExitStack, one: int, many: int
) -> tuple[list[Work], list[Work]]:
    """The single calls, and the others."""
    durability = usual(chosen)
    place = stack.enter_context(store(chosen, durability))
    app = Laneway(place.url, durability=durability)  # type: ignore[arg-type]
    stack.callback(app.close)
    if chosen.engine == "sqlite":
        files = stack.enter_context(folder())
        beside = [("one row", _row(files / "row.db"))]
        least = (f"rows x{COROUTINES}", _rows(files / "rows.db"))
        peer = _huey_on_sqlite(files / "huey.db")
    else:
        beside = [("LPUSH, redis-py", _lpush(place.url)), ("LPUSH, socket", _bare(place.url))]
        least = (f"LPUSH x{COROUTINES}", _bare_many(place.url))
        peer = _huey_on_redis(place.url)
    if peer is not None:
        beside.insert(0, ("Huey", peer))
    names = tuple(name for name, _ in beside)

    @app.task(ignore_result=True)
    def plain(n: int, text: str) -> None: ...

    text = "x" * 70

    async def publish(n: int) -> None:
        await app.apublish(f"t.{n % 10}", BODY)

    async def delay(n: int) -> None:
        await plain.adelay(n, text)

    bulk = "publish_many"
    singles = [
        *(Work(name, _repeated(call), one) for name, call in beside),
        Work("publish", _repeated(lambda: app.publish("t.1", BODY)), one, names),
        Work("delay", _repeated(lambda: plain.delay(1, text)), one, names),
    ]
    others = [
        Work(least[0], _coroutines(_Least(least[1], stack).publish), many),
        Work(f"apublish x{COROUTINES}", _coroutines(publish), many, (least[0], bulk)),
        Work(f"adelay x{COROUTINES}", _coroutines(delay), many, (least[0], bulk)),
        Work(
            "bulk of typed tasks",
            lambda count: plain.starmap((n, text) for n in range(count)),
            many,
            (bulk,),
        ),
        Work(
            bulk,
            lambda count: app.publish_many(
                (Message("t.2", BODY) for _ in range(count)), progress=False
            ),
            many,
        ),
    ]
    return singles, others


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def work(count: int) -> None:
        for _ in range(count):
            call()

    return work


def _coroutines(call: Callable[[int], Any]) -> Callable[[int], None]:
    async def some(count: int) -> None:
        for n in range(count):
            await call(n)

    async def all_of_them(count: int) -> None:
        await asyncio.gather(*(some(count // COROUTINES) for _ in range(COROUTINES)))

    return lambda count: asyncio.run(all_of_them(count))


class _Least:
    """The least that many coroutines need: `keep` stores so many messages, in a thread."""

    def __init__(self, keep: Callable[[int], object], stack: ExitStack) -> None:
        self._keep = keep
        self._waiting: list[asyncio.Future[None]] = []
        self._asked: SimpleQueue[bool] = SimpleQueue()
        thread = threading.Thread(target=self._run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(self._asked.put, False)  # before it is joined

    async def publish(self, _: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if len(self._waiting) == 1:
            self._asked.put(True)
        await future

    def _run(self) -> None:
        while self._asked.get():
            batch, self._waiting = self._waiting, []
            self._keep(len(batch))
            batch[0].get_loop().call_soon_threadsafe(_answer, batch)


def _answer(futures: list[asyncio.Future[None]]) -> None:
    for each in futures:
        each.set_result(None)


def _table(path: Path) -> sqlite3.Connection:
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = FULL")
    raw.execute("CREATE TABLE row (id INTEGER PRIMARY KEY, body BLOB)")
    return raw


def _row(path: Path) -> Callable[[], object]:
    """A transaction that inserts one row."""
    raw, body = _table(path), BODY.encode()
    return lambda: raw.execute("INSERT INTO row (body) VALUES (?)", (body,))


def _rows(path: Path) -> Callable[[int], object]:
    """A transaction that inserts so many rows."""
    raw, body = _table(path), BODY.encode()

    def call(count: int) -> None:
        raw.execute("BEGIN")
        raw.executemany("INSERT INTO row (body) VALUES (?)", [(body,)] * count)
        raw.execute("COMMIT")

    return call


def _huey_on_sqlite(path: Path) -> Callable[[], object] | None:
    with suppress(ImportError):
        from huey import SqliteHuey

        return _huey_task(SqliteHuey(filename=str(path), fsync=True, results=False))
    return None


def _huey_on_redis(url: str) -> Callable[[], object] | None:
    with suppress(ImportError):
        from huey import RedisHuey

        return _huey_task(RedisHuey(url=url.replace("valkey://", "redis://"), results=False))
    return None


def _huey_task(huey: Any) -> Callable[[], object]:
    @huey.task()  # type: ignore[untyped-decorator]
    def plain(n: int, text: str) -> None: ...

    text = "x" * 70
    return lambda: plain(1, text)


def _lpush(url: str) -> Callable[[], object]:
    import redis

    client = redis.Redis.from_url(url.replace("valkey://", "redis://"))
    return lambda: client.lpush("single", BODY)


def _bare(url: str) -> Callable[[], object]:
    call = _bare_many(url)
    return lambda: call(1)


def _bare_many(url: str) -> Callable[[int], object]:
    """So many LPUSH in one packet."""
    host, _, port = url.partition("://")[2].partition("/")[0].rpartition(":")
    raw = socket.create_connection((host, int(port)))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    command = f"*3\r\n$5\r\nLPUSH\r\n$4\r\nbare\r\n${len(BODY)}\r\n{BODY}\r\n".encode()

    def call(count: int) -> None:
        raw.sendall(command * count)
        while count > 0:
            count -= raw.recv(65_536).count(b"\n")

    return call


def _frames() -> Iterator[tuple[object, ...]]:
    """What a commit writes: from the growth of a WAL that is too short for a checkpoint."""
    with folder() as files:
        app = Laneway(f"sqlite:///{files}/q.db")

        @app.task(ignore_result=True)
        def plain(n: int, text: str) -> None: ...

        calls: list[tuple[str, str, Callable[[], object]]] = [
            ("publish", "q.db", lambda: app.publish("t.1", BODY)),
            ("delay", "q.db", lambda: plain.delay(1, "x" * 70)),
            ("one row", "row.db", _row(files / "row.db")),
        ]
        huey = _huey_on_sqlite(files / "huey.db")
        if huey is not None:
            calls.append(("Huey", "huey.db", huey))
        for name, file, call in calls:
            call()
            wal = files / f"{file}-wal"
            before = wal.stat().st_size
            _repeated(call)(COMMITS)
            grown = wal.stat().st_size - before
            yield name, grown / FRAME / COMMITS, grown / COMMITS, wal.stat().st_size
        app.close()


if __name__ == "__main__":
    main()
