"""The decoder of plain calls reads what `Binding.decode` reads, and leaves it all other bodies."""

from __future__ import annotations

import enum
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from laneway.errors import Reject
from laneway.tasks.binding import Binding


class Color(enum.Enum):
    RED = "red"


@dataclass
class Line:
    item: str
    count: int = 1
    more: list[Line] | None = None


class Order(msgspec.Struct):
    number: int
    lines: list[Line] = []


class Point(NamedTuple):
    x: float
    y: float


class Person(TypedDict):
    name: str


class Customer(pydantic.BaseModel):
    name: str
    age: int


def scalars(a: int, b: str = "", c: float = 0.0, d: bool = False) -> None: ...
def optional(a: int | None, b: list[int] | None = None, c: Any = None) -> None: ...
def models(a: Line, b: Order | None = None, c: Customer | None = None) -> None: ...
def shapes(a: Point, b: Person | None = None, c: tuple[int, str] | None = None) -> None: ...
def texts(a: datetime, b: date | None = None, c: UUID | None = None, d: bytes = b"") -> None: ...
def named(a: Color, b: Literal["x", 1] = "x", c: timedelta | None = None) -> None: ...
def models_alone(a: Customer, b: set[int] = set()) -> None: ...  # noqa: B006
def untyped(a, b=None): ...
def nothing() -> None: ...


FUNCTIONS: list[Callable[..., Any]] = [
    scalars,
    optional,
    models,
    shapes,
    texts,
    named,
    models_alone,
    untyped,
    nothing,
]

VALUES: list[Any] = [
    *(0, 1, -1, 2**63, 2**70, 1.0, 1.5, 1e300, True, False, None, "", "x", "é", "red", "1"),
    *("2026-01-02T03:04:05Z", "2026-01-02", "P1D", "YWJj"),
    "12345678-1234-5678-1234-567812345678",
    *([], [1], [1, "x"], [1.0, 2.0], ["x"], {}, {"x": 1}),
    *({"name": "Ann"}, {"name": "Ann", "age": 7}, {"item": "a"}, {"item": "a", "count": 2}),
    {"item": "a", "more": [{"item": "b", "other": 1}]},
    {"number": 1, "lines": [{"item": "a"}]},
]


def general(binding: Binding, body: bytes) -> tuple[Any, ...] | None:
    """The positional arguments; None: it is no call, or has others."""
    try:
        args, kwargs = binding.decode(msgspec.json.decode(body))
    except Reject:
        return None
    return None if kwargs else args


@pytest.mark.parametrize("function", FUNCTIONS)
def test_plain_calls_are_read_alike(function: Callable[..., Any]) -> None:
    """Values of every kind, by position and by name, right and wrong."""
    binding = Binding("task", function, skips=False)
    decode = binding.decoder()
    assert decode is not None
    names = [*inspect.signature(function).parameters, "other"]
    rng = random.Random(1)
    for _ in range(1_000):
        args = rng.choices(VALUES, k=rng.randrange(len(names) + 1))
        kwargs = {rng.choice(names): rng.choice(VALUES) for _ in range(rng.choice([0, 0, 1, 2]))}
        body = msgspec.json.encode({"args": args, "kwargs": kwargs})
        assert repr(decode(body)) == repr(general(binding, body)), body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"args":[1]}',
        b'{"args":{},"kwargs":{}}',
        b'{"args":[1],"kwargs":{},"each":true}',
        b'{"errback":3,"args":[1],"kwargs":{}}',
        b'{"args":[1],"kwargs":{}',
        b'{"args":[[' + b"[" * 100_000,
    ],
)
def test_other_bodies_are_left_to_the_general_way(body: bytes) -> None:
    """Among them calls with a meaning of their own."""
    decode = Binding("task", untyped, skips=False).decoder()
    assert decode is not None
    assert decode(body) is None


def by_kind(a: int, *, b: int) -> None: ...
def many(*args: int) -> None: ...
def exact(a: Decimal) -> None: ...
def keyed(a: dict[int, str]) -> None: ...


@pytest.mark.parametrize("function", [by_kind, many, exact, keyed])
def test_some_functions_have_no_decoder(function: Callable[..., Any]) -> None:
    """Parameters that are not simply positional, and types that JSON gives differently."""
    assert Binding("task", function, skips=False).decoder() is None
