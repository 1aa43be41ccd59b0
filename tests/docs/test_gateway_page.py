"""The commands of docs/gateway.md run, and answer what the page says."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.conftest import serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"

COMMANDS = [
    (command, answer)
    for block in re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for command, answer in re.findall(
        r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE
    )
]
VARYING = (
    r'("id":)"[0-9a-f]+-[0-9a-f]+"',
    r'("receipt":)"[\w-]+"',
    r'("request_id":)"\w+"',
    r'()"\d{4}-\d\d-\d\dT[\d:.]+Z"',
)


def without_varying(answer: str) -> str:
    for pattern in VARYING:
        answer = re.sub(pattern, r"\1…", answer)
    return answer


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    with serving(f"sqlite:///{tmp_path}/laneway.db") as (api, _):
        yield api.port


def test_commands(port: int) -> None:
    """Each command succeeds, in the page's order, with the receipts of its own answers."""
    receipts: dict[str, str] = {}
    ran = 0
    for command, shown in COMMANDS:
        if "curl" not in command or "https://" in command:
            continue
        real = command.replace("localhost:7878", f"127.0.0.1:{port}")
        for written, receipt in receipts.items():
            real = real.replace(written, receipt)
        done = subprocess.run(
            ["bash", "-c", real], capture_output=True, text=True, timeout=60, check=True
        )
        found = re.findall(r'"receipt":"([\w-]+)"', done.stdout)
        receipts |= dict(zip(re.findall(r'"receipt":"([\w-]+)"', shown), found, strict=False))
        if shown:
            parts = without_varying(shown.strip()).split("…")
            answer = without_varying(done.stdout.strip())
            assert re.fullmatch(".*".join(map(re.escape, parts)), answer), command
        else:
            assert "/problems/" not in done.stdout, command
        ran += 1
    assert ran > 15
