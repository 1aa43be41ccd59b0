"""`app.topic_group`: the weight and the limits of topics that compete as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.errors import BadPolicy


def test_settings_of_a_group(tmp_path: Path) -> None:
    """They are declared before the store is opened or after it, and copied with the policies."""
    app = Laneway(f"sqlite:///{tmp_path}/groups.db")
    app.policy("push.*", group="customer.{1}")
    app.topic_group("customer.acme", weight=3, rate="600/m")
    assert [(each["name"], each["weight"], each["rate"]) for each in app.topic_groups.list()] == [
        ("customer.acme", 3, 10)
    ]
    asyncio.run(app.atopic_group("customer.acme", concurrency=5))
    (group,) = asyncio.run(app.topic_groups.alist())
    assert (group["weight"], group["rate"], group["concurrency"]) == (1, None, 5)
    app.publish("push.acme.1", 1)
    assert app.topic("push.acme.1").stats().group == "customer.acme"
    other = Laneway(f"sqlite:///{tmp_path}/groups.db", namespace="other")
    assert any(place[0] == "topic group" for place in app.policies.compare(other))
    app.policies.copy(other)
    assert app.policies.compare(other) == []
    app.close()
    other.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0}, "topic group g: weight: expected a weight from 0.01 to 1000, got 0"),
        ({"rate": "fast"}, "topic group g: .*fast"),
        ({"concurrency": 0}, "topic group g: concurrency: expected a whole number from 1"),
        ({"burst": 2}, 'topic group g: "burst" has no meaning without "rate"'),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(BadPolicy, match=message):
        Laneway("sqlite://").topic_group("g", **settings)  # type: ignore[arg-type]


def test_migrate_moves_groups(tmp_path: Path) -> None:
    """Their settings, in both layers, go to the other store with the policies."""
    old = Laneway(f"sqlite:///{tmp_path}/old.db").engine
    new = Laneway(f"sqlite:///{tmp_path}/new.db").engine
    from laneway.policy import Gate

    old.topic_group_set("g", Gate(weight=2))
    old.topic_group_set("g", Gate(concurrency=3), layer="operator")
    for name, layer, gate in old.gate_layers():
        new.gate_set(name, gate, layer=layer)
    assert new.topic_group_list() == old.topic_group_list()
    old.close()
    new.close()
