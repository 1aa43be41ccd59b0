"""Policies of exact topics, where several clients and shards are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import BadMessage
from laneway.message import Draft, Settlement
from laneway.testing.servers import Server
from tests.valkey.conftest import drain

Opened = Callable[..., FullEngine]


@pytest.fixture(params=[1, 4])
def pair(opened: Opened, request: pytest.FixtureRequest) -> Any:
    with Server() as server:
        url = f"{server.url}?shards={request.param}"
        yield opened(url, namespace="pair"), opened(url, namespace="pair")


def put(engine: FullEngine, topic: str, *bodies: str, **options: Any) -> list[str]:
    return [
        receipt.outcome
        for receipt in engine.put([Draft(topic, body.encode(), **options) for body in bodies])
    ]


def test_other_clients_read_nothing_again(
    pair: tuple[FullEngine, FullEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Whatever an exact policy says: it acts on what they put and lease, and they learn only what they
    have to.
    """
    ours, theirs = pair
    ours.policy_set("code", "*", {"retries": 1})
    for topic in ("a", "b", "c"):
        put(theirs, topic, "1", key="k")
    ours.policy_set("code", "a", {"paused": True})

    reload = Namespace.reload

    def refuse(space: Namespace) -> None:
        assert space is not theirs._space, "the policies are read again"  # type: ignore[attr-defined]
        reload(space)

    monkeypatch.setattr(Namespace, "reload", refuse)
    ours.policy_set_many(
        "code",
        [
            ("a", {"concurrency": 1}),
            ("b", {"merge": "last"}),
            ("c", {"max_body": 3}),
            *((f"t.{n}", {"rate": n + 1}) for n in range(300)),
        ],
    )
    assert put(theirs, "b", "2", "3", key="k") == ["accepted", "merged"]
    with pytest.raises(BadMessage, match="max_body"):
        put(theirs, "c", "1234")
    assert put(theirs, "t.3", "1") == ["accepted"]
    leases = theirs.lease(10).leases
    assert sorted(lease.topic for lease in leases) == ["b", "b", "c", "t.3"]
    ours.policy_set("code", "c", {"max_body": None})
    ours.policy_set("code", "a", {"paused": None})
    assert put(theirs, "c", "1234") == ["accepted"]
    ours.policy_set("code", "b", {"merge": None, "ttl": 1})
    assert put(theirs, "b", "4", "5", key="k") == ["accepted", "accepted"]


def test_what_goes_with_an_ack_follows_them_too(pair: tuple[FullEngine, FullEngine]) -> None:
    ours, theirs = pair
    put(theirs, "a", "1")
    put(theirs, "b", "1", key="k")
    ours.policy_set("code", "b", {"merge": "last"})
    (lease,) = theirs.lease(1, topics=["a"]).leases
    assert theirs.settle(
        [Settlement(lease.handle, lease.fence)], publish={0: [Draft("b", b"2", key="k")]}
    ) == ["acked"]
    assert ours.topic_stats("b").merged + len(drain(ours)) >= 1
    ours.policy_set("code", "b", {"merge": None, "max_body": 1})
    put(theirs, "a", "2")
    (lease,) = theirs.lease(1, topics=["a"]).leases
    with pytest.raises(BadMessage, match="max_body"):
        theirs.settle([Settlement(lease.handle, lease.fence)], publish={0: [Draft("b", b"22")]})


def test_two_clients_that_change_the_same_topics_lose_nothing(
    pair: tuple[FullEngine, FullEngine],
) -> None:
    """Each sets another field; what one read before the other wrote is read again."""
    ours, theirs = pair
    topics = [f"t.{n}" for n in range(50)]
    for _ in range(3):
        ours.policy_set_many("code", [(topic, {"rate": 5}) for topic in topics])
        theirs.policy_set_many("code", [(topic, {"weight": 2}) for topic in topics])
        ours.policy_set_many("operator", [(topic, {"retries": 0}) for topic in topics])
    found: dict[str, Any] = {}
    after: str | None = ""
    while after is not None:
        page, after = theirs.policy_own_list(after, 10)
        found |= dict(page)
    assert found == {
        topic: {"code": {"rate": 5.0, "weight": 2.0}, "operator": {"retries": 0}}
        for topic in topics
    }
    assert [check for check in ours.doctor() if not check.ok] == []
    for topic in topics:
        ours.policy_reset("code", topic)
        theirs.policy_reset("operator", topic)
    assert theirs.policy_own_list()[0] == []
