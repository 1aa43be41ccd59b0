"""The result backend without workers."""

from __future__ import annotations

import pickle
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import DEFAULT, Mock

import pytest
from celery import Celery, states
from celery.exceptions import ChordError, TimeoutError as CeleryTimeoutError
from celery.result import GroupResult
from celery.utils.functional import regen
from kombu.exceptions import OperationalError

from laneway import EngineUnavailable
from laneway.contrib.kombu import apps
from laneway.contrib.kombu.results import AT_ONCE, Backend, name_of
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


def test_failed_results_expire_separately(app: Celery) -> None:
    """`result_failure_expires` holds for failed tasks, and `result_expires` for all others."""
    app.conf.result_failure_expires = 60
    app.conf.result_expires = 0.01
    app.backend.store_result("a", 1, states.SUCCESS)
    app.backend.store_result("b", ValueError("bad"), states.FAILURE)
    until(lambda: app.backend.get("celery-task-meta-a") is None, "the result has expired")
    assert app.backend.get_state("b") == states.FAILURE


def test_results_are_compressed(app: Celery) -> None:
    """`result_compression` holds for what the store keeps."""
    app.conf.result_compression = "gzip"
    app.backend.store_result("a", "long" * 1000, states.SUCCESS)
    stored = app.backend.get("celery-task-meta-a")
    assert stored is not None
    assert len(stored) < 1000
    assert app.AsyncResult("a").get(timeout=30) == "long" * 1000


def test_some_states_of_many(app: Celery) -> None:
    """`get_many` yields results whose state the caller asks for."""
    app.backend.store_result("a", 1, states.SUCCESS)
    app.backend.store_result("b", ValueError("bad"), states.FAILURE)
    found = app.backend.get_many(["a", "b"], max_iterations=1, READY_STATES={states.SUCCESS})
    assert [task_id for task_id, _ in found] == ["a"]


def test_get_waits(app: Celery) -> None:
    """`get` returns when the result is stored, not at the next look; and ends after a timeout."""
    with pytest.raises(CeleryTimeoutError):
        app.AsyncResult("late").get(timeout=0.01)
    timer = threading.Timer(0.05, app.backend.store_result, ["late", 1, states.SUCCESS])
    timer.start()
    assert app.AsyncResult("late").get(timeout=60, interval=60) == 1
    timer.join()


class Killed(BaseException):
    """The end of a process."""


class Chord:
    """A chord whose body is not published but noted."""

    def __init__(self, app: Celery, header: Any) -> None:
        self.published: list[Any] = []
        self.failed: list[str] = []

        @app.task(name="body")
        def body(results: list[int]) -> None: ...

        body.apply_async = lambda args, *_, **__: self.published.append(args[0])
        self.backend = app.backend
        self.backend.chord_error_from_stack = lambda _, error: self.failed.append(str(error))
        self.body = body.s()
        self.backend.apply_chord(("group", header), self.body)

    def finish(self, task_id: str, result: Any, index: int, state: str = states.SUCCESS) -> None:
        """Let a task of the header finish."""
        self.backend.store_result(task_id, result, state)
        self.return_part(task_id, result, index, state)

    def return_part(
        self, task_id: str, result: Any, index: int, state: str = states.SUCCESS
    ) -> None:
        """Note in the chord that a task has finished."""
        request = SimpleNamespace(id=task_id, group="group", group_index=index, chord=self.body)
        self.backend.on_chord_part_return(request, state, result)


def test_a_chord_counts_each_task_once(app: Celery) -> None:
    """The body is published after the last task, although one task ran twice."""
    ids = ["one", "two", "three"]
    chord = Chord(app, [app.AsyncResult(each) for each in ids])
    chord.finish("one", 1, 0)
    chord.backend.set_chord_size("group", 3)
    for task_id, index in (("two", 1), ("two", 1), ("three", 2)):
        assert chord.published == []
        chord.finish(task_id, task_id, index)
    assert chord.published == [[1, "two", "three"]]
    chord.finish("three", 3, 2)
    assert len(chord.published) == 1


def test_a_chord_whose_last_worker_dies(app: Celery) -> None:
    """The body is published when the last task is delivered again."""
    chord = Chord(app, [app.AsyncResult("a")])
    chord.backend.set_chord_size("group", 1)
    publish = chord.body.type.apply_async = Mock(side_effect=[Killed, None])
    with pytest.raises(Killed):
        chord.finish("a", 1, 0)
    chord.finish("a", 1, 0)
    assert [call.args for call in publish.call_args_list] == [(([1],), {})] * 2


def test_a_worker_dies_before_a_result_is_stored(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chord waits until the task has run again, although it was counted before."""
    chord = Chord(app, [app.AsyncResult("a"), app.AsyncResult("b")])
    chord.backend.set_chord_size("group", 2)
    with monkeypatch.context() as killed:
        killed.setattr(chord.backend, "encode", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            chord.return_part("a", 1, 0)
    chord.finish("b", 2, 1)
    assert chord.published == []
    chord.finish("a", 1, 0)
    assert chord.published == [[1, 2]]


@pytest.mark.parametrize("error", [EngineUnavailable("restarted"), OperationalError("restarted")])
def test_a_store_that_restarts(
    app: Celery, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Results and the body of a chord wait for it: after an error Celery would ack the task."""
    chord = Chord(app, [GroupResult("inner", [app.AsyncResult("a")])])
    chord.backend.set_chord_size("group", 1)
    publish = chord.body.type.apply_async = Mock(side_effect=[error, None])
    store = Mock(side_effect=[error, DEFAULT], wraps=chord.backend._set_with_state)
    monkeypatch.setattr(chord.backend, "_set_with_state", store)
    chord.finish("a", 1, 0)
    assert [call.args for call in publish.call_args_list] == [(([[1]],), {})] * 2
    assert chord.failed == []


def test_a_generated_header_of_ignored_results(app: Celery) -> None:
    """A chord needs neither its tasks before they are published, nor their stored results."""

    def generate() -> Iterator[Any]:
        raise AssertionError("it was read")
        yield

    chord = Chord(app, regen(generate()))
    chord.return_part("b", 2, 1)
    chord.backend.set_chord_size("group", 2)
    chord.return_part("a", 1, 0)
    assert chord.published == [[1, 2]]


def test_a_group_in_a_chord(app: Celery) -> None:
    """A chord waits for the tasks of groups in its header, and keeps their structure."""
    inner = GroupResult("inner", [app.AsyncResult("a"), app.AsyncResult("b")])
    chord = Chord(app, [inner, app.AsyncResult("c")])
    chord.backend.set_chord_size("group", 3)
    chord.finish("a", 1, 0)
    chord.finish("c", 3, 1)
    assert chord.published == []
    chord.finish("b", 2, 1)
    assert chord.published == [[[1, 2], 3]]


def test_a_failed_task_of_a_chord(app: Celery) -> None:
    """The chord fails when all tasks have ended, and names the task and its error."""
    chord = Chord(app, [app.AsyncResult("a"), app.AsyncResult("b")])
    chord.backend.set_chord_size("group", 2)
    chord.finish("a", ValueError("bad"), 0, states.FAILURE)
    assert chord.failed == []
    chord.finish("b", 1, 1)
    assert chord.published == []
    assert chord.failed == ["Dependency a raised ValueError('bad')"]


def test_the_error_of_a_header(app: Celery) -> None:
    """`get` raises the error of the task that failed, although the chord has failed, too."""
    header = GroupResult("group", [app.AsyncResult("a")])
    app.backend.store_result("a", ValueError("bad"), states.FAILURE)
    body = app.AsyncResult("body", parent=header)
    app.backend.store_result("body", ChordError("Dependency a raised"), states.FAILURE)
    body._maybe_reraise_parent_error = Mock(side_effect=[None, ValueError("bad")])
    with pytest.raises(ValueError, match="bad"):
        body.get(timeout=30)


def test_a_task_added_to_a_chord(app: Celery) -> None:
    """The chord waits for it, too."""
    chord = Chord(app, [app.AsyncResult("a")])
    chord.backend.set_chord_size("group", 1)
    chord.backend.add_to_chord("group", app.AsyncResult("b"))
    chord.finish("a", 1, 0)
    assert chord.published == []
    chord.finish("b", 2, 0)
    assert chord.published == [[1, 2]]


def test_a_chord_again(app: Celery) -> None:
    """A chord that is applied again with the same ids is counted again."""
    chord = Chord(app, [app.AsyncResult("a"), app.AsyncResult("b")])
    for run in (1, 2):
        chord.backend.apply_chord(
            ("group", [app.AsyncResult("a"), app.AsyncResult("b")]), chord.body
        )
        chord.backend.set_chord_size("group", 2)
        chord.finish("a", "A", 0)
        assert len(chord.published) == run - 1
        chord.finish("b", "B", 1)
    assert chord.published == [["A", "B"]] * 2


def test_results_of_a_group(app: Celery) -> None:
    """Those of more tasks than are asked for at once come in the group's order."""
    ids = [str(number) for number in range(AT_ONCE + 5)]
    group = GroupResult("group", [app.AsyncResult(each) for each in ids])
    for each in reversed(ids):
        app.backend.store_result(each, each, states.SUCCESS)
    assert group.get(timeout=30) == ids


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
