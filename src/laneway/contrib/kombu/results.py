"""
A result backend of Celery: `result_backend = "laneway+sqlite:///…"`.

Celery finds it by the entry point `celery.result_backends`. Results are values of the store
(`app.values`), and so are the counters of chords, which nothing has to watch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.result import GroupResult, allow_join_result

from laneway.contrib.kombu.apps import PREFIX, app_of
from laneway.policy import CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from laneway.admin.values import Values

log = logging.getLogger("laneway.celery")

FOREVER_SECONDS = 10 * 365 * 86400.0
"""How long to keep what Celery wants to keep forever."""

MAX_NAME = 255
"""Most characters of the name of a value."""

SIZE = "laneway-size-"
"""Beginning of a key: how many tasks a chord waits for."""

PARTS, COUNTED = "laneway-parts-", "laneway-counted-"
"""Beginnings of keys: how many tasks a chord has counted, and a task that it has counted."""

ADDED = "laneway-added-"
"""Beginning of a key: the tasks that were added to a chord."""

CLAIM = "laneway-claim-"
"""Beginning of a key: the task whose worker publishes the body; also if it is delivered again."""

AT_ONCE = 50
"""How many results of many to look for when one has come; for all, once in an interval."""


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

    @property
    def _chord_ttl(self) -> float:
        return self.chord_expires or FOREVER_SECONDS

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Say how many tasks a chord waits for; called before the last of them is published."""
        self._values.put(name_of(f"{SIZE}{group_id}"), str(chord_size), ttl=self._chord_ttl)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Let a chord wait for another task, too."""
        name = name_of(f"{ADDED}{chord_id}")
        while True:
            before = self._values.get(name)
            added = json.dumps([*json.loads(before or "[]"), result.id])
            if self._values.swap(name, before, added, ttl=self._chord_ttl):
                return

    def on_chord_part_return(self, request: Any, *_: object, **__: object) -> None:
        """
        Count a task of a chord, once if it runs again; the last one publishes the body.

        Each but the last costs the same, whatever the size of the chord.
        """
        group = request.group
        if not group or not request.id:
            return
        values = self._values
        count = self._count(request)
        size, added, claim = (name_of(f"{each}{group}") for each in (SIZE, ADDED, CLAIM))
        wanted, more = values.get_many([size, added])
        others = [str(each) for each in json.loads(more or "[]")]
        if wanted is None or count < int(wanted) + len(others):
            return
        owner = request.id.encode()
        if values.swap(claim, None, owner, ttl=self._chord_ttl) or values.get(claim) == owner:
            tasks = self._finish_chord(request, others)
            marks = [_counted(group, each.id, number) for number, each in enumerate(tasks or ())]
            # A chord that is applied again has the same ids.
            for name in (size, added, name_of(f"{PARTS}{group}"), *marks, claim):
                values.delete(name)

    def _count(self, request: Any) -> int:
        """Count a task of a chord. Returns how many are counted."""
        counted = _counted(request.group, request.id, request.group_index)
        parts = name_of(f"{PARTS}{request.group}")
        if self._values.get(counted) is not None:
            return int(self._values.get(parts) or 0)
        count = self._values.add(parts, ttl=self._chord_ttl)
        self._values.put(counted, "1", ttl=self._chord_ttl)
        return count

    def _finish_chord(self, request: Any, added: list[str]) -> Any:
        """Publish the body of a chord with the results of its tasks, or fail it."""
        group = request.group
        body = maybe_signature(request.chord, app=self.app)
        tasks: Any = None
        try:
            tasks = GroupResult.restore(group, backend=self, app=self.app)
            if tasks is None:
                raise ChordError(f"GroupResult {group} no longer exists")
            for task_id in added:
                tasks.add(self.app.AsyncResult(task_id))
            with allow_join_result():
                results = tasks.join_native(
                    timeout=self.app.conf.result_chord_join_timeout, propagate=True
                )
        except Exception as error:  # noqa: BLE001  # whatever a task has raised
            self._fail_chord(body, group, *self._reason(tasks, error))
            return tasks
        try:
            body.delay(results)
        except Exception as error:  # noqa: BLE001  # also what encodes the results may raise
            self._fail_chord(body, group, f"Callback error: {error!r}", error)
        tasks.delete(backend=self)
        return tasks

    def _fail_chord(self, body: Any, group: str, reason: str, cause: Exception) -> None:
        log.error("chord %r: %s", group, reason)
        error = cause if isinstance(cause, ChordError) else ChordError(reason)
        error.__cause__ = None if error is cause else cause
        self.chord_error_from_stack(body, error)

    def _reason(self, tasks: Any, error: Exception) -> tuple[str, Exception]:
        """Why the results of a chord's tasks cannot be had: the first one that failed."""
        found = self.get_many(_ids(tasks), max_iterations=1)
        for task_id, meta in found:
            if meta["status"] in states.PROPAGATE_STATES:
                return f"Dependency {task_id} raised {meta['result']!r}", meta["result"]
        return repr(error), error

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
        meta = next(found)[1]
        if on_interval is not None and meta["status"] in states.PROPAGATE_STATES:
            on_interval()  # raises the error of a parent, such as a header's task
        return meta

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
        seconds = interval or 0.5
        next_of_all = 0.0
        while missing:
            most = AT_ONCE
            if time.monotonic() >= next_of_all:
                most, next_of_all = len(missing), time.monotonic() + seconds
            keys = {each: self.get_key_for_task(each) for each in islice(missing, most)}
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
            known = dict(zip(keys, stored, strict=True)).get(first)
            self._values.wait_for(
                name_of(self.get_key_for_task(first)),
                unlike=known,
                timeout=seconds if left is None else min(seconds, left),
            )


def _counted(group: str, task_id: str, index: int | None) -> str:
    """The name of the mark that a chord has counted a task."""
    return name_of(f"{COUNTED}{group}-{index}-{task_id}")


def _ids(tasks: Any) -> list[str]:
    """The ids of the tasks of a group; those of its groups are not among them."""
    return [each.id for each in (tasks or ()) if not isinstance(each, GroupResult)]


def name_of(key: bytes | str) -> str:
    """The name of the value of a key."""
    name = key.decode() if isinstance(key, bytes) else key
    plain = CONTROL.sub("_", name)
    if plain == name and len(name) <= MAX_NAME:
        return name
    return f"{plain[:200]}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
