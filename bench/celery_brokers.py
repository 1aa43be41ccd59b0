"""
Celery on Redis's transport and on Laneway's: tasks a second and processor time a task.

    python -m bench.celery_brokers [--tasks 1000] [--queues 1 200]

Each case is a worker with one process (`-P solo`) of the same program, on a Valkey server of its
own. With many queues Redis's worker names all of them in `-Q`; Laneway's names the pattern
`bench.*`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from celery import Celery

import laneway.contrib.kombu  # noqa: F401
from laneway.testing.servers import Server

app = Celery("bench.celery_brokers", broker=os.environ.get("BENCH_BROKER", "memory://"))
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=16)


@app.task
def note(path: str) -> None:
    """Append a byte to a file."""
    with open(path, "ab") as file:
        file.write(b".")


def cpu_of(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(broker: str, count: int, queues: int, server: int) -> dict[str, Any]:
    """Publish the tasks, and let a worker run them. Times are microseconds a task."""
    names = [f"bench.{number}" for number in range(queues)]
    is_laneway = broker.startswith("laneway")
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("wb") as log:
        path = Path(folder) / "done"
        path.touch()
        begin, server_begin = time.monotonic(), cpu_of(server)
        used = time.process_time()
        for number in range(count):
            note.apply_async((str(path),), queue=names[number % queues])
        published, used = time.monotonic() - begin, time.process_time() - used
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "celery",
                "-A",
                "bench.celery_brokers",
                "worker",
                "-P",
                "solo",
                "--without-gossip",
                "--without-mingle",
                "-Q",
                "bench.*" if is_laneway else ",".join(names),
            ],
            stdout=log,
            stderr=log,
        )
        try:
            wait_for(path, 1)
            start, start_cpu = time.monotonic(), cpu_of(worker.pid)
            first = path.stat().st_size
            wait_for(path, count)
            taken, ran = time.monotonic() - start, count - first
            worker_cpu = cpu_of(worker.pid) - start_cpu
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(60)
        per_task = 1e6 / count
        return {
            "publish/s": round(count / published),
            "run/s": round(ran / taken),
            "producer us": round(used * per_task),
            "worker us": round(worker_cpu * 1e6 / ran),
            "server us": round((cpu_of(server) - server_begin) * per_task),
        }


def wait_for(path: Path, size: int) -> None:
    """Wait until the tasks have written so many bytes."""
    deadline = time.monotonic() + 300
    while path.stat().st_size < size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.stat().st_size} of {size} tasks ran")
        time.sleep(0.02)


def main() -> None:
    """Run all cases, one after the other, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--queues", type=int, nargs="*", default=[1, 200])
    parser.add_argument("--url", help="another store of Laneway, measured too")
    parser.add_argument("--server", type=int, help="the process of the server: measure one case")
    options = parser.parse_args()
    if options.server:
        broker = os.environ["BENCH_BROKER"]
        print(run(broker, options.tasks, options.queues[0], options.server))
        return
    for queues in options.queues:
        for name in ("redis", "laneway", *(["other"] if options.url else [])):
            with Server() as server:
                redis = server.url.replace("valkey://", "redis://")
                url = {"redis": redis, "laneway": f"laneway+{redis}", "other": options.url}[name]
                case = {"--tasks": options.tasks, "--queues": queues, "--server": server.pid}
                words = [str(word) for pair in case.items() for word in pair]
                answer = subprocess.run(
                    [sys.executable, "-m", "bench.celery_brokers", *words],
                    env={**os.environ, "BENCH_BROKER": url},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                print(f"{queues:5} queues  {name:8}", answer.stdout.strip(), flush=True)


if __name__ == "__main__":
    main()
