"""
What every engine does, by example: `docs/specification.md` as tests under a clock that is moved by
hand.

Whoever writes an engine runs them on it. Either name it, each test then has a namespace of its own
there:

    LANEWAY_ENGINE=mine://localhost pytest --pyargs laneway.testing.conformance

or put them into a test module of your own, beside a fixture `make_engine` that returns what opens
an empty engine (a function of `laneway.engines.base.Settings`):

    from laneway.testing.conformance.conftest import bench
    from laneway.testing.conformance.suite import *
"""

import pytest

PARTS = (
    "test_changes",
    "test_figures",
    "test_results",
    "test_limits",
    "test_dedupe_and_merge",
    "test_numbers",
    "test_order_and_time",
    "test_own_policies",
    "test_concurrent_use",
    "test_tiers",
    "test_top_lists",
    "test_wakeup",
)

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))
