"""
Round trips of calls over many topics, by rule: none makes one for each topic or message.

Each answer that is waited for costs a round trip to the server, and the schema's lock is held
meanwhile.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest

from laneway.engines.base import Settings
from laneway.engines.postgres.engine import PostgresEngine
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from tests.conformance.postgres_setups import server

TOPICS = 100

_NONE: dict[str, Any] = {}
_ACK: dict[str, Any] = {"action": "ack"}


class Rule(NamedTuple):
    """
    A rule of all topics, and the maximum round trips of a put, a lease and a settlement under it,
    once the statements are prepared.
    """

    trips: tuple[int, int, int]
    policy: dict[str, Any] = _NONE
    draft: Callable[[int], dict[str, Any]] = lambda _: {}
    lease: dict[str, Any] = _NONE
    settlement: dict[str, Any] = _ACK
    owns: dict[str, str] = _NONE
    """Fields of each topic's own policy: templates of its number."""


def _key(n: int) -> dict[str, Any]:
    return {"key": f"k{n}"}


RULES = {
    "none": Rule((2, 3, 2)),
    "merge": Rule((3, 5, 2), {"merge": "all"}, _key),
    "a gate for each topic": Rule((3, 104, 3), owns={"gate": "gate{}"}),
    "two gates": Rule((3, 5, 3), {"gate": ["gate0", "gate1"]}),
    "buckets": Rule((3, 4, 2), {"buckets": 16}),
    "a retry": Rule((2, 4, 6), settlement={"action": "retry", "delay_us": 0}),
}


@pytest.mark.parametrize("messages", [100, 500])
@pytest.mark.parametrize("is_cold", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_no_rule_makes_a_round_trip_for_each_topic(
    name: str, messages: int, *, is_cold: bool
) -> None:
    """`is_cold`: another process has written, so what this one has cached is outdated."""
    rule = RULES[name]
    with _engines() as (engine, other):
        for n in range(TOPICS):
            engine.gate_set(f"gate{n}", Gate(concurrency=1_000))
            own = {field: template.format(n) for field, template in rule.owns.items()}
            if own:
                engine.policy_set("code", f"t.{n}", own)
        engine.policy_set("code", "t.*", rule.policy)
        trips: dict[str, int] = {}

        def count(call: str, run: Callable[[], Any]) -> Any:
            if is_cold:
                other.put([Draft("other", b"x", delay_us=10**9) for _ in range(2)])
            connection = engine._store._connection
            assert connection is not None
            before = connection.pipeline.trips
            answer = run()
            trips[call] = connection.pipeline.trips - before
            return answer

        for _ in range(2):  # the first round prepares
            drafts = [Draft(f"t.{n % TOPICS}", b"x", **rule.draft(n)) for n in range(messages)]
            count("put", partial(engine.put, drafts))
            leases = count("lease", partial(engine.lease, messages, **rule.lease)).leases
            assert len(leases) >= messages
            settlements = [
                Settlement(each.handle, each.fence, **rule.settlement) for each in leases
            ]
            count("settle", partial(engine.settle, settlements))
    for (call, waited), most in zip(trips.items(), rule.trips, strict=True):
        assert waited <= most, f"{call}: {waited} round trips"


@contextmanager
def _engines() -> Iterator[tuple[PostgresEngine, PostgresEngine]]:
    """An engine, and another process's on the same namespace."""
    settings = Settings(namespace=f"trips-{uuid.uuid4().hex}")
    engine = PostgresEngine(server().url, settings)
    other = PostgresEngine(server().url, settings)
    try:
        yield engine, other
    finally:
        other.close()
        engine.close()
