"""
The conformance suite: docs/specification.md as tests for every engine.

The clock moves only when a test moves it. Run the suite on an engine by its URL; each test uses a
new namespace:

    LANEWAY_ENGINE=mine://localhost pytest --pyargs laneway.testing.conformance

Or import the tests into a module, with a fixture `make_engine` that returns a function from
`laneway.engines.base.Settings` to an empty engine:

    from laneway.testing.conformance.conftest import driver
    from laneway.testing.conformance.suite import *
"""

import pytest

PARTS = (
    "test_adaptive",
    "test_clock",
    "test_combined_limits",
    "test_presence",
    "test_costs",
    "test_dead_letters",
    "test_delivery_log",
    "test_elections",
    "test_fairness",
    "test_floods",
    "test_groups",
    "test_lease",
    "test_limits",
    "test_max_cost",
    "test_merge",
    "test_operator",
    "test_policy_changes",
    "test_priorities",
    "test_put",
    "test_forward",
    "test_records",
    "test_history",
    "test_key_limits",
    "test_results",
    "test_returned_permits",
    "test_settle",
    "test_several_gates",
    "test_subscription_patterns",
    "test_subscriptions",
    "test_tiers",
    "test_topic_list",
    "test_topic_policies",
    "test_topics",
    "test_wakeup",
)

pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))
