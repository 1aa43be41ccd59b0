"""`laneway migrate`, what it refuses. tests/valkey/test_migrate.py moves everything."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from laneway import Laneway, Message
from laneway.cli import main
from laneway.engines.sqlite.store import Store
from laneway.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("{}/a.db", "{}/a.db"),
        ("{}/a.db", "{}/x/../a.db"),
        ("{}/a.db", "{}/link/a.db"),
        ("{}/q?shards=2", "{}/q"),
    ],
)
def test_a_store_is_not_moved_to_itself(tmp_path: Path, source: str, target: str) -> None:
    """Its messages would be moved again and again, without an end."""
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    old, new = (f"sqlite:///{url.format(tmp_path)}" for url in (source, target))
    run("--url", old, "publish", "t", "1", "--id", "one")
    refusal = run("migrate", old, new, code=2)
    assert refusal.startswith(f"laneway: migrate: {new} is the same namespace")
    assert "one" in run("--url", old, "peek", "t")


def test_another_namespace_of_the_same_file_is_no_such_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    run("--url", url, "publish", "t", "1")
    assert "1 message, " in run("migrate", url, url, "--to-namespace", "other")


@pytest.mark.parametrize("target", ["new.db", "new?shards=4"])
def test_a_topic_whose_fields_contradict_those_of_a_pattern_is_moved(
    tmp_path: Path, target: str
) -> None:
    """A later change of the pattern left the topic's fields without effect; they are kept."""
    old, new = f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/{target}"
    with Laneway(old) as app:
        app.publish("push.acme", 1)
        app.policy("mail.acme", serial="yield", partitions=3)
        app.publish("mail.acme", 1)
        app.policy("push.*", merge="last")
        app.policy("push.acme", window="5s")
        app.policy("push.*", merge=None)
        app.policy("mail.*", key_rate="1/s", delivery="at_most_once")
        before = [app.engine.policy_of(topic) for topic in ("push.acme", "mail.acme")]
    assert "3 policies" in run("migrate", old, new)
    assert run("--url", old, "policy", "list") == run("--url", new, "policy", "list")
    with Laneway(new) as app:
        after = [app.engine.policy_of(topic) for topic in ("push.acme", "mail.acme")]
        assert after == before
        app.policy("push.*", merge="last")
        assert app.engine.policy_of("push.acme").window == 5 * SECOND


def test_a_move_ends_what_a_clock_that_was_ahead_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The old store's time waits until the clock has caught up, so rates and delays are blocked. The
    new store's time is that of the clock.
    """
    now, ten_days = [time.time_ns() // 1000], 10 * 86_400 * SECOND
    monkeypatch.setattr(Store, "clock", lambda _: now[0])
    old, new = (f"sqlite:///{tmp_path}/{name}.db" for name in ("old", "new"))
    with Laneway(old) as app:
        app.policy("a", rate="1/s", burst=1)
        now[0] += ten_days
        app.publish_many(Message("a", n) for n in range(5))
        assert app.lease(5, topics=["a"])
        now[0] -= ten_days
        app.publish("b", 1, delay="4s")
        now[0] += 5 * SECOND
        assert app.lease(5, topics=["a"]) == app.lease(5, topics=["b"]) == []
    run("migrate", old, new, "--no-wait", code=1)
    with Laneway(new) as app:
        for _ in range(4):
            assert [each.topic for each in app.lease(5, topics=["a"])] == ["a"]
            assert app.lease(5, topics=["a"]) == []
            now[0] += SECOND
        assert app.lease(5, topics=["b"]) != []
