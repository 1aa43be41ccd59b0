"""An invalid publish is a clear error for its own caller, and fails no other publish."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from laneway import BadMessage, EngineUnavailable, Laneway, Message, UsageError

LONE = "\udcff"

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"headers": {"h": "\ud800"}}, "not valid Unicode"),
    ({"headers": {"\ud800": "v"}}, "not valid Unicode"),
    ({"headers": {"h": "x" * 40_000}}, "at most 32,768"),
    ({"ttl": 1e15}, "ttl: .*at most 100 years"),
    ({"delay": 1e15}, "delay: .*at most 100 years"),
    ({"delay": 10**400}, "at most 100 years"),
    ({"delay": float("nan")}, "expected seconds"),
    ({"delay": "1e400"}, "expected seconds"),
    ({"delay": -1}, "delay: .*at least 0"),
    ({"at": 1e15}, "year 10000"),
    ({"at": 2e10}, "at: .*100 years from now"),
    ({"at": float("nan")}, "Unix time"),
    ({"at": 10**400}, "Unix time"),
    ({"priority": 10**400}, "priority"),
    ({"key": LONE}, "not valid Unicode"),
    ({"id": LONE}, "not valid Unicode"),
    ({"id": "a\x9bb"}, "control characters"),
    ({"headers": {"laneway-result-ttl": "9999999999999"}}, "laneway-result-ttl"),
    ({"headers": {"laneway-result-ttl": "9" * 10_000}}, "laneway-result-ttl"),
    ({"headers": {"laneway-result-ttl": "-1"}}, "laneway-result-ttl"),
    ({"headers": {"laneway-signals": "9" * 5000}}, "laneway-signals"),
    ({"headers": {"laneway-signals": "x"}}, "laneway-signals"),
    ({"headers": {"laneway-time-limit": "nan"}}, "laneway-time-limit"),
    ({"headers": {"laneway-soft-time-limit": "-1"}}, "laneway-soft-time-limit"),
    ({"headers": {"laneway-retries": "9" * 5000}}, "laneway-retries"),
]


@pytest.mark.parametrize(("options", "expected"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_invalid_options_are_refused_before_the_engine_is_called(
    app: Laneway, options: dict[str, Any], expected: str
) -> None:
    """Each way to publish raises the same error of the library."""
    with pytest.raises(BadMessage, match=expected):
        app.publish("t", 1, **options)
    with pytest.raises(BadMessage, match=expected):
        app.publish_many([Message("t", 1, **options)])
    with pytest.raises(BadMessage, match=expected):
        asyncio.run(app.apublish("t", 1, **options))
    if "delay" not in options and "at" not in options:
        app.publish("parent")
        (delivery,) = app.lease()
        with pytest.raises(BadMessage, match=expected):
            delivery.ack(publish=[Message("t", 1, **options)])
        delivery.ack()
    assert app.topic("t").stats().waiting == 0


@pytest.mark.parametrize(
    "name", ["*x", "a*b", "a.*", "*", "a\x85b", "a\x9b", LONE, "x" * 256, "é" * 200, ""]
)
def test_a_topic_that_no_policy_could_name_is_refused(app: Laneway, name: str) -> None:
    """Each topic that is accepted can be paused and can have a policy."""
    with pytest.raises(BadMessage):
        app.publish(name)
    with pytest.raises(UsageError):
        app.topic(name)


def test_one_producers_mistake_fails_no_other_publish(app: Laneway) -> None:
    """
    Threads share commits with one that publishes invalid messages: it gets errors, they get
    receipts.
    """
    ends = threading.Event()
    failed: list[BaseException] = []
    accepted = [0] * 4

    def publish(number: int) -> None:
        while not ends.is_set():
            try:
                accepted[number] += app.publish("good", number).outcome == "accepted"
            except BaseException as error:
                failed.append(error)
                return

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        for options, _expected in BAD_OPTIONS:
            with pytest.raises(BadMessage):
                app.publish("bad", **options)
    ends.set()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert app.engine.overview().published == sum(accepted) > 0


def test_an_error_of_the_engine_fails_its_own_publish_only(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    If a check is missing, the group is committed one by one, and the caller gets the library's
    error. On several shards a part of the group may be stored already, so nothing is repeated.
    """
    from laneway import codec

    monkeypatch.setattr(codec, "_check_headers", lambda *_: None)
    bad: dict[str, Any] = {"headers": {"h": "\ud800"}}

    async def main() -> list[Any]:
        good = [app.apublish("good", n) for n in range(20)]
        return await asyncio.gather(
            *good,
            app.apublish("bad", **bad),
            *(app.apublish("good", n) for n in range(20)),
            return_exceptions=True,
        )

    answers = asyncio.run(main())
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if app.engine.capabilities.shards > 1:
        stored = app.topic("good").stats().waiting
        assert 41 - len(errors) <= stored <= 40
        assert all(isinstance(error, BadMessage | EngineUnavailable) for error in errors)
        return
    assert [type(error) for error in errors] == [BadMessage]
    assert "message to bad: the store cannot hold it (UnicodeEncodeError" in str(errors[0])
    assert app.topic("good").stats().waiting == 40
    assert app.topic("bad").stats().waiting == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda app: app.lookup("t", [LONE]),
        lambda app: app.explain(LONE),
        lambda app: app.explain("m", LONE),
        lambda app: app.job(LONE),
        lambda app: app.queue("q").fetch_job(LONE),
        lambda app: app.dead_letters.list(after=None),
        lambda app: app.dead_letters.list(after="x"),
        lambda app: app.dead_letters.list(after=b""),
        lambda app: app.dead_letters.list(after=10**30),
        lambda app: app.dead_letters.drop(None, [LONE]),
        lambda app: app.dead_letters.redrive(None, [LONE]),
        lambda app: app.topics(after=LONE),
        lambda app: app.topics(after=3),
        lambda app: app.schedules.list(after=LONE),
        lambda app: app.schedules.remove(LONE),
        lambda app: app.schedules.pause(LONE),
        lambda app: app.schedules.add("a*b", Message("t"), every=10),
        lambda app: app.lease(1, pool=LONE),
        lambda app: app.lease(1, topics=[LONE]),
        lambda app: app.lease(1, topics=["a*b"]),
        lambda app: app.lease(1, wait=1e15),
        lambda app: app.policy("t", lease=10**400),
        lambda app: app.policy("t", pool=LONE),
        lambda app: app.policy("t", rate="5/0s"),
        lambda app: app.policy("t", rate=10**400),
        lambda app: app.policy("t", max_body=10**400),
        lambda app: app.policy("t", max_backlog="9" * 50 + "GB"),
        lambda app: app.policy("t", backoff={"base": float("nan")}),
        lambda app: app.policy("t", backoff={"factor": 1e9}),
        lambda app: app.gate(LONE, rate=1),
        lambda app: app.policies.copy(Laneway(app.url, namespace="n" * 200)),
        lambda app: Laneway(app.url, max_backlog=10**400),
    ],
)
def test_invalid_arguments_raise_errors_of_the_library(app: Laneway, call: Any) -> None:
    """No error of an engine, of an encoder or of Python's arithmetic reaches the caller."""
    with pytest.raises(UsageError):
        call(app)


def test_settling_with_invalid_arguments(app: Laneway) -> None:
    """
    An invalid delay is refused and the lease is held on; text that cannot be stored is escaped and
    cut.
    """
    for n in range(3):
        app.publish("t", n)
    first, second, third = app.lease(3)
    for delay in (1e15, float("nan"), float("inf"), 10**400, -1, "soon"):
        with pytest.raises(BadMessage):
            first.retry(delay=delay)
        with pytest.raises(BadMessage):
            first.extend(delay)
    with pytest.raises(UsageError):
        first.dead(reason=3)  # type: ignore[arg-type]
    first.dead(f"no such file: {LONE}")
    second.dead("x" * 1_000_000)
    third.retry(error=LONE)
    letters = {letter.message.body: letter for letter in app.topic("t").dead_letters()}
    assert letters[0].reason == r"no such file: \udcff [escaped: it was not valid Unicode]"
    assert letters[1].reason.endswith("… [cut: 1,000,000 characters]")
    assert len(letters[1].reason) == 1_000


def test_an_overflowing_backoff_does_not_stop_a_retry() -> None:
    """A factor from an older version that overflows gives the maximum delay."""
    from laneway import Backoff

    assert Backoff(base=1, factor=1e6, cap=60, jitter=False).delay_us(200, 1.0) == 60_000_000
    assert Backoff(base=0, factor=1e6, cap=60, jitter=False).delay_us(200, 1.0) == 0
