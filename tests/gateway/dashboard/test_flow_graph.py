"""The graph of a flow, on the page of one of its calls."""

from __future__ import annotations

from pathlib import Path

from laneway import Laneway, chain, chord
from laneway.engines.base import MessageView
from laneway.gateway.dashboard.flow_graph import Graph, Node, calls_before, graph_of
from tests.gateway.dashboard.conftest import running


def graph(app: Laneway, job_id: str, topic: str | None) -> Graph:
    found = graph_of(app.engine, job_id, topic or "")
    assert found is not None
    return found


def test_what_has_signaled_and_what_follows(tmp_path: Path) -> None:
    """A chord has its members' results as they arrive, and the calls behind it."""
    app = Laneway(f"sqlite:///{tmp_path}/store.db")

    @app.task(topic="part.{n}")
    def part(n: int) -> int:
        if n == 1:
            raise ValueError("no part 1")
        return n

    @app.task(topic="sum")
    def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(topic="mail")
    def mail(number: int) -> None: ...

    with app:
        member = part.s(7)
        job = chain(chord([member, *(part.s(n) for n in (2, 3))], total.s()), mail.s()).enqueue()
        body = job.before[-1]
        found = graph(app, body.id, body.topic)
        assert [(node.title.rpartition(".")[2], node.note) for node in found.nodes] == [
            ("total", "0 of 3 arrived"),
            ("mail", "0 of 1 arrived"),
        ]
        assert len(found.lines) == 1
        app.run_worker(burst=True, topics=["part.2", "part.3"])
        found = graph(app, body.id, body.topic)
        assert [(node.state, node.x) for node in found.nodes] == [
            ("success", 0),
            ("success", 0),
            ("deferred", 212),
            ("deferred", 424),
        ]
        assert found.nodes[2].is_asked
        assert found.nodes[2].note == "2 of 3 arrived"
        with running(app) as browser:
            page = browser.get(f"/jobs?id={body.id}&topic=sum")
            assert "deferred, 2 of 3 arrived" in page.words
            assert f"/jobs?id={job.id}&amp;topic=mail" in page.text
            assert "The flow" not in browser.get("/jobs?id=none&topic=sum").words
        assert graph_of(app.engine, "none", "sum") is None


def test_many_members_are_one_box() -> None:
    """Of many members that have ended, the failures are named and the others counted."""
    signals = [
        b'{"number": %d, "id": "job-%d", "status": "%s"}'
        % (n, n, b"failure" if n == 3 else b"success")
        for n in range(30)
    ]
    bodies = [b"{}", *signals, b"no JSON"]
    message = MessageView(id="j", topic="sum", state="delayed", body=b"{}", bodies=bodies)
    found = calls_before(message)
    assert [(node.title, node.state) for node in found] == [
        ("job-3", "failure"),
        ("29 calls", "finished"),
    ]
    message.bodies = bodies[:4]
    assert [node.id for node in calls_before(message)] == ["job-0", "job-1", "job-2"]


def test_titles_fit_into_their_boxes() -> None:
    """A name is cut as it is shown: what is escaped is longer."""
    titles = [Node("i", topic, "\u202e" * 12, "ready").short_title for topic in ("t", None)]
    assert titles == ["\\u202e" * 3 + "…", "…" + "\\u202e" * 3]
