"""
What each feature costs the Valkey server: the instructions that it runs for a message, counted by
Callgrind (`valgrind` is to be installed), beside those for plain messages. Other programs on the
machine do not change them, as they change all times.

As `bench.features`: put, lease and settle in batches of 500, in a store of its own for each
feature, in the second round. One call of the server has at most 125 messages, as on a fast machine;
calls under Callgrind take so long that they would be divided further.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.common import BATCH, Store, options, pick, publish_table
from bench.features import FEATURES, PLAIN, STEPS, Contender, Feature
from laneway.engines.sharded.splitting import CallSize
from laneway.testing import servers

AT_ONCE = 125
"""Messages of one call of the server."""

START_SECONDS = 120.0
"""Under Callgrind a server needs longer to start."""

TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Counted:
    """A server under Callgrind, which writes a file for each `since_last`."""

    def __init__(self, server: servers.Server, files: Path) -> None:
        self.url = server.url
        self._pid = server.pid
        self._files = files
        self._count = 0

    def since_last(self) -> int:
        """The instructions since the last call."""
        self._count += 1
        subprocess.run(
            ["callgrind_control", "-d", "count", str(self._pid)], check=True, capture_output=True
        )
        found = TOTALS.search((self._files / f"out.{self._count}").read_text())
        assert found is not None
        return int(found[1])


@contextmanager
def counted() -> Iterator[Counted]:
    """A server whose instructions are counted."""
    with tempfile.TemporaryDirectory(prefix="laneway-bench-") as name:
        files = Path(name)
        program = files / "server"
        program.write_text(
            f'#!/bin/sh\nexec valgrind --tool=callgrind --callgrind-out-file="{files}/out" -q'
            f' "{servers.binary()}" "$@"\n'
        )
        program.chmod(0o755)
        os.environ["LANEWAY_SERVER_BINARY"] = str(program)
        try:
            with servers.Server() as server:
                yield Counted(server, files)
        finally:
            del os.environ["LANEWAY_SERVER_BINARY"]


def per_message(feature: Feature, topics: int, messages: int, seed: int) -> list[float]:
    """The instructions of each step for a message."""
    found = dict.fromkeys(STEPS, 0)
    with counted() as server:
        contender = Contender(Store(server.url), "memory", feature, topics, seed)

        def watch(step: str) -> None:
            found[step] += server.since_last()

        contender.round(messages)
        server.since_last()
        contender.round(messages, watch)
        contender.engine.close()
    return [found[step] / count for step, count in zip(STEPS, contender.units, strict=True)]


def main() -> None:
    chosen = options(
        __doc__ or "",
        lambda parser: parser.add_argument("--only", help="rows whose names contain this text"),
    )
    if chosen.engine != "valkey":
        sys.exit("bench.instructions: it is about Valkey; add --engine valkey")
    if shutil.which("valgrind") is None:
        sys.exit("bench.instructions: valgrind was not found on the PATH; install it")
    servers.START_SECONDS = START_SECONDS
    CallSize.fit = lambda *_, **__: None  # type: ignore[method-assign, assignment]
    first_size = CallSize.__init__

    def fixed_size(self: CallSize, most: int, longest_us: int, least: int = 4) -> None:
        first_size(self, most, longest_us, least)
        self.limit = min(most, AT_ONCE)

    CallSize.__init__ = fixed_size  # type: ignore[method-assign]
    topics, messages = pick(chosen, (1_000, 5_000), (300, 1_500), (20, 100))
    rows: list[tuple[object, ...]] = []
    plain: list[float] = []
    for feature in (PLAIN, *FEATURES):
        if plain and chosen.only is not None and chosen.only not in feature.name:
            continue
        ours = per_message(feature, topics, messages, chosen.seed)
        plain = plain or ours
        rows.append((feature.name, *ours, sum(ours), sum(plain) / sum(ours)))
        print(*rows[-1], file=sys.stderr, flush=True)
    publish_table(
        "instructions",
        chosen,
        ("feature", *STEPS, "together", "ratio"),
        rows,
        f"instructions of the server for a message; {messages:,} messages over {topics:,} topics,"
        f" batches of {BATCH}, at most {AT_ONCE} messages a call; ratio: those of plain messages"
        " beside them",
    )


if __name__ == "__main__":
    main()
