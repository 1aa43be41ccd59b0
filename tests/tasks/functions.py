"""Plain functions, as they are put into queues by name."""

from __future__ import annotations

import os
import time
from typing import Any

from laneway import current_request

CALLED: list[tuple[Any, ...]] = []


def add(a: int, b: int = 0) -> int:
    return a + b


async def double(n: int) -> int:
    return 2 * n


def fail(text: str = "wrong") -> None:
    raise ValueError(text)


def note(*what: Any) -> None:
    CALLED.append(what)


def results_before() -> list[Any]:
    request = current_request()
    assert request is not None
    return [
        signal.result if signal.status == "success" else signal.status for signal in request.before
    ]


def pid() -> int:
    return os.getpid()


def endless() -> None:
    while True:
        time.sleep(0.01)  # work that only a stop ends


def did_well(job: Any, _: None, result: Any) -> None:
    CALLED.append(("well", job.id, result))


def did_badly(job: Any, _: None, kind: type, error: BaseException, trace: Any) -> None:
    CALLED.append(("badly", job.id, kind, str(error), trace is not None))


def slow_note(name: str, seconds: float) -> str:
    time.sleep(seconds)  # the work
    CALLED.append((name,))
    return name
