"""Consumers of one's own: `app.lease` with patterns, and `app.leases`, which renews."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as instance:
        yield instance


def test_lease_of_patterns(app: Laneway) -> None:
    """`only` takes topics and patterns in fair order and leaves the others."""
    for number in range(6):
        app.publish("push.large", number)
    app.publish("push.small", 0)
    app.publish("mail.large", 0)
    found = [each.topic for each in app.lease(4, only=["push.*"])]
    assert sorted(set(found)) == ["push.large", "push.small"]
    assert [each.topic for each in app.lease(9, only=["mail.large"])] == ["mail.large"]
    assert app.lease(1, only=["mail.*"], wait=0.01) == []


def test_lease_waits_for_a_pattern(app: Laneway) -> None:
    """It returns what comes for the pattern, although other messages wait."""
    app.publish("mail", 0)
    timer = threading.Timer(0.05, app.publish, ["push.a", 1])
    timer.start()
    assert [each.body for each in app.lease(1, only=["push.*"], wait=30)] == [1]
    timer.join()


def test_length_of_a_lease(app: Laneway) -> None:
    """`lease` shortens the policy's lease, and never makes it longer."""
    app.policy("short", lease=2)
    app.publish("t")
    app.publish("short")
    begin = time.time()
    (delivery,) = app.lease(1, topics=["t"], lease="5s")
    assert begin + 4 < delivery.deadline < begin + 15
    (delivery,) = app.lease(1, topics=["short"], lease="5s")
    assert delivery.deadline < begin + 4.5


def test_wrong_arguments(app: Laneway) -> None:
    """Each refusal names the argument."""
    with pytest.raises(UsageError, match="or only, got both"):
        app.lease(topics=["a"], only=["b"])
    with pytest.raises(UsageError, match="only to name at least one"):
        app.lease(only=[])
    with pytest.raises(UsageError, match=r"a\*"):
        app.lease(only=["a*"])
    with pytest.raises(UsageError, match="lease to be at least 1 s"):
        app.lease(lease=0.5)
    with pytest.raises(UsageError, match="limit to be a whole number"):
        app.leases(0)
    for call in (app.release_many, lambda wrong: app.extend_many(wrong, 9)):
        with pytest.raises(UsageError, match="_many: expected deliveries"):
            call(5)  # type: ignore[arg-type]


def test_release_many(app: Laneway) -> None:
    """They are ready again, without an attempt; one that was settled stays settled."""
    for number in range(3):
        app.publish("t", number)
    deliveries = app.lease(3)
    deliveries[0].ack()
    app.release_many(deliveries)
    assert [(each.body, each.attempt, each.deliveries) for each in app.lease(3)] == [
        (1, 1, 2),
        (2, 1, 2),
    ]


def test_extend_many(app: Laneway) -> None:
    """Returns those whose leases had ended; the others get their new deadline."""
    for number in range(2):
        app.publish("t", number)
    first, second = app.lease(2, lease="5s")
    first.ack()
    before = second.deadline
    assert app.extend_many([first, second], by=60) == [first]
    assert second.deadline > before + 50
    assert app.extend_many([], by=60) == []


def test_leases_are_renewed(app: Laneway) -> None:
    """A message that is held for longer than its lease is not delivered again; `close` releases."""
    app.publish("t", 1)
    with app.leases(5, lease="1s") as leases:
        (delivery,) = leases.take()
        first = delivery.deadline
        with pytest.raises(Refused):
            app.lease(1, topics=["t#none"])
        assert app.lease(1, wait=1.5) == []
        assert delivery.deadline > first
        assert len(leases) == 1
    (again,) = app.lease(1)
    assert (again.attempt, again.deliveries) == (1, 2)


def test_leases_wait_for_room(app: Laneway) -> None:
    """At the limit `take` waits until a lease is settled, by whatever call."""
    for number in range(4):
        app.publish("t", number)
    with app.leases(2) as leases:
        deliveries = leases.take()
        assert [each.body for each in deliveries] == [0, 1]
        assert leases.take(wait=0.01) == []
        timer = threading.Timer(0.05, app.ack_many, [deliveries])
        timer.start()
        assert [each.body for each in leases.take(1, wait=30)] == [2]
        timer.join()
        leases.limit = 1
        assert leases.room == 0


def test_leases_are_woken(app: Laneway) -> None:
    """A message, and `wake`, end the wait."""
    with app.leases(2, only=["a", "b.*"]) as leases:
        timer = threading.Timer(0.05, app.publish, ["b.c", 1])
        timer.start()
        assert [each.body for each in leases.take(wait=30)] == [1]
        timer.join()
        leases.wake()
        assert leases.take(wait=30) == []
        timer = threading.Timer(0.05, leases.wake)
        timer.start()
        assert leases.take(wait=30) == []
        timer.join()


def test_leases_of_the_whole_pool(app: Laneway) -> None:
    """A message that the store leases to the waiting caller is held like others."""
    with app.leases(2) as leases:
        timer = threading.Timer(0.05, app.publish, ["t", 1])
        timer.start()
        (delivery,) = leases.take(wait=30)
        timer.join()
        assert len(leases) == 1
        delivery.ack()
        assert len(leases) == 0
        assert leases.take(wait=0.01) == []
    assert app.topic("t").stats().done == 1
