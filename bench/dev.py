"""
How long `laneway dev` lets its user wait: for the page after the command, for the new code after a
change, and for the end after Ctrl-C. Always on SQLite; CPU is that of all its processes.
"""

from __future__ import annotations

import http.client
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.common import folder, options, pick, publish_table
from laneway.testing.servers import free_port

PROGRAM = """\
from laneway import Laneway, Message

app = Laneway()


@app.handler("push.*")
async def deliver(message: Message) -> None:
    print("version {version} handled", message.body)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    rounds = pick(chosen, 9, 5, 1)
    runs = []
    for _ in range(rounds):
        with folder() as place:
            runs.append(run(place))
    goals = (1.5, 1.0, 2.0, "")
    names = ("page up", "reload", "Ctrl-C", "CPU in all")
    publish_table(
        "dev",
        chosen,
        ("wait", "median s", "longest s", "goal s"),
        [
            (name, median(values), max(values), goal)
            for name, values, goal in zip(names, zip(*runs, strict=True), goals, strict=True)
        ],
        f"{rounds} rounds",
    )


def run(place: Path) -> tuple[float, float, float, float]:
    """The seconds until the page, the reload and the end, and the CPU seconds."""
    source, port, before = place / "shop.py", free_port(), cpu()
    source.write_text(PROGRAM.format(version=1))
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "laneway", "dev", "shop:app", "--port", str(port)],
        cwd=place,
        env={name: value for name, value in os.environ.items() if name != "LANEWAY_URL"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as dev:
        try:
            while not is_up(port):
                time.sleep(0.01)
            page = time.perf_counter() - began
            wait_until_ready(dev)
            time.sleep(0.5)
            began = time.perf_counter()
            source.write_text(PROGRAM.format(version=2))
            wait_until_ready(dev)
            reload = time.perf_counter() - began
            began = time.perf_counter()
            dev.send_signal(signal.SIGINT)
            dev.wait(30)
            end = time.perf_counter() - began
        finally:
            dev.kill()
    return page, reload, end, cpu() - before


def wait_until_ready(dev: subprocess.Popen[str]) -> None:
    assert dev.stdout is not None
    for line in dev.stdout:
        if "is ready" in line:
            return
    raise RuntimeError("laneway dev has ended")


def is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def cpu() -> float:
    """CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
