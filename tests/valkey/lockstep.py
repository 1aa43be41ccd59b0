"""Two servers with the same keys: the library runs on one, a changed one on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import redis

from laneway.engines.base import FullEngine
from laneway.engines.sharded.splitting import CallSize
from laneway.testing.servers import Server
from tests.valkey.stored_keys import UNDIVIDED, stored

NAMESPACE = "same"


class Lockstep:
    """`engines`: one on each server. The calls of neither are divided."""

    def __init__(self, engines: tuple[FullEngine, FullEngine], clients: tuple[Any, Any]) -> None:
        self.engines = engines
        self._clients = clients

    def check(self, value_of: Callable[[Any], Any] = lambda value: value) -> None:
        """Fail unless both servers store the same. `value_of`: what of a value is compared."""
        here, there = (stored(client, NAMESPACE) for client in self._clients)
        assert here.keys() == there.keys()
        for name, value in here.items():
            assert (name, value_of(value)) == (name, value_of(there[name]))


@contextmanager
def in_lockstep(
    opened: Callable[..., FullEngine],
    monkeypatch: pytest.MonkeyPatch,
    changed: bytes,
    *,
    now_us: int,
) -> Iterator[Lockstep]:
    """Servers on which a namespace has just been created; `changed`: the library of the second."""
    monkeypatch.setattr(CallSize, "fit", lambda *_, **__: None)
    monkeypatch.setattr("laneway.engines.valkey.connection.SOURCE", UNDIVIDED)
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(2)]
        one, other = (
            stack.enter_context(redis.Redis.from_url(each.url.replace("valkey://", "redis://")))
            for each in servers
        )
        first = opened(servers[0].url, namespace=NAMESPACE)
        first.overview(now_us=now_us)
        for name in one.scan_iter():  # so that generated ids are the same
            other.restore(name, 0, one.dump(name))
        monkeypatch.setattr("laneway.engines.valkey.connection.SOURCE", changed)
        yield Lockstep((first, opened(servers[1].url, namespace=NAMESPACE)), (one, other))
