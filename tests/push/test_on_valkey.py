"""A chosen part of the tests of push, with Valkey as the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway import Laneway
from laneway.testing.servers import Server
from tests.push.test_delivery_log import (
    test_an_attempt_in_the_log,
    test_replay_of_many,
    test_replay_to_one_subscription,
    test_search,
)
from tests.push.test_endpoints import test_endpoints_by_state
from tests.push.test_failing import test_breaker_of_a_dead_endpoint
from tests.push.test_sending import (
    test_gone_endpoint_is_disabled_until_it_is_enabled,
    test_rotated_secret,
    test_subscriptions_and_events,
)

__all__ = [
    "test_an_attempt_in_the_log",
    "test_breaker_of_a_dead_endpoint",
    "test_endpoints_by_state",
    "test_gone_endpoint_is_disabled_until_it_is_enabled",
    "test_replay_of_many",
    "test_replay_to_one_subscription",
    "test_rotated_secret",
    "test_search",
    "test_subscriptions_and_events",
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def app(key: str, server: Server, request: pytest.FixtureRequest) -> Iterator[Laneway]:
    """An application with a namespace of its own."""
    name = request.node.name.removeprefix("test_")[:40]
    with Laneway(f"{server.url}?shards=4", namespace=name) as application:
        application.policy("push.*", backoff=0, retries=2)
        application.push("push.*")
        yield application
