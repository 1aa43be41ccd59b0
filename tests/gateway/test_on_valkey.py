"""A chosen part of the gateway's tests, with Valkey as the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from laneway.testing.servers import Server
from tests.gateway.test_administration import (
    test_dead_letters,
    test_messages,
    test_pages_of_gates,
    test_pages_of_policies,
    test_policies,
)
from tests.gateway.test_background import (
    test_drop_by_fingerprint,
    test_events_of_endpoints,
    test_redrive_of_many,
)
from tests.gateway.test_consume import test_actions, test_client_that_hung_up, test_long_poll
from tests.gateway.test_consumers import test_exclusive_pattern, test_failover
from tests.gateway.test_operations import (
    test_actions_on_a_message,
    test_back_off,
    test_dead_by_fingerprint,
    test_dry_run,
    test_messages_that_have_ended,
)
from tests.gateway.test_publish import test_idempotency_key, test_lines, test_lists, test_publish
from tests.gateway.test_streams import test_schedules, test_stream

__all__ = [
    "test_actions",
    "test_actions_on_a_message",
    "test_back_off",
    "test_client_that_hung_up",
    "test_dead_by_fingerprint",
    "test_dead_letters",
    "test_drop_by_fingerprint",
    "test_dry_run",
    "test_events_of_endpoints",
    "test_exclusive_pattern",
    "test_failover",
    "test_idempotency_key",
    "test_lines",
    "test_lists",
    "test_long_poll",
    "test_messages",
    "test_messages_that_have_ended",
    "test_pages_of_gates",
    "test_pages_of_policies",
    "test_policies",
    "test_publish",
    "test_redrive_of_many",
    "test_schedules",
    "test_stream",
]


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """The URL of a server."""
    with Server() as server:
        yield server.url
