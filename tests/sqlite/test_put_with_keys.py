"""Messages with keys that one call puts together have the places that they get one by one."""

from __future__ import annotations

import random
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement
from tests.seeds import seed_for

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine

SEED = seed_for("LANEWAY_HISTORIES")
NOW = 1_700_000_000_000_000


def _engine(stack: ExitStack, policy: dict[str, object], url: str = "sqlite://") -> FullEngine:
    engine = open_engine(url, Settings(durability="memory"))
    stack.enter_context(closing(engine))
    engine.policy_set("code", "t.*", policy, now_us=NOW)
    return engine


def _drafts(draw: random.Random, count: int) -> list[Draft]:
    return [
        Draft(
            f"t.{draw.randrange(3)}",
            str(draw.random()).encode(),
            draw.choice([None, "", "a", "b", "c"]),
            priority=draw.choice([0, 0, 0, 1, -1]) if draw.random() < 0.3 else 0,
            headers=draw.choice([None, {"trace": "1"}]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "policy", [{"serial": "hold"}, {"serial": "yield"}, {"key_concurrency": 1}, {}], ids=str
)
def test_one_call_does_as_a_call_for_each(policy: dict[str, object]) -> None:
    print(f"LANEWAY_SEED={SEED}")
    draw = random.Random(SEED)
    with ExitStack() as stack:
        together, apart = (_engine(stack, policy) for _ in range(2))
        now = NOW
        for _ in range(30):
            now += 1
            drafts = _drafts(draw, draw.randrange(1, 12))
            receipts = together.put(drafts, now_us=now)
            assert [receipt.topic for receipt in receipts] == [draft.topic for draft in drafts]
            for draft in drafts:
                apart.put([draft], now_us=now)
            n = draw.randrange(1, 8)
            leases = [each.lease(n, now_us=now).leases for each in (together, apart)]
            bodies = [[(lease.topic, lease.body, lease.key) for lease in each] for each in leases]
            assert bodies[0] == bodies[1]
            actions = [draw.choice(["ack", "ack", "release", "retry"]) for _ in leases[0]]
            for engine, its in zip((together, apart), leases, strict=True):
                engine.settle(
                    [
                        Settlement(lease.handle, lease.fence, action)  # type: ignore[arg-type]
                        for lease, action in zip(its, actions, strict=True)
                    ],
                    now_us=now,
                )
            for topic in ("t.0", "t.1", "t.2"):
                stats = [each.topic_stats(topic, now_us=now) for each in (together, apart)]
                assert stats[0] == stats[1]
        assert [check for check in together.doctor() if not check.ok] == []


def test_a_key_whose_head_was_lost_gets_another(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = _engine(stack, {"serial": "hold"}, f"sqlite:///{tmp_path}/q.db")
        engine.put([Draft("t.1", b"lost", "a"), Draft("t.1", b"x")], now_us=NOW)
        with closing(sqlite3.connect(tmp_path / "q.db")) as connection, connection:
            connection.execute("DELETE FROM message WHERE body = x'6c6f7374'")
            connection.execute("DELETE FROM ready WHERE mid NOT IN (SELECT mid FROM message)")
        engine.put([Draft("t.1", b"1", "a"), Draft("t.1", b"2", "a")], now_us=NOW)
        leases = engine.lease(10, now_us=NOW).leases
        assert [lease.body for lease in leases] == [b"x", b"1"]
