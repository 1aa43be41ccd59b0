"""
How many tests of another project pass with Laneway, of those that pass on Redis:
`python -m tests.contrib.compare celery FOLDER` (or `celery-backends`, `kombu`, `rq`).

FOLDER is the source archive of the project, in the version that is installed (`pip download
--no-deps --no-binary :all: celery`, unpacked). Its package is renamed there, so that the installed
one is tested. Needs port 6379 of this machine for a Valkey server, and pytest-rerunfailures and
pytest-subtests for Celery. `--store sqlite` takes another store for what runs with Laneway, and
further arguments go to pytest, such as `-k test_chain`. Celery's tests take half an hour.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server

HERE = Path(__file__).parent
RQ = ("queue", "queue_unique", "retry", "dependencies", "worker", "job")
CELERY = ("-p", "celery.contrib.pytest", "-o", "filterwarnings=", "-o", "python_classes=test_*")


class Suite(NamedTuple):
    """The tests of a project."""

    package: str
    arguments: list[str]
    share: float
    """The minimum share of the tests that pass on Redis."""
    plugin: str | None = None
    """The plugin of what runs with Laneway."""


SUITES = {
    "celery": Suite(
        "celery",
        [*CELERY, *(f"t/integration/test_{each}.py" for each in ("canvas", "tasks", "inspect"))],
        0.98,
        "celery_suite",
    ),
    "celery-backends": Suite(
        "celery", [*CELERY, "-p", "celery_backend_suite", "t/unit/backends/test_base.py"], 0.98
    ),
    "kombu": Suite("kombu", [str(HERE / "kombu_suite.py")], 1.0),
    "rq": Suite("rq", [f"tests/test_{each}.py" for each in RQ], 0.95, "rq_suite"),
}


def run(suite: Suite, folder: Path, url: str, more: list[str]) -> dict[str, str]:
    """Run the tests with a store. Returns the outcome of each."""
    plugin = ["-p", suite.plugin] if suite.plugin and url.startswith("laneway+") else []
    source = Path(__file__).parents[2] / "src"
    places = [folder, source, HERE] if suite.package != "rq" else [source, HERE]
    with tempfile.TemporaryDirectory() as report:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:xdist"),
                *("-p", "no:cacheprovider", "-o", "addopts=", "--timeout", "90", "--tb", "no"),
                *("--rootdir", str(folder), "--junitxml", f"{report}/junit.xml"),
                *(*plugin, *suite.arguments, *more),
            ],
            cwd=folder,
            env=os.environ
            | {
                "BROKER": url,
                "BACKEND": url,
                "TEST_BROKER": url,
                "TEST_BACKEND": url,
                "REDIS_HOST": "127.0.0.1",
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(map(str, places)),
            },
            check=False,
        )
        outcomes: dict[str, str] = {}
        for case in ET.parse(f"{report}/junit.xml").iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            kinds = {each.tag for each in case}
            if {"failure", "error"} & kinds or outcomes.get(name) == "failed":
                outcomes[name] = "failed"
            else:
                outcomes[name] = "skipped" if "skipped" in kinds else "passed"
        return outcomes


def main() -> int:
    """Run the tests twice, and compare. Returns 1 if fewer pass than should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=("valkey", "sqlite", "postgres"), default="valkey")
    options, more = parser.parse_known_args()
    suite, folder = SUITES[options.suite], options.folder.resolve()
    if (folder / suite.package).exists():
        (folder / suite.package).rename(folder / f"{suite.package}_source")
    with ExitStack() as stack:
        server = Server(databases=20)
        server.port = 6379
        stack.enter_context(server)
        plain = run(suite, folder, "redis://127.0.0.1", more)
        server.run("FLUSHALL")
        url = "redis://127.0.0.1"
        if options.store == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/jobs.db"
        elif options.store == "postgres":
            url = stack.enter_context(PostgresServer()).url
        ours = run(suite, folder, f"laneway+{url}", more)
    for name in sorted(plain.keys() | ours.keys()):
        if plain.get(name) != ours.get(name):
            print(f"{name}: {plain.get(name)} on Redis, {ours.get(name)} with Laneway")
    passed = [name for name, outcome in plain.items() if outcome == "passed"]
    kept = sum(ours.get(name) == "passed" for name in passed)
    print(
        f"{options.suite} on {options.store}: {kept} of {len(passed)} that pass on Redis pass with"
        f" Laneway, {kept / max(1, len(passed)):.1%}; Redis {dict(Counter(plain.values()))},"
        f" Laneway {dict(Counter(ours.values()))}"
    )
    return 0 if kept >= suite.share * len(passed) > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
