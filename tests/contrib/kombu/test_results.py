"""The result backend, by itself."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, states
from celery.exceptions import TimeoutError as CeleryTimeoutError

from laneway.contrib.kombu import apps
from laneway.contrib.kombu.results import Backend, name_of
from laneway.testing.servers import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    url = f"laneway+sqlite:///{tmp_path}/results.db"
    app = Celery("results", broker="memory://", backend=url, set_as_current=False)
    app.conf.result_backend_transport_options = {"durability": "memory"}
    yield app
    app.close()
    apps.close_all()


def test_found_by_its_url(app: Celery) -> None:
    """Celery finds the backend by its entry point; a copy of it has the same store."""
    assert isinstance(app.backend, Backend)
    app.backend.store_result("a", 5, states.SUCCESS)
    assert app.backend.as_uri().startswith("laneway+sqlite://")
    assert app.AsyncResult("a").get(timeout=30) == 5


def test_results(app: Celery) -> None:
    """States, errors, and what was never stored."""
    backend = app.backend
    assert backend.get_state("x") == states.PENDING
    backend.store_result("x", {"half": True}, "PROGRESS")
    assert backend.get_result("x") == {"half": True}
    backend.store_result("x", ValueError("bad"), states.FAILURE)
    with pytest.raises(ValueError, match="bad"):
        app.AsyncResult("x").get(timeout=30)
    app.AsyncResult("x").forget()
    assert backend.get("celery-task-meta-x") is None


def test_results_expire(app: Celery) -> None:
    """After `result_expires`, and a later time if Celery says so."""
    backend = app.backend
    backend.expires = 0.01
    backend.set("a", "1")
    backend.expires = 60
    backend.set("b", "2")
    backend.expire("b", 0.01)
    until(lambda: backend.mget(["a", "b"]) == [None, None], "both have expired")
    backend.expire("a", 60)


def test_get_waits(app: Celery) -> None:
    """`get` returns when the result is stored, not at the next look; and ends after a timeout."""
    with pytest.raises(CeleryTimeoutError):
        app.AsyncResult("late").get(timeout=0.01)
    timer = threading.Timer(0.05, app.backend.store_result, ["late", 1, states.SUCCESS])
    timer.start()
    assert app.AsyncResult("late").get(timeout=60, interval=60) == 1
    timer.join()


def test_a_chord_counts_each_task_once(app: Celery) -> None:
    """The body is published after the last task, although one task ran twice."""
    published: list[Any] = []

    @app.task(name="body")
    def body(results: list[int]) -> None: ...

    backend = app.backend
    ids = ["one", "two", "three"]
    backend.apply_chord(("group", [app.AsyncResult(each) for each in ids]), body.s())
    body.apply_async = lambda args, *_, **__: published.append(args)
    chord = body.s()
    chord["chord_size"] = 3
    for task_id in ("one", "two", "two", "three"):
        assert published == []
        request = SimpleNamespace(id=task_id, group="group", chord=chord)
        backend.store_result(task_id, task_id, states.SUCCESS)
        backend.on_chord_part_return(request, states.SUCCESS, task_id)
    assert published == [(ids,)]


def test_long_keys() -> None:
    """A key of any length is a valid name."""
    assert name_of(b"short") == "short"
    assert len(name_of("x" * 999)) <= 255
    assert name_of("x" * 999) != name_of("x" * 998)
    assert "\0" not in name_of("a\0b")
    assert name_of("a\0b") != name_of("a\x01b")


def test_pickled(app: Celery) -> None:
    """Celery pickles backends with results."""
    backend = app.backend
    function, arguments = backend.__reduce__()
    assert arguments[2]["url"].startswith("sqlite://")
    assert pickle.dumps(function)
