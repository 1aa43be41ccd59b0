"""What `doctor` says of a server before anything is made on it."""

from __future__ import annotations

import subprocess
import sys

from laneway.testing.servers import Server


def doctor(url: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "laneway", "doctor", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_is_not_there_is_no_ok() -> None:
    with Server() as server:
        lines = doctor(server.url)
    assert lines[0].startswith("ok   server: ")
    assert lines[1].startswith(
        'no   durability "fsync": not on this server: needs the append-only file;'
        " run CONFIG SET appendonly yes appendfsync always"
    )
    assert lines[2].startswith(
        'no   durability "replicated": not on this server: needs 1 or more replica'
    )
    assert "no   namespace: " in lines[3]
    assert "there is no namespace default" in lines[3]


def test_what_is_there_is_ok() -> None:
    with Server(appendonly="yes", appendfsync="always") as server:
        assert 'ok   durability "fsync": fit' in doctor(server.url)
