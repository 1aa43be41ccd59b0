"""What arguments of tasks can be: they arrive as what the annotations say."""

from __future__ import annotations

import enum
import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import pydantic
import pytest

from laneway import BadMessage, Laneway, UsageError

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as app:
        yield app


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    item: str
    price: Decimal
    count: int = 1


class Order(msgspec.Struct):
    number: int
    lines: list[Line]


@attrs.define
class Address:
    street: str
    since: date


class Customer(pydantic.BaseModel):
    name: str
    joined: datetime
    address: dict[str, int] = {}


VALUES: list[tuple[Any, Any]] = [
    (datetime, datetime(2026, 11, 21, 8, 30, tzinfo=UTC)),
    (date, date(2026, 2, 28)),
    (timedelta, timedelta(minutes=3)),
    (uuid.UUID, uuid.uuid4()),
    (Decimal, Decimal("10.10")),
    (Color, Color.RED),
    (Line, Line("pen", Decimal("1.5"))),
    (Order, Order(3, [Line("pen", Decimal(2), 5)])),
    (Address, Address("Quay 1", date(2020, 1, 1))),
    (Customer, Customer(name="acme", joined=datetime(2026, 1, 1, tzinfo=UTC))),
    (dict[str, list[Decimal]], {"a": [Decimal(1)]}),
    (tuple[int, str], (1, "x")),
    (set[int], {1, 2}),
    (bytes, b"\x00\xff"),
    (Line | None, None),
    (list[Customer], [Customer(name="b", joined=datetime(2026, 1, 1, tzinfo=UTC))]),
    (Sequence[int], [1, 2]),
    (Any, {"free": [1, None]}),
]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_values_arrive_as_they_were(app: Laneway, kind: Any, value: Any) -> None:
    seen: list[Any] = []

    def keep(value, *rest, named=None, **more):
        seen.extend((value, *rest, named, *more.values()))

    keep.__annotations__ = {"value": kind, "rest": kind, "named": kind, "more": kind}
    task = app.task(name="keep")(keep)
    task.delay(value, value, named=value, other=value)
    assert app.run_worker(burst=True).acked == 1
    assert seen == [value] * 4
    assert [type(each) for each in seen] == [type(value)] * 4


@pytest.mark.parametrize(
    ("kind", "sent", "reason"),
    [
        (int, "five", "Expected `int`, got `str`"),
        (Line, {"item": "pen"}, "missing required field `price`"),
        (Customer, {"name": "x", "joined": "never"}, "joined"),
        (Color, "blue", "Invalid enum value 'blue'"),
        (Path, "/tmp", "JSON gives str, not"),
    ],
)
def test_what_does_not_fit_is_a_dead_letter(
    app: Laneway, kind: Any, sent: Any, reason: str
) -> None:
    """A body from another program, or by an older version of the task."""

    def keep(value): ...

    keep.__annotations__ = {"value": kind}
    app.task(name="keep")(keep)
    app.publish("task.keep", {"args": [sent], "kwargs": {}}, headers={"laneway-task": "keep"})
    assert app.run_worker(burst=True).died == 1
    (dead,) = app.dead_letters.list()
    assert dead.reason.startswith(
        'task "keep": the argument "value" is not of the type that the function expects: '
    )
    assert reason in dead.reason


def test_what_cannot_travel_is_refused_at_the_call(app: Laneway) -> None:
    @app.task
    def keep(value: object) -> None: ...

    for value in (object(), keep, Customer, lambda: 1, {1, object()}):
        with pytest.raises(BadMessage, match=r"which JSON cannot hold"):
            keep.delay(value)
    assert app.topic(keep.template.text).stats().waiting == 0


def test_annotations_that_cannot_be_evaluated_are_passed_over(app: Laneway) -> None:
    seen: list[Any] = []

    @app.task
    def keep(first: Missing, second: Decimal, third: Callable[[], None] | None = None) -> None:
        seen.extend((first, second, third))

    keep.delay("as it came", Decimal("2.5"))
    app.run_worker(burst=True)
    assert seen == ["as it came", Decimal("2.5"), None]


def test_bodies_of_publish_may_be_models_too(app: Laneway) -> None:
    app.publish("t", Customer(name="acme", joined=datetime(2026, 1, 1, tzinfo=UTC)))
    (delivery,) = app.lease(1)
    assert delivery.body == {"name": "acme", "joined": "2026-01-01T00:00:00Z", "address": {}}


# Serializers


class Own:
    """Nothing but pickle can carry it."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.mark.parametrize("serializer", ["msgpack", "pickle"])
@pytest.mark.parametrize(("kind", "value"), VALUES[:-1], ids=[str(kind) for kind, _ in VALUES[:-1]])
def test_other_serializers_carry_the_same(
    app: Laneway, serializer: Any, kind: Any, value: Any
) -> None:
    seen: list[Any] = []

    def keep(value):
        seen.append(value)

    keep.__annotations__ = {"value": kind}
    app.task(name="keep", serializer=serializer)(keep).delay(value)
    assert app.run_worker(burst=True).acked == 1
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_pickle_carries_anything(app: Laneway) -> None:
    seen: list[Any] = []

    @app.task(serializer="pickle")
    def keep(own: Own) -> None:
        seen.append(own.value)

    keep.delay(Own(5))
    app.run_worker(burst=True)
    assert seen == [5]
    with pytest.raises(BadMessage, match="pickle cannot hold the arguments"):
        keep.delay(lambda: 1)  # type: ignore[arg-type]


def test_the_message_does_not_say_how_it_is_read(app: Laneway) -> None:
    """Pickle is read by the tasks that pickle, whatever a message claims; JSON by all."""
    seen: list[str] = []

    @app.task(name="plain")
    def plain(value: str) -> None:
        seen.append(value)

    @app.task(name="packed", serializer="msgpack")
    def packed(value: str) -> None:
        seen.append(value)

    evil = pickle.dumps({"args": ["evil"], "kwargs": {}})
    for task in ("plain", "packed"):
        for options in (
            {"laneway-serializer": "pickle"},
            {"laneway-serializer": "json"},
            {"laneway-serializer": "yaml"},
            {},
        ):
            app.publish(f"task.{task}", evil, headers={"laneway-task": task, **options})
    app.publish("task.packed", {"args": ["json"], "kwargs": {}}, headers={"laneway-task": "packed"})
    summary = app.run_worker(burst=True)
    assert (summary.acked, summary.died) == (1, 8)
    assert seen == ["json"]
    assert all("is not a call of task" in dead.reason for dead in app.dead_letters.list())
    with pytest.raises(
        UsageError, match="expected serializer to be one of json, msgpack, pickle, got 'yaml'"
    ):
        app.task(serializer="yaml")(plain.function)  # type: ignore[call-overload]
