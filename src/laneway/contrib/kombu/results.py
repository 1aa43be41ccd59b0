"""
A result backend of Celery: `result_backend = "laneway+sqlite:///…"`.

Celery finds it by the entry point `celery.result_backends`. Results are values of the store
(`app.values`), and so are the counters of chords, which nothing has to watch.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError

from laneway.contrib.kombu.apps import PREFIX, app_of
from laneway.policy import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from laneway.admin.values import Values

FOREVER_SECONDS = 10 * 365 * 86400.0
"""How long to keep what Celery wants to keep forever."""

MAX_NAME = 255
"""Most characters of the name of a value."""

COUNTED, PARTS = "laneway-counted-", "laneway-parts-"
"""Beginnings of keys: a task that a chord has counted, and how many it has counted."""


class Backend(KeyValueStoreBackend):
    """Results of Celery's tasks in a store of Laneway."""

    supports_autoexpire = True
    supports_native_join = True
    implements_incr = True
    persistent = True

    def __init__(
        self, app: Any, url: str | None = None, expires: Any = None, **options: Any
    ) -> None:
        super().__init__(app=app, url=url, expires=expires, **options)
        self._store = url or ""

    @property
    def _values(self) -> Values:
        options = self.app.conf.get("result_backend_transport_options") or {}
        return app_of(self._store, options).values

    def as_uri(self, include_password: bool = False) -> str:
        """The URL, without its password."""
        return PREFIX + super().as_uri(include_password).removeprefix(PREFIX)

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self._store})

    # What Celery asks of a store of keys and values

    def get(self, key: bytes | str) -> bytes | None:
        """Return the value of a key, or None."""
        return self._values.get(name_of(key))

    def mget(self, keys: Iterable[bytes | str]) -> list[bytes | None]:
        """Return the values of many keys."""
        return self._values.get_many(map(name_of, keys))

    def set(self, key: bytes | str, value: bytes | str) -> None:
        """Store a value."""
        self._values.put(name_of(key), value, ttl=self.expires or FOREVER_SECONDS)

    def delete(self, key: bytes | str) -> None:
        """Delete a key."""
        self._values.delete(name_of(key))

    def incr(self, key: bytes | str) -> int:
        """Add one to a counter, and return the sum."""
        return self._values.add(name_of(key), ttl=self.chord_expires or FOREVER_SECONDS)

    def expire(self, key: bytes | str, value: float | None) -> None:
        """Keep a value for so many seconds from now on; 0 or None: forever."""
        stored = self.get(key)
        if stored is not None:
            self._values.swap(name_of(key), stored, stored, ttl=value or FOREVER_SECONDS)

    # Chords

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """
        Count a task of a chord, once if it runs again; the last one publishes the body.

        Each but the last costs the same, whatever the size of the chord.
        """
        size = (request.chord or {}).get("chord_size") if request.group else None
        if size is None:
            super().on_chord_part_return(request, state, result, **options)
            return
        ttl = self.chord_expires or FOREVER_SECONDS
        counted = name_of(f"{COUNTED}{request.group}-{request.id}")
        if self._values.get(counted) is not None:
            return
        count = self._values.add(name_of(f"{PARTS}{request.group}"), ttl=ttl)
        self._values.put(counted, "1", ttl=ttl)
        if count == size:
            # Celery counts once more, and then does what the end of a chord needs.
            chord = name_of(self.get_key_for_chord(request.group))
            self._values.put(chord, str(size - 1), ttl=ttl)
            super().on_chord_part_return(request, state, result, **options)

    # Waiting

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> Any:
        """
        Wait for a task's result, and return it when it is stored. Raises Celery's TimeoutError.
        """
        found = self.get_many([task_id], timeout, interval, no_ack, None, on_interval)
        return next(found)[1]

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Any], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,
        **_: object,
    ) -> Iterator[tuple[str, Any]]:
        """
        Yield results as they are stored. Raises Celery's TimeoutError.

        It is notified of results, so `interval` only says how often `on_interval` is called.
        """
        del no_ack
        deadline = None if timeout is None else time.monotonic() + timeout
        missing = dict.fromkeys(map(str, task_ids))
        rounds = 0
        while missing:
            keys = {task_id: self.get_key_for_task(task_id) for task_id in missing}
            stored = self.mget(keys.values())
            for task_id, value in zip(keys, stored, strict=True):
                meta = None if value is None else self.decode_result(value)
                if meta is not None and meta["status"] in states.READY_STATES:
                    del missing[task_id]
                    self._cache[task_id] = meta
                    if on_message is not None:
                        on_message(meta)
                    yield task_id, meta
            if not missing:
                return
            rounds += 1
            if max_iterations and rounds >= max_iterations:
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise CeleryTimeoutError(f"no result within {timeout} s")
            if on_interval is not None:
                on_interval()
            first = next(iter(missing))
            known = dict(zip(keys, stored, strict=True))[first]
            seconds = interval or 0.5
            self._values.wait_for(
                name_of(keys[first]),
                unlike=known,
                timeout=seconds if left is None else min(seconds, left),
            )


def name_of(key: bytes | str) -> str:
    """The name of the value of a key."""
    name = key.decode() if isinstance(key, bytes) else key
    plain = CONTROL.sub("_", name)
    if plain == name and len(name) <= MAX_NAME:
        return name
    return f"{plain[:200]}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
