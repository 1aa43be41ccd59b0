"""
A message that ends in an invalid way fails alone: the worker continues, every slot is freed, and a
burst ends.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from laneway import DestinationUnavailable, Laneway, Message, Reject, Retry, Summary
from laneway.message import Draft, Settlement
from tests.poison import endings
from tests.poison.endings import LONE

KINDS = ["async", "thread", "batch", "task", "async task"]


def register(app: Laneway, kind: str, act: Any) -> None:
    """Register a handler of a kind for `bad`, which calls `act`."""

    def thread(message: Message) -> Any:
        return act(message)

    async def coroutine(message: Message) -> Any:
        return act(message)

    def batch(messages: list[Message]) -> Any:
        return act(messages[0])

    def task(n: int) -> Any:
        return act(Message("bad", n))

    async def atask(n: int) -> Any:
        return act(Message("bad", n))

    match kind:
        case "batch":
            app.handler("bad", batch=1)(batch)
        case "task":
            app.task(name="bad", topic="bad")(task)
        case "async task":
            app.task(name="bad", topic="bad")(atask)
        case _:
            app.handler("bad")(coroutine if kind == "async" else thread)


def publish_bad(app: Laneway, kind: str, count: int) -> None:
    for n in range(count):
        if "task" in kind:
            app.runtime.handlers.task("bad").task.delay(n)  # type: ignore[attr-defined]
        else:
            app.publish("bad", n)


def burst(app: Laneway, concurrency: int = 2) -> None:
    """
    Run bursts until nothing waits but back-offs and messages without a handler; each has to end by
    itself.
    """
    for _ in range(20):
        ended = threading.Event()
        failed: list[BaseException] = []
        summaries: list[Summary] = []

        def run(
            ended: threading.Event = ended,
            failed: list[BaseException] = failed,
            summaries: list[Summary] = summaries,
        ) -> None:
            try:
                summaries.append(app.run_worker(burst=True, concurrency=concurrency, grace=1))
            except BaseException as error:
                failed.append(error)
            ended.set()

        threading.Thread(target=run, daemon=True).start()
        assert ended.wait(60), "the burst did not end"
        assert not failed, f"the worker ended with {type(failed[0])}"
        assert app.engine.overview().leased == 0
        if not summaries[0].acked + summaries[0].retried + summaries[0].died:
            return


def neighbors(app: Laneway, count: int = 20) -> list[int]:
    """Publish innocent messages; returns the list of those that were handled."""
    done: list[int] = []

    @app.handler("good")
    async def good(message: Message) -> None:
        done.append(message.body)
        await asyncio.sleep(0)

    app.publish_many(Message("good", n) for n in range(count))
    return done


ENDINGS: dict[str, Any] = {
    "lone surrogate": lambda: ValueError(f"no such file: {LONE}"),
    "lone surrogate in Reject": lambda: Reject(LONE),
    "NUL": lambda: ValueError("no\0thing"),
    "NUL in Reject": lambda: Reject("no\0thing"),
    "str() raises": lambda: endings.TextRaises("x"),
    "str() exits": lambda: endings.TextExits("x"),
    "__class__ raises": lambda: endings.ClassRaises("x"),
    "__class__ lies": lambda: endings.ClassLies("x"),
    "__notes__ raises": lambda: endings.NotesRaise("x"),
    "its place raises": lambda: endings.PlaceRaises("x"),
    "everything raises": lambda: endings.Undecided("x"),
    "no name": lambda: endings.OfNoName("x"),
    "Reject without a reason": lambda: endings.BareReject("x"),
    "Reject with an object": lambda: Reject(endings.Hostile()),  # type: ignore[arg-type]
    "Retry in 30 million years": lambda: Retry("later", delay=1e15),
    "Retry at NaN": lambda: Retry("later", delay=float("nan")),
    "Retry of its own making": lambda: endings.RaisingRetry("x"),
    "huge": lambda: ValueError("x" * 5_000_000),
    "circle": lambda: endings._circle(random.Random(0)),
    "details of another library": lambda: endings.WithDetails("x"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_settled(app: Laneway, kind: str) -> None:
    """Each is a dead letter after its retries; its error has what could be read of it."""
    errors = list(ENDINGS.values())

    def act(message: Message) -> None:
        error = errors[message.body]()
        raise error

    register(app, kind, act)
    publish_bad(app, kind, len(errors))
    done = neighbors(app)
    burst(app)
    letters = dict.fromkeys(ENDINGS)
    for letter in app.topic("bad").dead_letters(limit=100):
        place = letter.message.body["args"][0] if "task" in kind else letter.message.body
        letters[list(ENDINGS)[place]] = letter
    assert [name for name, letter in letters.items() if letter is None] == []
    assert sorted(done) == list(range(20))
    texts: dict[str, Any] = {
        name: letter.error or letter.reason
        for name, letter in letters.items()
        if letter is not None
    }
    assert r"no such file: \udcff" in texts["lone surrogate"]
    assert "[escaped: it was not valid Unicode]" in texts["lone surrogate"]
    for name in ("NUL", "NUL in Reject"):
        assert r"no\x00thing [escaped: it contained NUL]" in texts[name]
    assert "TextRaises" in texts["str() raises"]
    assert "at most 100 years" in texts["Retry in 30 million years"]
    assert "using the policy's delay" in texts["Retry at NaN"]
    assert "[cut: " in texts["huge"]
    assert len(texts["huge"]) <= 4_000


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_is_settled(app: Laneway, kind: str) -> None:
    """A value that cannot be stored makes a dead letter of a task; a handler's is ignored."""
    register(app, kind, lambda message: endings.VALUES[message.body]())
    publish_bad(app, kind, len(endings.VALUES))
    done = neighbors(app)
    burst(app)
    overview = app.engine.overview()  # an idle topic's own counters are forgotten after a second
    assert overview.waiting == overview.leased == 0
    assert overview.done + overview.died == len(endings.VALUES) + 20
    assert sorted(done) == list(range(20))


@pytest.mark.parametrize("asked", [1e15, float("nan"), float("inf"), 10**400, "soon"])
def test_an_invalid_retry_after_backs_off_as_without_one(
    app: Laneway, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic backs off for a second, doubled up to five minutes, and not for a century."""
    settle = app.engine.settle
    delays: list[int | None] = []

    def settled(settlements: Sequence[Settlement], **options: Any) -> Any:
        delays.extend(each.delay_us for each in settlements if each.action == "back_off")
        return settle(settlements, **options)

    monkeypatch.setattr(app.engine, "settle", settled)

    @app.handler("bad")
    async def handle(_: Message) -> None:
        raise DestinationUnavailable("503", retry_after=asked)

    app.publish("bad")
    done = neighbors(app)
    app.run_worker(burst=True)
    assert set(delays) == {None}, "as the engine says"
    stats = app.topic("bad").stats()
    assert (stats.waiting, stats.state) == (1, "asleep")
    assert stats.wake_us is not None
    # In a burst that a busy machine holds up it backs off several times.
    assert stats.wake_us / 1e6 - stats.now < max(5, 2 ** len(delays))
    assert sorted(done) == list(range(20))


CONTROLS = {
    "laneway-result-ttl": [
        "9999999999999",
        "9" * 30,
        "9" * 5000,
        "-1",
        "nan",
        "1e5",
        "600,",
        ",",
        "",
        "0",
        "600,99999999999999999999",
        "²",
    ],
    "laneway-signals": ["9" * 5000, "-1", "x", "", "0", "nan"],
    "laneway-flow": ["1", "", "x" * 1000],
    "laneway-time-limit": ["nan", "inf", "-inf", "-1", "0", "1e400", "9" * 5000, "", "x"],
    "laneway-soft-time-limit": ["nan", "inf", "-1", "0", "1e400", ""],
    "laneway-retries": ["9" * 5000, "-1", "nan", "", "²", "9" * 19],
    "laneway-task": ["laneway.ended", "call:x:y", "", "task\x00", "x" * 5000],
    "laneway-serializer": ["pickle", "msgpack", "json", "", "x"],
    "laneway-parent": ["x" * 5000, ""],
    "laneway-root": ["x" * 5000, ""],
    "laneway-eta": ["soon", ""],
    "content-type": ["application/octet-stream", "", "x"],
    "context-trace": ["{", "1" * 5000],
    "retry-delay": ["nan", "1e15", "x", "", ",", "-1"],
    "on-success": ["x:y", "", "os:_exit2"],
    "on-failure": ["x:y", ":", ".x:y"],
}
"""By header: values that `publish` refuses; a program of another version may have stored them."""


@pytest.mark.parametrize("is_raising", [True, False])
def test_invalid_control_headers_fail_nothing_else(app: Laneway, is_raising: bool) -> None:
    """
    Whatever the header's value, and whether the message is acked, dies, expires, is cancelled,
    redriven or explained.
    """

    @app.handler("bad.*")
    async def bad(_: Message) -> None:
        if is_raising:
            raise ValueError(LONE)

    @app.task(name="bad", topic="task")
    def task(n: int) -> int:
        if is_raising:
            raise ValueError(LONE)
        return n

    app.queue("queue")
    app.policy("bad.once", retries=0)
    call = b'{"args":[1],"kwargs":{},"flow":{"then":[["x","y",1]]}}'
    named = {"laneway-task": "bad"}
    for header, values in CONTROLS.items():
        for value in values:
            for topic, own, body in (
                ("bad.once", {}, b"1"),
                ("task", named, call),
                ("task", named, b"[" * 5000),
            ):
                for more in ({}, {"laneway-flow": "1"}):
                    _put_unchecked(app, Draft(topic, body, headers={**own, **more, header: value}))
            _put_unchecked(
                app,
                Draft(
                    "queue",
                    call,
                    headers={"laneway-task": "call:tests.poison.endings:called", header: value},
                ),
            )
            _put_unchecked(
                app,
                Draft(
                    "gone",
                    call,
                    id=f"{header}{value:.50}".replace("\0", "-"),
                    headers={"laneway-flow": "1", header: value},
                ),
            )
            _put_unchecked(app, Draft("late", b"1", ttl_us=1, headers={header: value}))
    done = neighbors(app)
    for view in app.engine.topic_peek("gone", limit=1000):
        app.engine.explain(view.id, "gone")
        assert app.engine.cancel(view.id, "gone") == "cancelled"
    burst(app, 10)
    app.dead_letters.redrive()
    burst(app, 10)
    assert sorted(done) == list(range(20))
    assert app.topic("task").stats().ready == 0  # some name a task that does not exist
    assert app.topic("bad.once").stats().ready == 0
    assert app.engine.overview().leased == 0


@pytest.mark.parametrize("topic", ["x\0", "x\x01", "x*", "x" * 300, ""])
@pytest.mark.parametrize("kind", ["then", "errors"])
def test_a_flow_that_names_no_valid_topic_is_a_dead_letter(
    app: Laneway, kind: str, topic: str
) -> None:
    """Nothing is published there: no policy would hold for it, and nobody could purge it."""
    done = neighbors(app, 3)

    @app.task(name="bad", topic="task", retries=0)
    def task() -> None:
        if kind == "errors":
            raise ValueError("why")

    target = [topic, "y", 1] if kind == "then" else {"topic": topic, "id": "y", "body": None}
    body = msgspec.json.encode({"args": [], "kwargs": {}, "flow": {kind: [target]}})
    headers = {"laneway-task": "bad", "laneway-flow": "1"}
    app.engine.put([Draft("task", body, headers=headers)])
    burst_once(app)
    assert sorted(done) == [0, 1, 2]
    assert {stats.topic for stats in app.topics()} <= {"good", "task"}
    call, notice = app.topic("task").dead_letters()
    assert call.message.headers == headers
    for letter in (call, notice):  # the notice of the call's end would publish the same
        assert letter.reason.startswith("cannot be settled: BadMessage: topic")


def _put_unchecked(app: Laneway, draft: Draft) -> None:
    """Put a message as a program without checks does; what the engine itself refuses is ignored."""
    from laneway import BadMessage

    try:
        app.engine.put([draft])
    except BadMessage:
        assert "laneway-signals" in (draft.headers or {})


BROKEN = {
    "syntax": "def f(:\n",
    "name": "nonsense\n",
    "type": "None + 1\n",
    "exit": "raise SystemExit(3)\n",
    "interrupt": "raise KeyboardInterrupt\n",
    "group": "raise BaseExceptionGroup('x', [KeyboardInterrupt()])\n",
    "generator": "raise GeneratorExit\n",
    "recursion": "def f(): f()\nf()\n",
    "lazy": "def __getattr__(name):\n    raise SystemExit(name)\n",
    "odd": "class C:\n    @property\n    def __class__(self): raise KeyboardInterrupt\nf = C()\n",
    "text": "raise ValueError('\\udcff')\n",
    "bytes": "\x00",
}


def test_a_module_that_fails_to_import_has_no_function(
    app: Laneway, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However the import fails, its jobs wait as if they had no handler, and the queue's other jobs
    run.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    queue = app.queue("q")
    for name, source in BROKEN.items():
        (tmp_path / f"broken_{name}.py").write_text(source)
    names = [f"broken_{name}:f" for name in BROKEN] + [
        ".x:y",
        ":",
        "x",
        "tests.poison.endings:",
        "unittest.__main__:x",
        "\x00:x",
        "os:nothing",
        "os:sep",
    ]
    for name in names:
        message = Draft("q", b'{"args":[],"kwargs":{}}', headers={"laneway-task": f"call:{name}"})
        app.engine.put([message])
    jobs = [queue.enqueue("tests.tasks.functions.add", n, 1) for n in range(20)]
    burst_once(app)
    assert [job.get(5) for job in jobs] == list(range(1, 21))
    stats = app.topic("q").stats()
    assert (stats.delayed, stats.leased, stats.dead) == (len(names), 0, 0)


def burst_once(app: Laneway) -> None:
    app.run_worker(burst=True, concurrency=4)


def test_an_outcome_that_names_a_lazy_module_imports_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class is looked up only in what the module holds already."""
    import importlib

    from laneway.tasks import outcomes

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lazy_names.py").write_text(
        "ASKED = []\ndef __getattr__(name):\n    ASKED.append(name)\n    return ValueError\n"
    )
    lazy = importlib.import_module("lazy_names")
    assert outcomes._class("lazy_names:Anything") is None
    assert outcomes._class("lazy_names:Anything.more") is None
    assert lazy.ASKED == []
    assert outcomes._class("builtins:ValueError") is ValueError
    assert outcomes._class("json.decoder:JSONDecodeError") is not None
    assert outcomes._class("builtins:KeyboardInterrupt") is None


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_settlement_that_the_engine_refuses_is_found_among_hundreds(
    app: Laneway, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    """Its message is a dead letter with that reason, and the others end as they did."""
    settle = app.engine.settle

    def refusing(settlements: Any, **more: Any) -> Any:
        if any(
            each.reason == "odd"
            or (stubborn and each.reason is not None and "OverflowError" in each.reason)
            for each in settlements
        ):
            raise OverflowError("too large an integer")
        return settle(settlements, **more)

    monkeypatch.setattr(app.engine, "settle", refusing)
    done = neighbors(app, 300)

    @app.handler("bad")
    def bad(_: Message) -> None:
        raise Reject("odd", error="why")

    for n in range(3):
        app.publish("bad", n)
    burst(app, 400)
    assert sorted(done) == list(range(300))
    letters = app.topic("bad").dead_letters()
    reason = (
        "cannot be settled"
        if stubborn
        else "cannot be settled: OverflowError: too large an integer"
    )
    assert [letter.reason for letter in letters] == [reason] * 3
