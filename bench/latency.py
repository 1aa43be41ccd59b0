"""
An idle system: the time from a call in one process to the handler's start in another, and the cost
of a waiting worker.

A machine that has been idle for a while answers more slowly, whatever it is asked. So each pause is
a row of its own, and each row has the time of a floor, measured alternately in the same run: on a
Valkey server one LPUSH and one BLPOP that waits for it in another process; on SQLite and PostgreSQL
one fsync and one datagram to another process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis

from bench.common import (
    ServerStore,
    Store,
    folder,
    line,
    options,
    pick,
    process,
    publish_table,
    spread,
    store,
    usual,
)
from laneway import Laneway

WORKER = """
import sys, time
from laneway import Laneway, Message
app = Laneway(sys.argv[1])

@app.task(name="note", topic="tasks")
async def note_task(began: float) -> None:
    print(time.perf_counter() - began, flush=True)

@app.handler("messages")
async def note_message(message: Message) -> None:
    print(time.perf_counter() - message.body, flush=True)

if __name__ == "__main__":
    app.run_worker()
"""

LIST_FLOOR = """
import sys, time, redis
client = redis.Redis(port=int(sys.argv[1]), protocol=2)
while True:
    began = float(client.blpop("floor")[1])
    print(time.perf_counter() - began, flush=True)
"""

DATAGRAM_FLOOR = """
import socket, sys, time
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
    receiver.bind(sys.argv[1])
    print("bound", flush=True)
    while True:
        began = float(receiver.recv(64))
        print(time.perf_counter() - began, flush=True)
"""

COMMIT_BYTES = 12_288
"""What the floor writes before its fsync: a commit of one message writes at least three pages."""

FILE_BYTES = 1 << 22
"""The size of the floor's file, which is written over and over, as a write-ahead log is."""

WARM = 5
"""Calls that are not counted."""

Call = Callable[[], object]


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 300, 100, 5)
    idle = pick(chosen, 10.0, 5.0, 0.5)
    rows: list[tuple[object, ...]] = []
    repeats: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        place = stack.enter_context(store(chosen, usual(chosen)))
        app = stack.enter_context(Laneway(place.url))
        worker = stack.enter_context(process(WORKER, place.url))

        @app.task(name="note", topic="tasks")
        async def note_task(began: float) -> None:
            """The worker's, which prints the time."""

        floor_call, floor = stack.enter_context(
            floor_of(place, is_cluster=chosen.engine == "cluster")
        )
        calls: dict[str, Call] = {
            "delay": lambda: note_task.delay(time.perf_counter()),
            "publish": lambda: app.publish("messages", time.perf_counter()),
        }
        for pause in (0.003, 0.03):
            waits: dict[str, list[float]] = {name: [] for name in calls}
            floors: list[float] = []
            for _ in range(number + WARM):
                for name, call in calls.items():
                    waits[name].append(waited(call, worker, pause))
                    if floor is not None:
                        floors.append(waited(floor_call, floor, pause))
            for name, measured in waits.items():
                counted = sorted(measured[WARM:])
                least = p50(floors[2 * WARM :]) if floors else None
                rows.append(
                    (
                        f"{name}, {pause * 1e3:g} ms",
                        p50(counted),
                        counted[int(number * 0.99)],
                        least if least is not None else "-",
                        p50(counted) / least if least is not None else "-",
                    )
                )
                repeats[f"{name}, {pause * 1e3:g} ms"] = spread(counted)
        before = cpu(worker.pid)
        time.sleep(idle)
        percent = (cpu(worker.pid) - before) / idle * 100
    floor_name = "LPUSH to BLPOP" if isinstance(place, ServerStore) else "fsync and datagram"
    publish_table(
        "latency",
        chosen,
        ("call, after a pause of", "p50 ms", "p99 ms", f"{floor_name}, p50 ms", "ratio"),
        rows,
        f"durability {usual(chosen)}; from the call to the handler's start in another process",
        repeats=repeats,
    )
    publish_table(
        "idle",
        chosen,
        ("idle worker, % of a core",),
        [(percent,)],
        "no messages, no notifications",
    )


@contextmanager
def floor_of(
    place: Store, *, is_cluster: bool
) -> Iterator[tuple[Call, subprocess.Popen[str] | None]]:
    """The cheapest way to wake another process there: the call, and the process that it wakes."""
    if isinstance(place, ServerStore):
        if is_cluster:
            yield int, None
            return
        port = place.servers[0].port
        with redis.Redis(port=port, protocol=2) as client, process(LIST_FLOOR, str(port)) as floor:
            yield lambda: client.lpush("floor", time.perf_counter()), floor
        return
    with (
        folder() as home,
        process(DATAGRAM_FLOOR, str(home / "floor")) as floor,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender,
        open(home / "file", "wb+", buffering=0) as file,
    ):
        line(floor)
        sender.connect(str(home / "floor"))
        file.write(bytes(FILE_BYTES))
        os.fsync(file.fileno())
        file.seek(0)

        def sync_and_send() -> None:
            began = time.perf_counter()
            if file.tell() + COMMIT_BYTES > FILE_BYTES:
                file.seek(0)
            file.write(os.urandom(COMMIT_BYTES))
            os.fdatasync(file.fileno())
            sender.send(repr(began).encode())

        yield sync_and_send, floor


def waited(call: Call, worker: subprocess.Popen[str], pause: float) -> float:
    """Milliseconds from the call to the handler, after a pause."""
    time.sleep(pause)
    call()
    return float(line(worker)) * 1e3


def p50(waits: list[float]) -> float:
    """The median."""
    return sorted(waits)[len(waits) // 2]


def cpu(pid: int) -> float:
    """The processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
