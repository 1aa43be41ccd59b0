"""A change of policies that one shard refuses holds on no shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.errors import TopicInUse
from laneway.message import Draft, Settlement
from tests.sharded.conftest import Opened

ONLY_THE_RATE = [("code", "a.*", {"rate": 1.0})]


def wrong(engine: FullEngine) -> list[str]:
    return [check.detail for check in engine.doctor() if not check.ok]


def ack_all(engine: FullEngine) -> int:
    leases = engine.lease(100).leases
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
    return len(leases)


def home_of(engine: Any, topic: str) -> int:
    return int(engine._space.routes.home(topic))


def on_each_shard(engine: FullEngine) -> list[str]:
    """Topics b.…, one on each shard."""
    found: dict[int, str] = {}
    for n in range(100):
        found.setdefault(home_of(engine, f"b.{n}"), f"b.{n}")
    return [found[shard] for shard in range(4)]


def changes_of(topic: str) -> list[tuple[str, dict[str, Any]]]:
    return [(topic, {"partitions": 4}), ("b.*", {"buckets": 4}), ("*", {"partitions": 3})]


@pytest.mark.parametrize(("shard", "change"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_a_refused_change_holds_nowhere(opened: Opened, shard: int, change: int) -> None:
    engine, other = opened(), opened()
    engine.policy_set("code", "a.*", {"rate": 1})
    topic = on_each_shard(engine)[shard]
    engine.put([Draft(topic, b"x")])
    name, fields = changes_of(topic)[change]
    for each in (engine, other):
        with pytest.raises(
            TopicInUse, match=f"policy {name.replace('*', '.')}: .* {topic} holds 1"
        ):
            each.policy_set("code", name, fields)
        assert wrong(engine) == wrong(other) == []
        assert each.policies().source_rows() == ONLY_THE_RATE
    assert ack_all(other) == 1
    other.policy_set("code", name, fields)
    assert wrong(engine) == wrong(other) == []


@pytest.mark.parametrize(("shard", "change"), [(1, 0), (2, 1), (3, 2)])
def test_a_change_that_is_refused_late_is_undone(
    opened: Opened, shard: int, change: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message comes after all shards were asked, before its shard has the change."""
    engine, other = opened(), opened()
    space = engine._space  # type: ignore[attr-defined]
    engine.policy_set("code", "a.*", {"rate": 1})
    topic = on_each_shard(engine)[shard]
    name, fields = changes_of(topic)[change]
    trial = space.try_policies_on

    def try_policies_on(*arguments: Any) -> Any:
        answers = trial(*arguments)
        other.put([Draft(topic, b"x")])
        return answers

    with monkeypatch.context() as patched:
        patched.setattr(space, "try_policies_on", try_policies_on)
        with pytest.raises(TopicInUse):
            engine.policy_set("code", name, fields)
    assert wrong(engine) == wrong(other) == []
    for each in (engine, other):
        assert each.policies().source_rows() == ONLY_THE_RATE
    assert ack_all(other) == 1
    other.policy_set("code", name, fields)
    assert wrong(engine) == wrong(other) == []


def test_a_shard_with_an_older_version_is_asked_once_it_has_this_one(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ended before all shards had its change."""
    engine, other = opened(), opened()
    space = engine._space  # type: ignore[attr-defined]
    topic = on_each_shard(engine)[3]
    engine.put([Draft(topic, b"x")])

    write_policies_on = space.write_policies_on

    def end(shards: Sequence[int], *arguments: Any) -> Any:
        if 0 not in shards:
            raise KeyboardInterrupt
        return write_policies_on(shards, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(space, "write_policies_on", end)
        with pytest.raises(KeyboardInterrupt):
            engine.policy_set("code", "a.*", {"rate": 1})
    with pytest.raises(TopicInUse):
        other.policy_set("code", "b.*", {"partitions": 4})
    assert wrong(other) == []
    assert other.policies().source_rows() == ONLY_THE_RATE
    assert ack_all(engine) == 1
