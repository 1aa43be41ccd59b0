"""The clients of examples/clients need nothing but HTTP."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.gateway.login import tokens
from tests.gateway.conftest import Api, serving

CLIENTS = Path(__file__).resolve().parents[2] / "examples" / "clients"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/laneway.db"


@pytest.fixture
def token(store: str, request: pytest.FixtureRequest) -> str | None:
    """A token; None, as `laneway serve` begins, for tests that ask for that."""
    if getattr(request, "param", "some") is None:
        return None
    with Laneway(store) as app:
        return tokens.create(app.engine, "client", ["publish", "consume"])[1]


@pytest.fixture
def api(store: str, token: str | None) -> Iterator[Api]:
    with serving(store) as (api, _):
        yield Api(api.port, token=token)


def run(api: Api, *command: str) -> str:
    done = subprocess.run(
        command,
        cwd=CLIENTS,
        env={**os.environ, "LANEWAY_TOKEN": api.token or ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("token", ["some", None], indirect=True)
def test_curl(api: Api, store: str) -> None:
    """The shell script publishes three orders and handles one."""
    output = run(api, "./shop.sh", f"http://127.0.0.1:{api.port}")
    assert output.count('"accepted"') == 3
    assert output.splitlines()[-1].endswith('"outcome":"acked"}]')
    with Laneway(store) as app:
        assert app.topic("orders").stats().waiting == 2


@pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("node") is None,
    reason="curl or Node.js is not installed",
)
def test_the_commands_of_the_readme(api: Api, store: str) -> None:
    """Orders of a topic that the subscription's pattern matches reach the ledger."""
    url = f"http://127.0.0.1:{api.port}"
    with Laneway(store) as app:
        app.subscribe("orders.*", "ledger", kind="exclusive")
        app.publish("orders.us", {"order": 4})
        run(api, "./shop.sh", url, "orders.eu")
        assert len(run(api, "node", "ledger.mjs", url, "4").splitlines()) == 4


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.parametrize("token", ["some", None], indirect=True)
def test_javascript(api: Api, store: str) -> None:
    """The worker handles what is there, and retries what fails."""
    with Laneway(store) as app:
        app.topic("orders").policy(backoff=0)
        for body in ({"order": 1}, {"order": 2}, {}):
            app.publish("orders", body)
        output = run(api, "node", "worker.mjs", f"http://127.0.0.1:{api.port}", "3")
        assert sorted(output.splitlines()) == ["order 1", "order 2"]
        stats = app.topic("orders").stats()
        assert (stats.done, stats.retried) == (2, 1)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_one_consumer(api: Api, store: str) -> None:
    """The ledger gets the orders of all topics by a stream, and what it acked is done."""
    with Laneway(store) as app:
        app.subscribe("orders.*", "ledger", kind="exclusive")
        for order, topic in enumerate(("orders.eu", "orders.us", "orders.eu"), 1):
            app.publish(topic, {"order": order})
        output = run(api, "node", "ledger.mjs", f"http://127.0.0.1:{api.port}", "3")
        lines = [line.split() for line in output.splitlines()]
        assert sorted((topic, order) for topic, _, order, _, _ in lines) == [
            ("orders.eu#ledger", "1"),
            ("orders.eu#ledger", "3"),
            ("orders.us#ledger", "2"),
        ]
        assert len({fence for *_, fence in lines}) == 1
        assert app.topic("orders.eu#ledger").stats().done == 2
