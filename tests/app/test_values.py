"""`app.values`: small values with a time to live."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Refused, UsageError
from laneway.testing.servers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as instance:
        yield instance


def test_values(app: Laneway) -> None:
    """Put, read, replace and delete."""
    values = app.values
    assert values.get("a") is None
    values.put("a", "text", ttl=60)
    values.put("b", b"", ttl="1h")
    assert values.get_many(["a", "b", "c"]) == [b"text", b"", None]
    values.delete("a")
    assert asyncio.run(values.aget("a")) is None
    assert values.get_many([]) == []


def test_values_expire(app: Laneway) -> None:
    """A value is gone after its time to live, which each write begins again."""
    app.values.put("a", "1", ttl=0.01)
    app.values.put("b", "1", ttl=0.01)
    app.values.put("b", "2", ttl=60)
    until(lambda: app.values.get("a") is None, "it expired")
    assert app.values.get("b") == b"2"


def test_swap(app: Laneway) -> None:
    """Stored only in place of the value that the caller knows."""
    values = app.values
    assert not values.swap("a", "x", "1", ttl=60)
    assert values.swap("a", None, "1", ttl=60)
    assert not values.swap("a", None, "2", ttl=60)
    assert values.swap("a", b"1", b"2", ttl=60)
    assert values.get("a") == b"2"


def test_counters(app: Laneway) -> None:
    """Each call counts once, whatever calls at the same time."""
    with ThreadPoolExecutor(4) as threads:
        sums = list(threads.map(lambda _: app.values.add("n", 2, ttl=60), range(40)))
    assert sorted(sums) == [2 * n for n in range(1, 41)]
    assert app.values.add("n", -80, ttl=60) == 0
    app.values.put("text", "x", ttl=60)
    with pytest.raises(UsageError, match="'text' is not a counter"):
        app.values.add("text", ttl=60)


def test_wait_for(app: Laneway) -> None:
    """Returns a value when it is stored, or another one than the known one; None after a time."""
    assert app.values.wait_for("a", timeout=0.01) is None
    timer = threading.Timer(0.05, app.values.put, ["a", "1"], {"ttl": 60})
    timer.start()
    assert app.values.wait_for("a", timeout=30) == b"1"
    timer.join()
    assert app.values.wait_for("a", unlike=b"1", timeout=0.01) is None
    assert app.values.wait_for("a", unlike=b"0") == b"1"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", 5])
def test_wrong_names(app: Laneway, name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        app.values.get_many([name])


def test_wrong_values(app: Laneway) -> None:
    with pytest.raises(UsageError, match="expected a value of bytes or text"):
        app.values.put("a", 5, ttl=60)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ttl"):
        app.values.put("a", "5", ttl=0)
    with pytest.raises(UsageError, match="valid Unicode"):
        app.values.put("a", "\ud800", ttl=1)
    with pytest.raises(UsageError, match="valid Unicode"):
        app.values.swap("a", "\ud800", "b", ttl=1)


def test_forgotten_subscriptions(app: Laneway) -> None:
    """
    A subscription that nobody declares again is removed by a later call for its topic, with what it
    holds; one that is declared again stays.
    """
    app.subscribe("t", "gone", forget_after="1s")
    app.subscribe("t", "kept", forget_after="1h")
    app.subscribe("t", "forever")
    app.publish("t", 1)
    until(lambda: app.values.get("subscription t#gone") is None, "it was not renewed")
    app.subscribe("t", "kept", forget_after="1h")
    assert [each.name for each in app.topic("t").subscriptions()] == ["forever", "kept"]
    assert app.topic("t#kept").stats().waiting == 1
    with pytest.raises(Refused):
        app.lease(1, topics=["t#gone"])
    with pytest.raises(UsageError, match="forget_after"):
        app.subscribe("t", "short", forget_after=0.1)
