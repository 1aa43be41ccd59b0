"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Collecting the tests compiles Laneway for the thousand programs that they start, also where the
# environment forbids bytecode: `import laneway` takes 0.35 s of CPU without and 0.16 s with it.
# The programs themselves write none: what a test changes twice in a second must be read again.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

# A shell that runs the tests in the background lets them ignore Ctrl-C, and so the programs that
# they start and end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("fixed", derandomize=True, deadline=None)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("fixed")  # the same examples in each run; `default` draws others

MEMORY = Path("/dev/shm")
"""A file system in memory: a third of the processor time of a SQLite test is that of syncs."""

NEEDED = 4 << 30
"""Bytes that must be free there; a container often has 64 MiB."""

PREFIX = "laneway-tests-"
FAILED: list[int] = []
"""The exit status of a run with failures."""


def use_memory() -> None:
    """
    Put temporary files into a folder in memory, unless TMPDIR names another place. It is removed
    at the end of a run without failures, otherwise by the next run.
    """
    if "TMPDIR" in os.environ or not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        return
    if shutil.disk_usage(MEMORY).free < NEEDED:
        return
    for left in MEMORY.glob(f"{PREFIX}*"):
        if not Path(f"/proc/{left.name.removeprefix(PREFIX)}").exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o711, exist_ok=True)  # servers of another user are inside
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    atexit.register(_remove, folder)


def _remove(folder: Path) -> None:
    if not FAILED and folder.name == f"{PREFIX}{os.getpid()}":  # no fork of this process
        shutil.rmtree(folder, ignore_errors=True)


use_memory()


def pytest_collection_finish() -> None:
    """
    What was collected stays until the end, so no collection of garbage looks at it again. With a
    third of the tests such a pause took up to 0.24 s, and longer if processes share a processor; a
    transaction on PostgreSQL ends when it was idle for 1.5 s.
    """
    gc.collect()
    gc.freeze()
    if (store := sys.modules.get("laneway.engines.postgres.store")) is not None:
        # A machine that is busy with other tests may stop this process for longer than the usual
        # 1.5 s. The programs that tests start, and stop, have the usual time.
        store.SETTINGS["idle_in_transaction_session_timeout"] = 15_000


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if exitstatus:
        FAILED.append(exitstatus)


@pytest.hookimpl(optionalhook=True)  # `make fuzz` runs without xdist
def pytest_xdist_auto_num_workers() -> int | None:
    """
    Processes of `-n auto`: three more than there are processors, because about half of the time
    tests wait for another process or for the end of a lease.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    return (os.cpu_count() or 1) + 3
