"""The client in clients/typescript, which is generated from the API's description."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.gateway.login import tokens
from tests.gateway.conftest import serving

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "typescript"

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed"),
    pytest.mark.skipif(
        not (CLIENT / "node_modules").exists(),
        reason="no packages: make clients installs them",
    ),
]


def test_example(tmp_path: Path) -> None:
    """
    The client is generated and type-checked, publishes with its token, and acks what it handled.
    """
    for command in ("openapi-typescript ../../docs/reference/openapi.json -o schema.d.ts", "tsc"):
        subprocess.run(
            ["npx", "--no-install", *command.split()], cwd=CLIENT, check=True, timeout=120
        )
    store = f"sqlite:///{tmp_path}/laneway.db"
    with Laneway(store) as app:
        _, token, _ = tokens.create(app.engine, "client", ["publish", "consume"])
        with serving(store) as (api, _):
            done = subprocess.run(
                ["node", "dist/example.js", f"http://127.0.0.1:{api.port}"],
                cwd=CLIENT,
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
