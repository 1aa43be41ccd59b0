"""What all tests share."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

# Collecting the tests compiles Laneway for the thousand programs that they start, also where the
# environment forbids bytecode: `import laneway` takes 0.35 s of CPU without and 0.16 s with it.
# The programs themselves write none: what a test changes twice in a second must be read again.
sys.dont_write_bytecode = False
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"

settings.register_profile("fixed", derandomize=True, deadline=None)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("fixed")  # the same examples in each run; `default` draws others


@pytest.hookimpl(optionalhook=True)  # `make fuzz` runs without xdist
def pytest_xdist_auto_num_workers() -> int | None:
    """
    Processes of `-n auto`: three more than there are processors, because about half of the time
    tests wait for another process or for the end of a lease.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # xdist reads it
    return (os.cpu_count() or 1) + 3
