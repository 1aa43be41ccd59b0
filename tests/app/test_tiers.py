"""Tiers as applications change them, and as other processes see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path

import pytest

from laneway import Laneway, Tier
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.errors import BadPolicy
from laneway.message import Draft
from laneway.tiers import TierLayers
from tests.conformance.valkey_setups import server

OTHER = """
import sys
from collections import Counter
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Settlement

engine = open_engine(sys.argv[1], Settings(namespace=sys.argv[2], durability="memory"))
for line in sys.stdin:
    given = Counter()
    while given.total() < int(line):
        leases = engine.lease(10).leases
        given.update(lease.topic.partition(".")[0] for lease in leases)
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    print(*(f"{tier}={count}" for tier, count in sorted(given.items())), flush=True)
"""


@pytest.fixture(params=["sqlite", "valkey", "valkey with 4 shards"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/q.db"
    return server().url + ("?shards=4" if "shards" in request.param else "")


@pytest.fixture
def namespace() -> str:
    return f"tiers-{uuid.uuid4().hex}"


def test_another_process_obeys_at_its_next_lease(url: str, namespace: str) -> None:
    """One that only leases: it was told nothing, and asks for no policy."""
    engine = open_engine(url, Settings(namespace=namespace, durability="memory"))
    for tier in ("high", "mid", "low"):
        engine.policy_set("code", f"{tier}.*", {"tier": tier})
    engine.put(
        [
            Draft(f"{tier}.{n}", b"x")
            for tier in ("high", "mid", "low")
            for n in range(30)
            for _ in range(60)
        ]
    )
    command = [sys.executable, "-c", OTHER, url, namespace]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def lease(count: int) -> Counter[str]:
            print(count, file=other.stdin, flush=True)
            pairs = (pair.split("=") for pair in other.stdout.readline().split())  # type: ignore[union-attr]
            return Counter({tier: int(number) for tier, number in pairs})

        assert lease(100) == {"high": 60, "mid": 30, "low": 10}
        engine.tier_set("operator", {"high": Tier(1), "low": Tier(6)})
        assert lease(100) == {"high": 10, "mid": 30, "low": 60}
        engine.tier_reset()
        assert lease(100) == {"high": 60, "mid": 30, "low": 10}
        other.stdin.close()
    engine.close()


def test_shard_that_missed_a_change(namespace: str) -> None:
    """
    A process that changes the tiers may die in the middle. The next lease of another process, which
    reads the tiers once a second, completes the change in the shard.
    """
    url = f"{server().url}?shards=4"
    one = open_engine(url, Settings(namespace=namespace, durability="memory"))
    other = open_engine(url, Settings(namespace=namespace, durability="memory"))
    one.put([Draft(f"t.{n}", b"x") for n in range(30)])
    space = one._space  # type: ignore[attr-defined]
    after = TierLayers.new({"vip": Tier(6), "rest": Tier(1)}, None)
    after.version = space.tier_layers.version + 1
    text = after.json()
    server().run("HSET", f"laneway:{{{namespace}/0}}:settings", "tier_layers", text.decode())
    other._space._look_again = 0.0  # type: ignore[attr-defined]
    found = []
    for _ in range(10):
        found += [lease.topic for lease in other.lease(10).leases]
    assert len(found) == 30
    assert {tier.tier for tier in other.overview().tiers} == {"mid", "rest"}
    assert other.topic_stats("t.1").tier == "rest"
    for engine in (one, other):
        engine.close()


def test_a_process_sets_a_policy_with_a_tier_that_another_has_added(
    url: str, namespace: str
) -> None:
    """
    Also a topic's policy, of which other processes are not notified. No process can then remove the
    tier.
    """
    one, other = (
        open_engine(url, Settings(namespace=namespace, durability="memory")) for _ in range(2)
    )
    one.tier_set("code", {"gold": Tier(2)})
    other.policy_set("code", "push.acme", {"tier": "gold"})
    for engine in (one, other):
        with pytest.raises(BadPolicy, match=r"policy push\.acme names it"):
            engine.tier_set("code", {"gold": None})
    other.policy_reset("code", "push.acme")
    one.tier_set("code", {"gold": None})
    with pytest.raises(BadPolicy, match="gold"):
        other.policy_set("code", "push.acme", {"tier": "gold"})
    for engine in (one, other):
        engine.close()


def test_an_application_changes_its_tiers(url: str, namespace: str) -> None:
    """Before the store is opened and after; with names that no argument can have; None removes."""
    app = Laneway(url, namespace=namespace, tiers={"vip": 6, "rest": 1})
    app.tiers(gold=3)
    app.policy("gold.*", tier="gold")
    app.publish("gold.x", 1)
    app.tiers({"very low": Tier(0.5, fair_by="time")}, vip="strict")
    expected = {
        "vip": Tier("strict"),
        "rest": Tier(1),
        "gold": Tier(3),
        "very low": Tier(0.5, fair_by="time"),
    }
    assert app.engine.tier_layers().in_force() == expected
    asyncio.run(app.atiers({"very low": None}))
    app.close()
    with Laneway(url, namespace=namespace, tiers={"vip": 6, "rest": 1}) as again:
        assert again.engine.tiers == {"vip": Tier("strict"), "rest": Tier(1), "gold": Tier(3)}
        assert again.engine.tiers.default == "rest"


def test_a_default_tier_is_stated_and_stays(url: str, namespace: str) -> None:
    with Laneway(url, namespace=namespace, default_tier="low") as app:
        app.publish("x", 1)
        assert app.topic("x").stats().tier == "low"
    with Laneway(url, namespace=namespace) as app:
        assert app.topic("x").stats().tier == "low"
