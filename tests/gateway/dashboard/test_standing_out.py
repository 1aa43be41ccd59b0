"""What stands out on the first page, when much does at once."""

from __future__ import annotations

from pathlib import Path

from laneway import Laneway, Message
from tests.gateway.dashboard.conftest import running


def test_the_largest_backlog_is_named_whatever_else_is_wrong(tmp_path: Path) -> None:
    """Neither six pools without workers nor six gates that are waited for hide it."""
    with Laneway(f"sqlite:///{tmp_path}/store.db") as app, running(app) as browser:
        for n in range(6):
            app.gate(f"gate-{n}", concurrency=1)
            app.policy(f"gated-{n}.*", gate=f"gate-{n}")
            app.policy(f"pooled-{n}.*", pool=f"pool-{n}")
            topics = (f"gated-{n}.a", f"gated-{n}.a", f"pooled-{n}.a")
            app.publish_many([Message(topic, 1) for topic in topics])
            app.engine.lease(2, topics=[f"gated-{n}.a"])
        app.publish_many([Message("push.flood", n) for n in range(200)])
        words = browser.get("/").words
        assert "7 pools have work that could run, and no worker: default, pool-0, pool-1" in words
        assert "push.flood holds 9" in words
        assert "of the backlog" in words
