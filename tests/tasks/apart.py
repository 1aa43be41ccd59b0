"""Tasks for child processes, which find them in this module."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from laneway import Laneway, Reject

app = Laneway("sqlite://")


@dataclass
class Order:
    number: int
    at: datetime


class Odd(Exception):
    """An error of a program's own."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class Unkind(Exception):
    """An error that its arguments cannot rebuild."""

    def __init__(self, one: int, *, why: object) -> None:
        super().__init__(one, why)


@app.task(isolation="process")
def order(number: int) -> Order:
    return Order(number, datetime(2026, 1, 1, tzinfo=UTC))


@app.task(isolation="process")
def failing(how: str) -> None:
    if how == "value":
        raise ValueError("bad value")
    if how == "odd":
        raise Odd(1, 2)
    if how == "unkind":
        raise Unkind(1, why=object())
    raise Reject("not this one")


@app.task(isolation="process")
def endless(file: str) -> None:
    Path(file).write_text(str(os.getpid()))
    while True:
        time.sleep(1)  # work that only a kill ends
