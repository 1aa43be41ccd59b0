"""The order pipeline: shop, store and pipeline are killed; each order has its states in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from examples.orders.orders import STATES, Orders, open_app
from laneway.testing.servers import Server, until

ROOT = Path(__file__).parents[2]

ORDERS = 120


def test_orders_through_three_kills(tmp_path: Path) -> None:
    """
    The shop runs without the store and is killed; it reports again, while the store and a pipeline
    are killed, too.
    """
    processes: list[subprocess.Popen[str]] = []

    def start(what: str, url: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "examples.orders.orders", what, str(tmp_path), url]
        process = subprocess.Popen(
            [*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        processes.append(process)
        return process

    with Server(appendonly="yes", appendfsync="always") as server:
        url = server.url
        with open_app(url) as app:
            app.engine.overview()  # the namespace exists
        server.kill()
        first = start("shop", url, str(ORDERS))
        assert first.stdout is not None
        assert first.stdout.readline() == "0\n"
        first.send_signal(signal.SIGKILL)
        first.wait()
        server.start()
        shop = start("shop", url, str(ORDERS))
        killed, other = start("pipeline", url), start("pipeline", url)
        del other
        with closing(Orders(tmp_path)) as orders:
            try:
                until(lambda: orders.count() >= ORDERS, "a part of the events", 120)
                killed.send_signal(signal.SIGKILL)
                server.kill()
                server.start()
                until(lambda: orders.count() >= ORDERS * len(STATES), "all events", 120)
                assert shop.wait(60) == 0
            finally:
                for process in processes:
                    process.kill()
                    process.communicate()
            histories = orders.histories()
        assert histories == {number: list(STATES) for number in range(ORDERS)}
        with open_app(url) as app:
            assert app.dead_letters.list() == []
