"""An application on each engine, with a namespace of its own."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO
from uuid import uuid4

import pytest

from laneway import Laneway
from laneway.working import log_format
from tests.conformance import postgres_setups, valkey_setups

ENGINES = ["sqlite", "valkey", "postgres", "postgres, 4 schemas"]
SAMPLED = {"postgres": 8, "postgres, 4 schemas": 16}
"""
Engines that share SQLite's rules: one test in that many runs with them; `make fuzz` runs all.
"""


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
    if engine == "sqlite":
        return f"sqlite:///{folder}/poison.db"
    if engine == "valkey":
        return f"{valkey_setups.server().url}?shards=1"
    return f"{postgres_setups.server().url}?shards={4 if 'schemas' in engine else 1}"


def _is_left_out(item: pytest.Item) -> bool:
    engine = item.callspec.params.get("make_app") if hasattr(item, "callspec") else None
    return zlib.crc32(item.name.encode()) % SAMPLED.get(engine or "", 1) != 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what `make fuzz` runs only."""
    left_out = [each for each in items if _is_left_out(each)]
    if left_out and "FUZZ_ENDINGS" not in os.environ:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if each not in left_out]


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
