"""The engines on which the suite and the histories run."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.testing.conformance.conftest import driver
from tests.conformance.postgres_setups import open_pooled, open_postgres
from tests.conformance.valkey_setups import URLS, open_setup

__all__ = ["driver"]

ENGINES: dict[str, Callable[[Path, Settings], FullEngine]] = {
    "sqlite file": lambda folder, settings: open_engine(f"sqlite:///{folder}/q.db", settings),
    "sqlite folder": lambda folder, settings: open_engine(
        f"sqlite:///{folder}/q?shards=1", settings
    ),
    "sqlite memory": lambda folder, settings: open_engine("sqlite://", settings),
    **{name: partial(open_setup, name) for name in URLS},
    "postgres": open_postgres,
    "postgres, pgbouncer": open_pooled,
}
"""Engines with one shard, which the model is compared with. Add a line for another one."""

SHARDED: dict[str, Callable[[Path, Settings], FullEngine]] = {
    "sqlite 4 files": lambda folder, settings: open_engine(
        f"sqlite:///{folder}/q?shards=4", settings
    ),
    "postgres 4 schemas": partial(open_postgres, options="?shards=4"),
}
"""Engines with several shards."""

EXACT_IN_A_SHARD: frozenset[str] = frozenset(
    (
        "test_a_cost_above_the_burst_passes_when_the_bucket_is_full",
        "test_a_delivery_uses_its_cost",
        "test_a_group_that_was_empty_or_asleep_gets_no_credit",
        "test_a_group_with_lanes_at_several_gates",
        "test_a_lower_limit_charges_less",
        "test_a_rate_that_is_removed_and_set_again",
        "test_a_lease_that_was_refused_by_one_gate_takes_nothing_of_the_other",
        "test_a_release_returns_its_cost",
        "test_a_groups_concurrency_beside_a_gate",
        "test_a_groups_other_topics_do_not_count_at_a_gate",
        "test_a_topic_at_a_rate_and_a_concurrency",
        "test_a_topic_without_a_group_competes_by_its_own_weight",
        "test_changed_field",
        "test_changed_gates_apply_to_waiting_lanes",
        "test_costs_without_a_rate_hold_nothing_back",
        "test_each_gate_holds",
        "test_expensive_messages_get_their_turn_at_a_gate",
        "test_expensive_messages_get_their_turn_at_two_gates",
        "test_explain_names_each_shut_gate",
        "test_explain_names_the_cost",
        "test_explain_names_the_reset",
        "test_extended_leases_end_in_order",
        "test_fair_by_time",
        "test_few_equal_topics",
        "test_flooding_topic",
        "test_gate_freed_by_an_expired_lease",
        "test_gate_reset",
        "test_gate_reset_ends_a_hold",
        "test_groups_are_forgotten_with_their_topics",
        "test_groups_exist_in_each_tier_and_pool",
        "test_groups_get_equal_parts",
        "test_groups_in_a_tier_that_is_fair_by_time",
        "test_groups_with_a_gate",
        "test_a_limited_group_with_many_topics",
        "test_a_topic_waits_for_its_gate_and_its_group",
        "test_rate_of_a_group_holds_over_its_topics",
        "test_concurrency_of_a_group_holds_over_its_topics",
        "test_weights_of_groups",
        "test_lanes_at_a_gate_earn_their_group_no_credit",
        "test_lanes_of_a_shut_gate_do_not_hide_others",
        "test_many_groups",
        "test_late_visit_of_partitions_loses_no_permit",
        "test_messages_that_are_only_copied_fill_the_namespace",
        "test_named_topics_are_charged_to_their_group",
        "test_one_partition_reaches_the_concurrency_of_all",
        "test_one_partition_reaches_the_rate_of_all",
        "test_explain_names_what_partitions_share",
        "test_explain_partitions",
        "test_limit_of_partitions_outlives_a_pause",
        "test_partitions_with_a_rate_at_a_gate",
        "test_pools_at_one_gate",
        "test_three_gates",
        "test_tiers_at_one_gate",
        "test_partitions_behind_a_gate_share_their_limits_too",
        "test_partitions_leave_nothing_behind",
        "test_partitions_share_one_limit",
        "test_partitions_shrink_one_limit",
        "test_partitions_with_fewer_calls_than_partitions",
        "test_never_more_than_the_rate",
        "test_only_passes_over_a_bounded_number",
        "test_partitions_and_buckets_in_groups",
        "test_permits_that_come_back_immediately_are_all_there",
        "test_permits_that_come_back_late_are_not_used_twice",
        "test_releases_never_exceed_the_rate",
        "test_shares_of_tiers_in_every_pool",
        "test_shares_of_tiers_in_every_window",
        "test_startable",
        "test_the_next_wake_is_that_of_the_cost",
        "test_topics_of_a_group_get_parts_by_their_weights",
        "test_topics_with_gates_in_another_order_do_not_block_each_other",
        "test_waiting_counts_at_every_gate",
        "test_waiting_topics_move_to_another_group",
        "test_wakes_when_the_last_gate_opens",
        "test_weights_at_every_moment",
    )
)
"""
Tests of the suite about what holds inside a shard: the order of topics, shares, and gates, which
shards divide about once a second.
"""


PARTS: dict[str, int] = {
    "redis": 1,
    "postgres": 2,
    "sqlite 4 files": 2,
    "valkey, cluster": 2,
    "sqlite folder": 4,
    "sqlite memory": 4,
    "valkey, few rights": 4,
    "valkey, sentinels": 4,
    "postgres 4 schemas": 8,
    "postgres, pgbouncer": 16,
}
"""
Engines that share their rules with another one, and differ from it in their statements or in how or
to which server they connect. They run one test in so many, each with one of its parameters; `make
conformance` runs all. A new namespace of PostgreSQL costs its server 75 ms for each schema.
"""

IS_WHOLE = "LANEWAY_CONFORMANCE" in os.environ


def _left_out(items: list[pytest.Item]) -> set[pytest.Item]:
    left_out: set[pytest.Item] = set()
    chosen: dict[tuple[str, str, str], pytest.Item] = {}
    for item in items:
        if not (isinstance(item, pytest.Function) and hasattr(item, "callspec")):
            continue
        name = item.callspec.params.get("make_engine")
        if name in SHARDED and item.originalname in EXACT_IN_A_SHARD:
            left_out.add(item)
        if name in PARTS and not IS_WHOLE:
            test = (name, item.module.__name__, item.originalname)
            if _number(" ".join(test)) % PARTS[name] != 0:
                left_out.add(item)
            elif _number(item.name) < _number(chosen.setdefault(test, item).name):
                left_out.add(chosen[test])
                chosen[test] = item
            elif chosen[test] is not item:
                left_out.add(item)
    return left_out


def _number(text: str) -> int:
    """The same in each run."""
    return zlib.crc32(text.encode())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests of one shard on engines with one shard only, and some engines' in part."""
    left_out = _left_out(items)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(params=[*ENGINES, *SHARDED])
def make_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Settings], FullEngine]:
    number = iter(range(100))

    def make(settings: Settings) -> FullEngine:
        folder = tmp_path / str(next(number))
        folder.mkdir()
        return (ENGINES | SHARDED)[request.param](folder, settings)

    return make
