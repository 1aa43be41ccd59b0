"""
A result backend of Celery: `result_backend = "laneway+sqlite:///…"`.

Celery finds it by the entry point `celery.result_backends`. Results are values of the store
(`app.values`), and so are the counters of chords, which nothing has to watch.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Any

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, TimeoutError as CeleryTimeoutError
from celery.result import GroupResult, allow_join_result
from celery.utils.functional import _regen
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from laneway import EngineUnavailable
from laneway.admin.values import Values
from laneway.contrib.kombu.apps import PREFIX, app_of
from laneway.policy import CONTROL

log = logging.getLogger("laneway.celery")

OPTIONS = "result_backend_transport_options"
"""The setting with the options of the store."""

FOREVER_SECONDS = 10 * 365 * 86400.0
"""How long to keep what Celery wants to keep forever."""

MAX_NAME = 255
"""Most characters of the name of a value."""

SIZE, ADDED = "laneway-size-", "laneway-added-"
"""Beginnings of keys: how many tasks a chord waits for, and how many were added to them."""

COUNT, PART = "laneway-count-", "laneway-part-"
"""Beginnings of keys: how many numbers a chord has given to results, and a result by its number."""

CLAIM = "laneway-claim-"
"""Beginning of a key: the task whose worker publishes the body, even if it is delivered again."""

KEYS = (COUNT, SIZE, ADDED, CLAIM)

AWAY = (EngineUnavailable, OperationalError)
"""The errors while the store of results or the broker of a chord's body is unavailable."""

AT_ONCE = 50
"""How many results of many to look for when one has come; for all, once in an interval."""


class Backend(KeyValueStoreBackend):
    """Results of Celery's tasks in a store of Laneway."""

    supports_autoexpire = True
    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True
    implements_incr = True
    persistent = True

    def __init__(
        self, app: Any, url: str | None = None, expires: Any = None, **options: Any
    ) -> None:
        super().__init__(app=app, url=url, expires=expires, **options)
        self._store = url or ""
        failed = self.app.conf.get("result_failure_expires")
        self._failure_expires = self.expires if failed is None else self.prepare_expires(failed)

    @property
    def _values(self) -> Values:
        options = dict(self.app.conf.get(OPTIONS) or {})
        options.pop("global_keyprefix", None)  # Celery puts it before the keys
        return app_of(self._store, options, OPTIONS).values

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

    def store_result(self, *arguments: Any, **options: Any) -> Any:
        """Store the result of a task. Waits while the store is unavailable."""
        return _stored(super().store_result, *arguments, **options)

    def _set_with_state(self, key: bytes | str, value: bytes | str, state: str) -> None:
        """Store the result of a task; that of a failed one for `result_failure_expires`."""
        expires = self._failure_expires if state == states.FAILURE else self.expires
        self._values.put(name_of(key), value, ttl=expires or FOREVER_SECONDS)

    def delete(self, key: bytes | str) -> None:
        """Delete a key."""
        self._values.delete(name_of(key))

    def incr(self, key: bytes | str) -> int:
        """Add one to a counter, and return the sum."""
        return self._values.add(name_of(key), ttl=self.chord_expires or FOREVER_SECONDS)

    def expire(self, key: bytes | str, value: float | None) -> None:
        """Keep a value for `value` seconds from now on, or forever (0 or None)."""
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
        del result
        self._values.add(name_of(f"{ADDED}{chord_id}"), ttl=self._chord_ttl)

    def _apply_chord_incr(self, header_result_args: Any, body: Any, **options: Any) -> None:
        """Store the structure of a header with groups; other headers are lists of tasks."""
        self.ensure_chords_allowed()
        header = header_result_args[1]  # a generator's tasks are not known yet
        if not isinstance(header, _regen) and any(isinstance(each, GroupResult) for each in header):
            super()._apply_chord_incr(header_result_args, body, **options)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **_: object) -> None:
        """
        Store the result of a chord's task; the last one publishes the body.

        Waits while the store is unavailable, because Celery acks a task even if this fails.

        Each part but the last costs the same, whatever the size of the chord. A task that is run
        again stores its result again, and a worker that dies leaves a number without a result: both
        give more numbers than results, so the results decide.
        """
        if request.group and request.id:
            _stored(self._return_part, request, state, result)

    def _return_part(self, request: Any, state: str, result: Any) -> None:
        group = request.group
        values, ttl = self._values, self._chord_ttl
        count, size, added, claim = (name_of(f"{each}{group}") for each in KEYS)
        number = values.add(count, ttl=ttl)
        part = [request.id, request.group_index, state, self.encode_result(result, state)]
        values.put(_part(group, number), self.encode(part), ttl=ttl)
        counted, wanted, more = values.get_many([count, size, added])
        if wanted is None or int(counted or 0) < int(wanted) + int(more or 0):
            return
        stored = [_part(group, each) for each in range(1, int(counted or 0) + 1)]
        parts = self._parts(stored)
        owner = f"{request.id} {request.group_index}".encode()
        if len(parts) >= int(wanted) + int(more or 0) and (
            values.swap(claim, None, owner, ttl=ttl) or values.get(claim) == owner
        ):
            self._finish_chord(request, parts)
            for name in (size, added, count, *stored, claim):
                values.delete(name)  # a chord that is applied again has the same ids
            self.delete_group(group)

    def _parts(self, names: list[str]) -> list[Any]:
        """The ids, indexes, states and results of a chord's tasks, each task once, in order."""
        found = [self.decode(each) for each in self._values.get_many(names) if each is not None]
        once = {(task_id, index): [task_id, index, *part] for task_id, index, *part in found}
        return sorted(once.values(), key=lambda part: (part[1] is None, part[1] or 0))

    def _finish_chord(self, request: Any, parts: list[Any]) -> None:
        """Publish the body of a chord with the results of its tasks, or fail it."""
        body = maybe_signature(request.chord, app=self.app)
        try:
            results = self._results_of(request.group, parts)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001  # whatever a task has raised
            self._fail_chord(body, request.group, repr(error), error)
            return
        try:
            body.delay(results)
        except AWAY:
            raise
        except Exception as error:  # noqa: BLE001  # also what encodes the results may raise
            self._fail_chord(body, request.group, f"Callback error: {error!r}", error)

    def _results_of(self, group: str, parts: list[Any]) -> list[Any]:
        """The results of a chord's tasks. Raises ChordError if one has failed."""
        for task_id, _, state, result in parts:
            if state in states.PROPAGATE_STATES:
                error = self.exception_to_python(result)
                raise ChordError(f"Dependency {task_id} raised {error!r}") from error
        header = GroupResult.restore(group, backend=self, app=self.app)
        if header is None:
            return [result for _, _, _, result in parts]
        with allow_join_result():
            timeout = self.app.conf.result_chord_join_timeout
            return list(header.join_native(timeout=timeout, propagate=True))

    def _fail_chord(self, body: Any, group: str, reason: str, cause: Exception) -> None:
        log.error("chord %r: %s", group, reason)
        error = cause if isinstance(cause, ChordError) else ChordError(reason)
        error.__cause__ = error.__cause__ if error is cause else cause
        self.chord_error_from_stack(body, error)

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
        READY_STATES: Collection[str] = states.READY_STATES,  # noqa: N803  # Celery's name
    ) -> Iterator[tuple[str, Any]]:
        """
        Yield results as they are stored. Raises Celery's TimeoutError.

        It is notified of results, so `interval` only sets how often `on_interval` is called.
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
                if meta is not None and meta["status"] in READY_STATES:
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


def _stored(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a function returns that stores something; it is called until the store is available."""

    def log_error(error: Exception, seconds: Iterator[float], _: int) -> float:
        log.warning("a result cannot be stored, retrying: %s", error)
        return next(seconds)

    return retry_over_time(
        function,
        AWAY,
        arguments,
        options,
        log_error,
        interval_start=0.1,
        interval_step=0.2,
        interval_max=2,
    )


def _part(group: str, number: int) -> str:
    """The name of the value of a result in a chord."""
    return name_of(f"{PART}{group}-{number}")


def name_of(key: bytes | str) -> str:
    """The name of the value of a key."""
    name = key.decode() if isinstance(key, bytes) else key
    plain = CONTROL.sub("_", name)
    if plain == name and len(name) <= MAX_NAME:
        return name
    return f"{plain[:200]}-{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"
