"""An application on each engine, with a namespace of its own."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO
from uuid import uuid4

import pytest

from laneway import Laneway
from laneway.working import log_format
from tests.conformance.valkey_setups import server

ENGINES = ["sqlite", "valkey"]


class _Formatting(logging.StreamHandler[TextIO]):
    """Formats each record and writes it nowhere; errors in formatting are ignored."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        del record


@pytest.fixture(autouse=True)
def _format_logs_without_capture() -> Iterator[None]:
    """
    Format log lines as in production, but do not capture them: pytest-xdist cannot carry lone
    surrogates.
    """
    logger = logging.getLogger("laneway")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        handlers = [_Formatting(nowhere), _Formatting(nowhere)]
        handlers[0].setFormatter(log_format.JsonLines())
        handlers[1].setFormatter(log_format.TextLines(log_format.TEXT_FORMAT))
        logger.propagate = False
        for handler in handlers:
            logger.addHandler(handler)
        yield
        for handler in handlers:
            logger.removeHandler(handler)
        logger.propagate = True


def url_of(engine: str, folder: Path) -> str:
    return f"sqlite:///{folder}/poison.db" if engine == "sqlite" else f"{server().url}?shards=1"


@pytest.fixture(params=ENGINES)
def make_app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Laneway]]:
    apps: list[Laneway] = []

    def create(**settings: object) -> Laneway:
        settings = {"namespace": uuid4().hex, "durability": "memory", **settings}
        apps.append(Laneway(url_of(request.param, tmp_path), **settings))  # type: ignore[arg-type]
        apps[-1].policy("*", backoff=0, retries=1)
        return apps[-1]

    yield create
    for app in apps:
        app.close()


@pytest.fixture
def app(make_app: Callable[..., Laneway]) -> Laneway:
    return make_app()
