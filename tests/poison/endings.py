# mypy: ignore-errors
"""
What a handler can do to its worker: values that it returns and errors that it raises, chosen by a
number.
"""

# ruff: noqa: PLE0303, PLW0108, SLOT000  # wrong on purpose; and a list of lambdas reads best where
# all are

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from laneway import (
    BacklogFull,
    DestinationUnavailable,
    EngineUnavailable,
    LanewayError,
    LeaseLost,
    Reject,
    Retry,
)

LONE = "\udcff"


TEXTS: list[Callable[[], Any]] = [
    lambda: "plain",
    lambda: "",
    lambda: LONE,
    lambda: f"no such file: {LONE}",
    lambda: "\ud800\udc00",
    lambda: "\x00",
    lambda: "\x9b2J\x1b]0;title\x07",
    lambda: "\u202eabc",
    lambda: "x" * 100_000,
    lambda: LONE * 50_000,
    lambda: "a\nb\r\nc",
    lambda: "é" * 5000,
    lambda: None,
    lambda: 3,
    lambda: b"\xff",
    object,
    lambda: ["a"],
    lambda: Hostile(),
    lambda: Letters("abc"),
    lambda: float("nan"),
]

NUMBERS: list[Callable[[], Any]] = [
    lambda: 1e15,
    lambda: -1e15,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: float("-inf"),
    lambda: 10**400,
    lambda: -(10**400),
    lambda: 2**63,
    lambda: -1,
    lambda: 0,
    lambda: 0.0,
    lambda: 1e-300,
    lambda: 5e-324,
    lambda: "soon",
    lambda: "1e400",
    lambda: "0",
    lambda: LONE,
    lambda: "9" * 5000 + "d",
    lambda: timedelta.max,
    lambda: timedelta.min,
    lambda: Decimal("1e999"),
    lambda: True,
    lambda: None,
    lambda: "",
    lambda: b"1",
    list,
    object,
    lambda: Hostile(),
    lambda: Number(3),
    lambda: complex(1, 1),
]

VALUES: list[Callable[[], Any]] = [
    lambda: None,
    lambda: 1,
    lambda: "fine",
    lambda: LONE,
    lambda: {"a": LONE},
    lambda: {LONE: 1},
    lambda: {1: 2},
    lambda: float("nan"),
    lambda: float("-inf"),
    lambda: 10**400,
    lambda: -(2**64),
    lambda: b"\xff" * 10,
    lambda: "x" * 2_000_000,
    lambda: _endless(),
    lambda: _deep(),
    object,
    lambda: Hostile(),
    lambda: Liar(),
    lambda: {1, 2},
    lambda: iter(()),
    lambda: (n for n in ()),
    lambda: Model(),
    lambda: Record(1),
    lambda: Letters("abc"),
    lambda: Numbers(),
    lambda: ValueError,
    lambda: ValueError(LONE),
    lambda: len,
    lambda: type,
    lambda: Exception(Hostile()),
]


def text(chance: random.Random) -> Any:
    """A value where text is expected."""
    return chance.choice(TEXTS)()


def number(chance: random.Random) -> Any:
    """A value where a duration is expected; none is a long time that could be meant."""
    return chance.choice(NUMBERS)()


def value(chance: random.Random) -> Any:
    """A value that a handler returns or encodes as JSON."""
    return chance.choice(VALUES)()


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


def _deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(20_000):
        nested = [nested]
    return nested


# Values that fail when they are used


class Hostile:
    """Raises whatever is done with it."""

    def __str__(self) -> str:
        raise ValueError(LONE)

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise SystemExit(3)

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __reduce__(self) -> Any:
        raise SystemExit(4)

    def __iter__(self) -> Iterator[Any]:
        raise GeneratorExit

    def __len__(self) -> int:
        raise MemoryError

    def __format__(self, spec: str) -> str:
        raise RecursionError

    def __float__(self) -> float:
        raise KeyboardInterrupt


class Liar:
    """Raises when it is asked for its class."""

    @property
    def __class__(self) -> Any:
        raise KeyboardInterrupt

    @__class__.setter
    def __class__(self, kind: Any) -> None: ...


class Letters(str):
    """Text that raises when it is read."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        return -1

    def encode(self, *_: object, **__: object) -> bytes:
        raise SystemExit(5)

    def partition(self, *_: object) -> Any:
        raise SystemExit(6)


class Number(float):
    def __mul__(self, other: object) -> Any:
        raise SystemExit(7)

    __rmul__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __float__ = __round__ = __mul__

    def __repr__(self) -> str:
        raise SystemExit(8)


class Numbers(list):
    def __iter__(self) -> Iterator[Any]:
        raise KeyboardInterrupt

    def __len__(self) -> int:
        raise SystemExit(9)

    __getitem__ = __iter__
    __repr__ = __iter__


class Model:
    """Looks like a pydantic model."""

    def model_dump(self, **_: object) -> Any:
        raise KeyboardInterrupt


@dataclass
class Record:
    n: int

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


# Errors


class TextRaises(Exception):
    raised: type[BaseException] = ValueError

    def __str__(self) -> str:
        raise self.raised(LONE)

    __repr__ = __str__


class TextExits(TextRaises):
    raised = SystemExit


class TextInterrupts(TextRaises):
    raised = KeyboardInterrupt


class TextRecurses(Exception):
    def __str__(self) -> str:
        return str(self)


class ClassRaises(Exception):
    __class__ = property(lambda _: 1 / 0)


class ClassLies(Exception):
    __class__ = property(lambda _: Reject)


class NotesRaise(Exception):
    __notes__ = property(lambda _: 1 / 0)


class PlaceRaises(Exception):
    __traceback__ = property(lambda _: 1 / 0)
    __cause__ = property(lambda _: 1 / 0)
    __context__ = property(lambda _: 1 / 0)
    args = property(lambda _: 1 / 0)


class Undecided(Exception):
    def __bool__(self) -> bool:
        raise SystemExit(1)

    def __eq__(self, other: object) -> bool:
        raise SystemExit(1)

    __hash__ = Exception.__hash__

    def __getattribute__(self, name: str) -> Any:
        raise KeyboardInterrupt(name)


class _Nameless(type):
    __name__ = property(lambda _: 1 / 0)
    __module__ = property(lambda _: 1 / 0)

    def __getattr__(cls, name: str) -> Any:
        raise KeyboardInterrupt


class OfNoName(Exception, metaclass=_Nameless):
    pass


class BareReject(Reject):
    def __init__(self, *_: object) -> None:
        """Do not call the base."""


class BareRetry(Retry):
    def __init__(self, *_: object) -> None:
        """Do not call the base."""


class BareUnavailable(DestinationUnavailable):
    def __init__(self, *_: object) -> None:
        """Do not call the base."""


class RaisingRetry(Retry):
    reason = property(lambda _: 1 / 0)
    delay = property(lambda _: 1 / 0)

    def __init__(self, *_: object) -> None:
        """Do not call the base: the properties cannot be set."""


class Ours(BaseException):
    """Derives from BaseException only."""


class WithDetails(Exception):
    def __init__(self, details: object) -> None:
        super().__init__("with details")
        self.details = details


def _circle(_: random.Random) -> BaseException:
    one, other = Retry("one"), Retry("other")
    one.__cause__, other.__cause__ = other, one
    return one


def _noted(chance: random.Random) -> BaseException:
    error = ValueError("noted")
    error.__notes__ = [text(chance), LONE, 3]
    return error


def _renamed(chance: random.Random) -> BaseException:
    kind = type("Renamed", (Exception,), {"__module__": text(chance)})
    kind.__qualname__ = LONE
    error: BaseException = kind("x")
    return error


def _nested(_: random.Random) -> BaseException:
    error: BaseException = ValueError(LONE)
    for _n in range(200):
        error = BaseExceptionGroup(LONE, [error, KeyboardInterrupt()])
    return error


def _chained(_: random.Random) -> BaseException:
    error: BaseException = ValueError(LONE)
    for _n in range(2_000):
        following = ValueError(LONE)
        following.__cause__ = error
        error = following
    return error


def _recursed(_: random.Random) -> BaseException:
    def down() -> None:
        down()

    try:
        down()
    except RecursionError as error:
        return error
    raise AssertionError


ERRORS: list[Callable[[random.Random], BaseException]] = [
    lambda c: ValueError(text(c)),
    lambda c: FileNotFoundError(2, LONE, LONE),
    lambda c: Reject(text(c)),
    lambda c: Reject(text(c), error=text(c)),
    lambda c: Retry(text(c)),
    lambda c: Retry(text(c), delay=number(c)),
    lambda c: Retry("later", delay=number(c)),
    lambda c: DestinationUnavailable(text(c), retry_after=number(c)),
    lambda c: DestinationUnavailable("503", retry_after=number(c)),
    lambda c: c.choice([BareReject, BareRetry, BareUnavailable, RaisingRetry])(),
    lambda c: c.choice([TextRaises, TextExits, TextInterrupts, TextRecurses])("x"),
    lambda c: c.choice([ClassRaises, ClassLies, NotesRaise, PlaceRaises, Undecided, OfNoName])("x"),
    lambda c: c.choice(
        [
            SystemExit,
            KeyboardInterrupt,
            GeneratorExit,
            asyncio.CancelledError,
            StopIteration,
            StopAsyncIteration,
            Ours,
        ]
    )(LONE),
    lambda c: c.choice(
        [MemoryError, RecursionError, TimeoutError, UnicodeError, BrokenPipeError, EOFError]
    )(LONE),
    lambda c: c.choice([EngineUnavailable, LeaseLost, BacklogFull, LanewayError])(LONE),
    lambda c: UnicodeDecodeError("utf-8", b"\xff" * 100, 0, 1, LONE),
    lambda c: WithDetails(text(c)),
    _circle,
    _noted,
    _renamed,
    _nested,
    _chained,
    _recursed,
]

VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("left behind")


@contextmanager
def leaving_a_variable(chance: random.Random) -> Iterator[None]:
    """Sometimes leave a context variable behind that cannot be compared."""
    if chance.random() < 0.1:
        with suppress(BaseException):
            VARIABLE.set(Hostile())
    yield


def end(seed: int) -> Any:
    """End as the seed says: raise an error or return a value."""
    chance = random.Random(seed)
    with leaving_a_variable(chance):
        if chance.random() < 0.35:
            return value(chance)
        raise chance.choice(ERRORS)(chance)


def end_many(seeds: list[int]) -> Any:
    """End a batch: one error for all, a list with one outcome for each, or an invalid list."""
    chance = random.Random(sum(seeds))
    outcomes = [chance.choice([None, chance.choice(ERRORS)(chance)]) for _ in seeds]
    match chance.randrange(5):
        case 0:
            return end(seeds[0])
        case 1:
            return outcomes[:-1]
        case 2:
            return Numbers(outcomes)
        case 3:
            return [value(chance) for _ in seeds]
        case _:
            return outcomes


def called(seed: int) -> Any:
    """A function that queues call by its name."""
    return end(seed)


def called_apart(message: Any) -> Any:
    """A handler in a child process."""
    return end(message.body)


def texts_of(error: BaseException) -> str:
    """An error as text for the message of an assertion."""
    from laneway import storable

    return f"{storable.type_name(type(error))}: {storable.of(error)}"
