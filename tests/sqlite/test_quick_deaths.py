"""
Deaths of cached leases, which are settled together, leave the same rows as those of leases that are
read, which are settled one by one.
"""

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.shared.refusals import EXPIRED
from laneway.headers import FLOW, RESULT_TTL
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate
from tests.seeds import FIXED

NOW = 1_700_000_000_000_000

POLICIES: dict[str, dict[str, Any]] = {
    "serial": {"serial": "hold", "gate": "g"},
    "keys": {"key_concurrency": 1, "dead_ttl": 60},
    "merged": {"merge": "all", "dedupe": 60, "retries": 1},
    "folded.*": {"buckets": 2, "serial": "hold", "dead_ttl": 90},
    "auto": {"concurrency": "auto"},
}
TOPICS = ("plain", "plain.2", "serial", "keys", "merged", "folded.a", "folded.b", "auto")
HEADERS: tuple[dict[str, str], ...] = (
    *({} for _ in range(4)),
    {"h": "1"},
    {RESULT_TTL: "60 60"},
    {FLOW: "f", RESULT_TTL: "60 60"},
)
TABLES = (
    "message", "lease", "note", "dead", "dead_count", "event", "lane", "serial_key", "ready",
    "parked", "key_parked", "key_state", "kept", "ident", "gate", "recent", "tier_queue",
)  # fmt: skip
COUNTS = "seq, fence, now, waiting, bytes, leased, dead, published, done, retried, died, lanes"


def draft_of(random: Random, number: int) -> Draft:
    key = f"k{random.randrange(3)}" if random.random() < 0.5 else None
    return Draft(
        random.choice(TOPICS),
        b"%d" % number,
        id=f"id{number}",
        key=key,
        priority=random.randrange(2),
        ttl_us=10**9 if random.random() < 0.1 else None,
        headers=dict(random.choice(HEADERS)),
    )


def settlement_of(random: Random, lease: Lease, *, dies: bool) -> Settlement:
    """With `dies` there are only deaths and acks."""
    settlement = Settlement(lease.handle, lease.fence, cost_us=1_000)
    kind = random.random()
    if dies and kind < 0.8:
        settlement.action = "dead"
        settlement.reason = random.choice((None, "refused", EXPIRED))
        settlement.error = random.choice((None, "", "failed\nbadly"))
    elif not dies and kind < 0.8:
        settlement.action, settlement.delay_us = random.choice(("retry", "dead", "unhandled")), 0
    if random.random() < 0.05:
        settlement.overload = "timeout"
    if random.random() < 0.1:
        settlement.id, settlement.topic = lease.id, lease.topic
        settlement.outcome, settlement.outcome_ttl_us = b"1", 10**9
    return settlement


def history(engine: Any, settler: Any, random: Random) -> list[Any]:
    """The answers of random calls, and the rows after some of them."""
    now, number, seen = NOW, 0, []
    for call in range(40):
        now += random.choice((0, 20_000, 5_000_000))
        drafts = [draft_of(random, number + n) for n in range(random.randint(1, 20))]
        number += len(drafts)
        engine.put(drafts, now_us=now)
        leases = engine.lease(random.randint(1, 20), now_us=now).leases
        if leases:
            dies = random.random() < 0.7
            settlements = [settlement_of(random, lease, dies=dies) for lease in leases]
            if random.random() < 0.1:
                settlements.append(settlements[0])
            publish = {0: [Draft("plain", b"child")]} if random.random() < 0.2 else None
            seen.append(settler.settle(settlements, publish=publish, now_us=now))
        if random.random() < 0.2:
            seen.append([engine.dead_redrive(None, limit=5, now_us=now)])
        if call % 4 == 3:
            seen += rows(engine)
    return seen


def rows(engine: Any) -> list[Any]:
    connection = engine._store.connection
    texts = [f"SELECT * FROM {name}" for name in TABLES]
    texts.append(f"SELECT {COUNTS} FROM shard")
    return [sorted(connection.execute(text).fetchall(), key=repr) for text in texts]


@pytest.mark.parametrize("seed", range(FIXED, FIXED + 6))
def test_deaths_of_cached_leases_leave_the_rows_of_those_that_are_read(
    tmp_path: Path, seed: int
) -> None:
    histories: list[list[Any]] = []
    for name in ("cached", "read"):
        file = tmp_path / f"{name}.db"
        with ExitStack() as stack:
            one, two = (
                stack.enter_context(closing(open_engine(f"sqlite:///{file}", Settings())))
                for _ in range(2)
            )
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                connection.execute("UPDATE shard SET nonce = 'same'")
            one.gate_set("g", Gate(concurrency=3), now_us=NOW)
            for pattern, fields in POLICIES.items():
                one.policy_set("code", pattern, fields, now_us=NOW)
            settler = one if name == "cached" else two
            histories.append(history(one, settler, Random(seed)))
    for cached, read in zip(*histories, strict=True):
        assert cached == read
    assert any("died" in each for each in histories[0])
