"""The client in clients/go, which is generated from the API's description."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.gateway.login import tokens
from tests.gateway.conftest import serving

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "go"

pytestmark = [
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed"),
    pytest.mark.skipif(
        not (CLIENT / "laneway").exists(), reason="not generated: make clients does that, with Java"
    ),
]


def test_example(tmp_path: Path) -> None:
    """The client compiles, publishes with its token, and acks what it handled."""
    program = tmp_path / "example"
    subprocess.run(["go", "build", "-o", program, "./example"], cwd=CLIENT, check=True, timeout=250)
    store = f"sqlite:///{tmp_path}/laneway.db"
    with Laneway(store) as app:
        _, token, _ = tokens.create(app.engine, "client", ["publish", "consume"])
        with serving(store) as (api, _):
            done = subprocess.run(
                [program, f"http://127.0.0.1:{api.port}"],
                env={**os.environ, "LANEWAY_TOKEN": token},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.stdout.splitlines() == [
            "published: accepted",
            'handled {"order":42}, attempt 1',
        ], done.stderr
        assert app.topic("orders").stats().done == 1
