"""
The part of a worker that sends messages to endpoints: an executor, like that of coroutines.

The life of a message here:

1. `prepare` reads the endpoints of the topics of all messages that were leased together, in the
   engine's thread. For a message that was leased in another way, `start` has a thread read it.
2. `start` begins it as soon as it has a slot.
3. `_send` forms and signs the request, or decides that none is made.
4. The transport sends it, and `_answered` gets the answer.
5. The answer's verdict is reported to the worker, which settles the message.

Failures are written into the endpoint's condition by a second thread, and so are notifications. It
is never waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from laneway import units
from laneway.engines.base import FullEngine
from laneway.errors import DestinationUnavailable, LanewayError, Reject
from laneway.message import Lease
from laneway.push import breaker, payloads, resolver, secret_store, stored_counts, table
from laneway.push.address_guard import PROXY_VARIABLE, of_process
from laneway.push.answers import Answer, AttemptFailed, Released, Verdict, judge
from laneway.push.attempt import Attempt, entry_of, result_of
from laneway.push.delivery_log import Entry, LogWriter, Result
from laneway.push.events import EndpointEvents
from laneway.push.notifications import HOUR_US, TOPIC as NOTIFICATIONS, notify
from laneway.push.stored_counts import CLASSES, COUNTS, Counts
from laneway.push.table import Record
from laneway.push.targets import Target, destination_of, fill, headers_for
from laneway.push.transport import Request, Slot, Transport
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:
    from laneway.push.settings import SenderSettings
    from laneway.working.executors.executor import Dispatch, Finished

log = logging.getLogger("laneway.push")

LEAST_OF_TOPIC, PARTS = 8, 8
"""One endpoint has at most an eighth of a sender's slots, and at least 8, while others wait."""

NO_ENDPOINT = object()
"""Marks a message that was prepared, and whose topic has no endpoint."""

MAX_TARGETS = 10_000
"""Endpoints that a sender has in memory; of the others, only their counts are forgotten."""

DISABLED_SECONDS = 1.0
"""How long a message waits that meets a disabled endpoint whose topic is not paused yet."""

NO_KEY_SECONDS = 60.0
NO_SOCKET_SECONDS = 1.0
"""How long a topic backs off if this process cannot send: no free socket, or no proxy."""

NAME_PARTS = 4
"""Units whose host is being looked up have at most a quarter of the slots."""

NAME_SECONDS = 0.5
"""How long they have one."""

AGAIN_SECONDS, SLOW_NAME_SECONDS = 0.1, 1.0
"""How long the topic of one that lost its slot backs off at least, and that of a slow host."""

PROBE_SECONDS = 1.0
"""How long a message waits behind the probe of its endpoint."""

COUNTS_SECONDS = 10.0
"""How often a sender adds what it has counted to the namespace's counts."""

MAX_NOTES = 1_000
"""Conditions that wait to be written; more are dropped."""

WARN_SECONDS = 60.0

PREFETCH_SECONDS = 0.1
"""
How many seconds of work are leased ahead: a message of a large lease costs less. A message of a
quiet topic does not wait behind them, see `buffer`.
"""

CLOSE_SECONDS = 5.0
"""How long the end of a sender waits for its delivery log."""


class Sender:
    """Sends the messages of one worker. An `Executor`."""

    reports_begin = False
    prefetch_seconds = PREFETCH_SECONDS

    def __init__(
        self,
        engine: FullEngine,
        finished: Finished,
        dispatch: Dispatch,
        concurrency: int,
        settings: SenderSettings,
    ) -> None:
        self._engine = engine
        self._finished = finished
        self._dispatch = dispatch
        self._guard = of_process(is_open=settings.is_open).with_others(settings.allow)
        self._secrets = secret_store.of_process(settings.url())
        self._proxy = settings.proxy or os.environ.get(PROXY_VARIABLE) or None
        self._loop = asyncio.get_running_loop()
        self._resolver = resolver.Resolver(self._loop, settings.lookup)
        self._most_of_topic = max(LEAST_OF_TOPIC, concurrency // PARTS)
        self._most_waiting = max(1, concurrency // NAME_PARTS)
        opened = self._guard.opened()
        self._public = Transport(self._loop, opened if self._guard.is_open else self._guard)
        self._private: Transport | None = None
        self._targets: dict[str, Target] = {}
        """By topic; changed with the lock held."""
        self._lock = threading.Lock()
        self._running: dict[str, int] = {}
        """How many units of a topic were started and have not ended, by topic."""
        self._pending: list[WorkerDelivery] = []
        self._is_reading = self._is_read_due = self._is_dispatch_due = False
        self._slots: dict[WorkerDelivery, Slot] = {}
        """The requests in flight."""
        self._waiting: dict[WorkerDelivery, tuple[resolver.Host, Target, asyncio.TimerHandle]] = {}
        """Units whose host is being looked up."""
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="laneway-push")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="laneway-push-notes")
        self._log = LogWriter(engine)
        self._events = EndpointEvents(engine)
        self._counts = Counts()
        """What is not yet added to the namespace's counts."""
        self._is_count_due = False
        self._dropped_stored = 0
        self._exhausted: dict[str, int] = {}
        """The hour in which a topic's last notification about a message without retries was."""
        self._note_count = 0
        self._pausing: set[str] = set()
        """Topics of disabled endpoints that were not paused; the writer pauses them."""
        self._warned_at = 0.0
        self._is_closed = False

    # As an executor

    def is_full(self, topic: str) -> bool:
        """Whether a topic has its share of slots, so that others go first."""
        return self._running.get(topic, 0) >= self._most_of_topic

    def prepare(self, deliveries: list[WorkerDelivery]) -> None:
        topics = list({each.lease.topic: None for each in deliveries})
        try:
            targets = self._read(topics)
        except Exception:  # noqa: BLE001  # `start` reads them again, and reports it
            return
        for each in deliveries:
            each.prepared = targets[each.lease.topic] or NO_ENDPOINT

    def start(self, unit: WorkerDelivery) -> None:
        topic = unit.lease.topic
        self._running[topic] = self._running.get(topic, 0) + 1
        unit.began = time.perf_counter()
        unit.runner = self
        prepared = unit.prepared
        if prepared is not None:
            target = self._targets.get(topic) or (prepared if prepared is not NO_ENDPOINT else None)
            self._begin(unit, target, table.now())
            return
        self._pending.append(unit)
        if not self._is_read_due and not self._is_reading:
            self._is_read_due = True
            self._loop.call_soon(self._read_pending)

    async def close(self, seconds: float) -> None:
        self._is_closed = True
        for slot in list(self._slots.values()):
            slot.transport.abort(slot)
        self._slots.clear()
        for _, _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        self._pending.clear()
        self._public.close()
        if self._private is not None:
            self._private.close()
        self._reader.shutdown(wait=False, cancel_futures=True)
        waiting = self._loop.run_in_executor(None, self._write_rest)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting, max(seconds, 1.0))

    def _write_rest(self) -> None:
        self._writer.shutdown()
        self._log.close(CLOSE_SECONDS)
        if self._is_count_due:
            self._add_counts(self._take_counts())

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        """A sender's requests have no soft time limit."""

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        """Drop a unit's request, if one was made."""
        del error
        slot = self._slots.pop(unit, None)
        if slot is not None:
            slot.transport.abort(slot)
        if (waiting := self._waiting.pop(unit, None)) is not None:
            waiting[2].cancel()
        if unit in self._pending:
            self._pending.remove(unit)
        self._free(unit)

    def _free(self, unit: WorkerDelivery) -> None:
        unit.runner = None
        topic = unit.lease.topic
        left = self._running.get(topic, 1) - 1
        if left:
            self._running[topic] = left
        else:
            self._running.pop(topic, None)

    def _end(self, unit: WorkerDelivery, error: BaseException | None) -> None:
        """Report how a unit ended."""
        self._free(unit)
        self._finished(unit, None, error)
        if not self._is_dispatch_due:
            self._is_dispatch_due = True
            self._loop.call_soon(self._dispatch_others)

    def _dispatch_others(self) -> None:
        self._is_dispatch_due = False
        if not self._is_closed:
            self._dispatch()

    # Read the endpoints

    def _read_pending(self) -> None:
        self._is_read_due = False
        if self._is_closed or not self._pending:
            return
        units_, self._pending = self._pending, []
        topics = list({unit.lease.topic: None for unit in units_})
        self._is_reading = True
        reading = self._reader.submit(self._read, topics)

        def have_read(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._have_read, units_, reading)

        reading.add_done_callback(have_read)

    def _read(self, topics: list[str]) -> dict[str, Target | None]:
        """Read the endpoints of topics, in a thread. Those that did not change are kept."""
        known = self._targets
        found: dict[str, Target | None] = {}
        with self._lock:
            stored = self._engine.record_read(table.KIND, topics)
            for topic, text in zip(topics, stored, strict=True):
                target = known.get(topic)
                if text is None:
                    known.pop(topic, None)
                    found[topic] = None
                    continue
                if target is None or target.stored != text:
                    if target is None and len(known) >= MAX_TARGETS:
                        self._forget_some()
                    known[topic] = target = self._target(topic, text, target)
                found[topic] = target
        return found

    def _target(self, topic: str, text: bytes, before: Target | None) -> Target:
        record = table.read(text)
        target = Target(text, record, breaker.Window() if before is None else before.window)
        target.is_noted = record.condition != table.Condition()
        if before is not None:
            target.open_until, target.opens = before.open_until, before.opens
            target.backs_off_from = before.backs_off_from
            target.busy, target.busy_until = before.busy, before.busy_until
            target.busy_since_us = before.busy_since_us
            if (before.record.version, before.record.enabled_us) != (
                record.version,
                record.enabled_us,
            ):  # its settings changed: try it immediately
                target.open_until, target.opens, target.backs_off_from = 0.0, 0, 0.0
                target.busy, target.busy_until = 0, 0.0
                target.window = breaker.Window()
        fill(target, topic, self._guard, self._secrets)
        return target

    def _have_read(self, units_: list[WorkerDelivery], reading: Any) -> None:
        self._is_reading = False
        if self._is_closed:
            return
        if self._pending:
            self._is_read_due = True
            self._loop.call_soon(self._read_pending)
        error = reading.exception()
        if error is not None:
            for unit in units_:
                if not unit.over:
                    self._end(
                        unit, Released(f"its endpoint cannot be read: {error}", delay=PROBE_SECONDS)
                    )
            return
        targets = reading.result()
        now_us = table.now()
        for unit in units_:
            if not unit.over:
                self._begin(unit, targets[unit.lease.topic], now_us)

    def _forget_some(self) -> None:
        """Forget half of the endpoints, the ones that were known first, unless they fail."""
        for topic in list(self._targets)[: MAX_TARGETS // 2]:
            if topic not in self._running and not self._targets[topic].open_until:
                del self._targets[topic]

    # Send

    def _begin(self, unit: WorkerDelivery, target: Target | None, now_us: int) -> None:
        try:
            self._send(unit, target, now_us)
        except Reject as refusal:
            self._end(unit, refusal)
        except Exception as fault:  # noqa: BLE001  # of one message; others continue
            self._end(unit, fault)

    def _send(self, unit: WorkerDelivery, target: Target | None, now_us: int) -> None:
        lease = unit.lease
        refusal = self._refusal(unit, target)
        if refusal is not None or target is None:
            self._end(unit, refusal)
            return
        record = target.record
        if record.events and not payloads.wants(record.events, lease):
            COUNTS.skipped += 1
            self._counts.skipped += 1
            self._store_counts_soon()
            self._end(unit, None)
            return
        destination = destination_of(target, self._proxy)
        host = self._resolver.find(destination.name) if destination.name else None
        if host is not None and not (host.addresses or host.problem):
            self._wait_for(host, unit, target)
            return
        body, content_type = payloads.of_lease(lease, record.content, record.template)
        headers = headers_for(target, lease, body, content_type, now_us)
        condition = record.condition
        is_probe = bool(condition.opened_us or condition.probing_us or target.opens)
        attempt = Attempt(unit, target, lease, headers, now_us, is_probe)
        if host is not None and not host.addresses:
            is_ours = destination.settings.is_proxy_trusted
            detail = f"{destination.name}: {host.problem}"
            self._conclude(attempt, Answer(error="dns", detail=detail, is_ours=is_ours))
            return
        transport = self._public if not record.allow_private else self._to_private()
        request = Request(
            destination=destination,
            headers=headers,
            body=body,
            finished=partial(self._answered, attempt),
            is_timed=record.log != "failures",
            addresses="" if host is None else host.addresses,
        )
        self._slots[unit] = transport.start(request)

    def _wait_for(self, host: resolver.Host, unit: WorkerDelivery, target: Target) -> None:
        """
        Send a unit when its host has been looked up. Most names take milliseconds, so units wait
        for them with a slot; the ones that wait longest lose it to newer ones.
        """
        is_crowded = len(self._waiting) >= self._most_waiting
        if host.is_slow or (is_crowded and self._age(host) >= AGAIN_SECONDS):
            self._put_back(unit, target, host)
            return
        if is_crowded:
            self._stop_waiting(next(iter(self._waiting)))
        timer = self._loop.call_later(NAME_SECONDS, self._stop_waiting, unit)
        self._waiting[unit] = (host, target, timer)
        host.waiting.append(partial(self._looked_up, unit))

    def _stop_waiting(self, unit: WorkerDelivery) -> None:
        host, target, timer = self._waiting.pop(unit)
        timer.cancel()
        self._put_back(unit, target, host)

    def _put_back(self, unit: WorkerDelivery, target: Target, host: resolver.Host) -> None:
        """
        Return a unit whose host is being looked up. The longer that takes, the less often, and not
        at the same moment as those of other hosts that hang. A name that failed before is expected
        to fail again.
        """
        seconds = age = self._age(host)
        if age >= AGAIN_SECONDS:
            host.is_slow = True
            left = resolver.LOOKUP_SECONDS - age
            seconds = left if host.failures else max(SLOW_NAME_SECONDS, age)
        text = f"the address of {host.name} is being looked up"
        self._back_off(unit, target, text, breaker.jittered(max(AGAIN_SECONDS, seconds)))

    def _age(self, host: resolver.Host) -> float:
        return self._loop.time() - host.asked_at

    def _looked_up(self, unit: WorkerDelivery) -> None:
        found = self._waiting.pop(unit, None)
        if found is not None:
            _, target, timer = found
            timer.cancel()
            self._begin(unit, target, table.now())

    def _back_off(self, unit: WorkerDelivery, target: Target, text: str, seconds: float) -> None:
        """Return a unit that could not be sent yet; its topic backs off, and nothing is counted."""
        target.backs_off_from = time.monotonic()
        self._end(unit, DestinationUnavailable(text, retry_after=seconds))

    def _to_private(self) -> Transport:
        if self._private is None:
            self._private = Transport(self._loop, self._guard.opened())
        return self._private

    def _refusal(self, unit: WorkerDelivery, target: Target | None) -> BaseException | None:
        """Why no request is made for a message, or None if one is made."""
        lease = unit.lease
        if target is None:
            if lease.topic == NOTIFICATIONS:  # nobody wants them
                return None
            self._warn("topic %s has no endpoint: its messages wait", lease.topic)
            return Released("its topic has no endpoint", action="unhandled")
        record = target.record
        if record.disabled is not None:
            self._pause(lease.topic)
            return Released(f"its endpoint is disabled: {record.disabled}", delay=DISABLED_SECONDS)
        if target.is_gone:
            return Released("its endpoint is gone", delay=DISABLED_SECONDS)
        if target.problem is not None:
            if target.is_ours:
                self._warn("%s", target.problem)
                return Released(target.problem, delay=NO_KEY_SECONDS)
            verdict = Verdict("dead", "misconfigured", target.problem)
            self._judged(lease, target, verdict)
            refusal = Reject(f"misconfigured: {target.problem}")
            attempt = Attempt(None, target, lease, [], table.now(), is_probe=False)
            answer = Answer(error="misconfigured", detail=target.problem)
            self._log_attempt(attempt, answer, verdict, refusal)
            return refusal
        if target.backs_off_from and _leased_at(unit) < target.backs_off_from:
            return Released("its topic backs off")
        condition = record.condition
        is_probe = condition.opened_us or condition.probing_us or target.opens
        if is_probe and any(each.lease.topic == lease.topic for each in self._slots):
            return Released("its endpoint is being probed", delay=PROBE_SECONDS)
        return None

    def _warn(self, text: str, *about: object) -> None:
        now = time.monotonic()
        if now - self._warned_at > WARN_SECONDS or not self._warned_at:
            self._warned_at = now
            log.warning(text, *about)

    # Answers

    def _answered(self, attempt: Attempt, answer: Answer) -> None:
        unit = attempt.unit
        self._slots.pop(unit, None)
        if unit.over or self._is_closed:
            return
        try:
            self._conclude(attempt, answer)
        except Exception as fault:  # of one message; the answers to others wait behind it
            log.exception("message %s in topic %s: its answer", unit.lease.id, unit.lease.topic)
            if not unit.over:
                self._end(unit, fault)

    def _conclude(self, attempt: Attempt, answer: Answer) -> None:
        """Count an answer, log it, and end its message."""
        unit, target = attempt.unit, attempt.target
        record, lease = target.record, unit.lease
        if answer.is_ours:
            self._warn("push: %s; messages are released for %g s", answer.detail, NO_SOCKET_SECONDS)
            self._back_off(unit, target, answer.detail, NO_SOCKET_SECONDS)
            return
        answered = answer.error or CLASSES[answer.status // 100]
        COUNTS.attempts[answered] += 1
        self._counts.attempts[answered] += 1
        if not self._is_count_due:
            self._store_counts_soon()
        verdict = judge(
            answer,
            dead_on=record.dead_on,
            duplicate_ok=record.duplicate_ok,
            now=attempt.at_us / units.SECOND,
        )
        if answer.error == "blocked" and target.destination is not None:
            self._resolver.doubt(target.destination.name)
        error = self._judged(lease, target, verdict)
        if verdict.health != "success" or self._log.wants(record.log, attempt.at_us):
            self._log_attempt(attempt, answer, verdict, error)
        if verdict.health == "gone":
            self._gone(unit, target, verdict.text)
        else:
            self._end(unit, error)

    def _log_attempt(
        self, attempt: Attempt, answer: Answer, verdict: Verdict, error: BaseException | None
    ) -> None:
        result = result_of(verdict, error)
        self._log.add(
            attempt.lease.topic,
            attempt.at_us,
            lambda: self._entry(attempt, answer, verdict, result),
            len(attempt.lease.body),
        )

    def _entry(self, attempt: Attempt, answer: Answer, verdict: Verdict, result: Result) -> Entry:
        """The entry of an attempt; in the log's thread, which also sees a message's last retry."""
        entry = entry_of(attempt, answer, verdict, result, self._log.name, self._engine)
        if entry.result == "dead" and result == "retried":
            self._notify_exhausted(entry, attempt.lease.topic)
        return entry

    def _notify_exhausted(self, entry: Entry, topic: str) -> None:
        now_us = table.now()
        hour = now_us // HOUR_US
        if topic == NOTIFICATIONS or self._exhausted.get(topic) == hour:
            return
        if len(self._exhausted) >= MAX_TARGETS:
            self._exhausted.clear()
        self._exhausted[topic] = hour
        text = f"message {entry.id:.100} failed {entry.attempt} times and is dead: {entry.text}"
        notify(self._engine, "exhausted", topic, text, now_us)

    def _gone(self, unit: WorkerDelivery, target: Target, text: str) -> None:
        """
        Disable an endpoint, then release the message: its topic is paused then, so the message
        needs no delay, and is sent as soon as the endpoint is enabled again.
        """
        target.is_gone = True

        def ended(is_written: bool) -> None:
            target.is_gone = is_written  # then it is read again, as a disabled one
            delay = None if is_written else DISABLED_SECONDS
            if not unit.over:
                self._end(unit, Released(text, delay=delay, was_sent=True))

        topic, version = unit.lease.topic, target.record.version
        if not self._note(self._disable, topic, version, "gone", text, then=ended):
            ended(False)

    def _judged(self, lease: Lease, target: Target, verdict: Verdict) -> BaseException | None:
        """Count a verdict for the endpoint. Returns how the message ends, or None for acked."""
        window, now = target.window, time.monotonic()
        window.count(verdict, now)
        if verdict.health == "success":
            target.busy = 0
            if target.is_noted or target.opens:
                self._recovered(lease.topic, target)
            return None
        if verdict.effect == "ack" or verdict.health == "gone":
            return None
        if verdict.effect == "back_off":
            target.backs_off_from = now
            return DestinationUnavailable(
                verdict.text, retry_after=self._busy(lease.topic, target, verdict, now)
            )
        target.busy = 0
        counts = verdict.health in ("failure", "auth", "message") or (
            verdict.health == "misconfigured" and verdict.effect == "retry"
        )
        opens = counts and (
            verdict.opens or target.opens > 0 or self._is_open(target) or window.should_open()
        )
        if counts or verdict.health == "misconfigured":
            self._failed(lease, target, verdict, now, opens=opens)
        if verdict.effect == "dead":
            return Reject(verdict.text)
        if opens:
            seconds = breaker.back_off_seconds(target.opens)
            target.open_until = now + seconds
            target.backs_off_from = now
            return DestinationUnavailable(
                f"{verdict.text}; the breaker is open", retry_after=seconds
            )
        return AttemptFailed(verdict.text, is_timeout=verdict.is_timeout, is_busy=verdict.is_busy)

    def _busy(self, topic: str, target: Target, verdict: Verdict, now: float) -> float | None:
        """Count a busy answer. Returns the topic's back-off, or None if longer than before."""
        if now >= target.busy_until:  # else its request began before the last one was answered
            target.busy = max(target.busy, target.record.condition.busy) + 1
            if target.busy == 1:
                target.busy_since_us = table.now()
        seconds = breaker.busy_seconds(verdict.delay, target.busy)
        if now >= target.busy_until:
            expected = breaker.doubled_seconds(target.busy) / 2 if seconds is None else seconds
            target.busy_until = now + expected
            if target.busy >= breaker.MANY_BUSY or expected >= breaker.SHOWN_BUSY_SECONDS:
                target.is_noted = True
                self._note(
                    self._write_busy,
                    topic,
                    target.record.version,
                    verdict.text,
                    target.busy,
                    target.busy_since_us or table.now(),
                )
        return seconds

    @staticmethod
    def _is_open(target: Target) -> bool:
        return target.record.condition.opened_us > 0

    def _failed(
        self, lease: Lease, target: Target, verdict: Verdict, now: float, *, opens: bool
    ) -> None:
        """Write a failure down, if something follows from it or the last one was long ago."""
        window = target.window
        if opens:
            was_open = target.opens > 0 or self._is_open(target)
            if now < target.open_until:  # its request began before the breaker opened
                return
            target.opens = max(target.opens, target.record.condition.opens) + 1
            if not was_open:
                COUNTS.opened += 1
                self._counts.opened += 1
                log.warning(
                    "endpoint %s: its breaker opened: %s; its topic backs off",
                    lease.topic,
                    verdict.text,
                )
        attention = self._attention(window, verdict)
        if not (opens or attention or now - window.written_at > breaker.WRITE_SECONDS):
            return
        window.written_at, failures, window.failures = now, max(window.failures, 1), 0
        target.is_noted = True
        self._note(
            self._write_failure,
            lease.topic,
            target.record.version,
            verdict.text,
            failures,
            attention,
            opens,
        )

    @staticmethod
    def _attention(window: breaker.Window, verdict: Verdict) -> str:
        if verdict.health == "auth" and window.auth == breaker.AUTH_FAILURES:
            return f"it refuses our requests: {verdict.text}"
        if verdict.health == "misconfigured" and window.misconfigured == breaker.MISCONFIGURED:
            return f"misconfigured: {verdict.text}"
        return ""

    def _recovered(self, topic: str, target: Target) -> None:
        if target.opens or self._is_open(target):
            log.info("endpoint %s: its breaker closed", topic)
        target.opens, target.open_until, target.is_noted = 0, 0.0, False
        self._note(self._write_success, topic, target.record.version)

    # Counts

    def _store_counts_soon(self) -> None:
        if not self._is_count_due:
            self._is_count_due = True
            self._loop.call_later(COUNTS_SECONDS, self._store_counts)

    def _store_counts(self) -> None:
        self._is_count_due = False
        if not self._is_closed:
            self._writer.submit(self._add_counts, self._take_counts())

    def _take_counts(self) -> Counts:
        counts, self._counts = self._counts, Counts()
        return counts

    def _add_counts(self, counts: Counts) -> None:
        """Add to the namespace's counts; in a thread."""
        dropped = self._log.dropped
        counts.dropped, self._dropped_stored = dropped - self._dropped_stored, dropped
        try:
            stored_counts.add(self._engine, counts)
        except LanewayError as error:
            log.debug("push: this sender's counts are not stored: %s", error)
        except Exception:
            log.exception("push: this sender's counts are not stored")

    # Conditions, in a thread of their own

    def _note(
        self,
        write: Callable[..., None],
        *arguments: Any,
        then: Callable[[bool], None] | None = None,
    ) -> bool:
        """
        Have a condition written. Returns False if too many wait, so it is dropped. `then`: called
        with whether it was written, on the event loop.
        """
        if self._note_count >= MAX_NOTES or self._is_closed:
            return False
        self._note_count += 1
        self._writer.submit(self._written, write, arguments, then)
        return True

    def _written(
        self,
        write: Callable[..., None],
        arguments: tuple[Any, ...],
        then: Callable[[bool], None] | None,
    ) -> None:
        self._note_count -= 1
        is_written = False
        try:
            write(*arguments)
            is_written = True
        except LanewayError as error:
            log.warning("endpoint %s: its state is not stored: %s", arguments[0], error)
        except Exception:
            log.exception("endpoint %s: its state is not stored", arguments[0])
        if then is not None:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(then, is_written)

    def _write_failure(
        self,
        topic: str,
        version: int,
        text: str,
        failures: int,
        attention: str,
        opens: bool,
    ) -> None:
        now_us = table.now()
        events: list[tuple[str, str]] = []

        def change(record: Record | None) -> Record | None:
            events.clear()
            if record is None or record.version != version:  # it was changed meanwhile
                return record
            if opens and not record.condition.opened_us:
                events.append(("opened", text))
            breaker.after_failure(record, text, failures, now_us, opens=opens)
            condition = record.condition
            if attention:
                condition.attention = attention[:200]
                events.append(("misconfigured", attention))
            if breaker.should_disable(condition, now_us):
                record.disabled, record.disabled_us = f"failing for 5 days: {text}"[:200], now_us
                events.append(("disabled", record.disabled))
            elif breaker.should_warn(condition, now_us):
                condition.warned_us = now_us
                events.append(("warning", f"it has failed for 2.5 days: {text}"))
            return record

        record = table.update(self._engine, topic, change)
        if record is not None and record.disabled_us == now_us:
            table.pause(self._engine, topic)
        for kind, detail in events:
            self._tell(kind, topic, detail, now_us)

    def _write_busy(self, topic: str, version: int, text: str, count: int, since_us: int) -> None:
        def change(record: Record | None) -> Record | None:
            if record is not None and record.version == version:
                breaker.after_busy(record, text, count, since_us)
            return record

        table.update(self._engine, topic, change)

    def _write_success(self, topic: str, version: int) -> None:
        was_open = False

        def change(record: Record | None) -> Record | None:
            nonlocal was_open
            was_open = False
            if record is not None and record.version == version:
                was_open = record.condition.opened_us > 0 or record.condition.warned_us > 0
                breaker.after_success(record)
            return record

        table.update(self._engine, topic, change)
        if was_open:
            self._tell("recovered", topic, "it answers again", table.now())

    def _tell(self, kind: str, topic: str, detail: str, now_us: int) -> None:
        """Show what happened in the gateway, and notify the program unless it is the breaker's."""
        self._events.add(kind, topic, detail)
        if kind != "opened":
            notify(self._engine, kind, topic, detail, now_us)

    def _pause(self, topic: str) -> None:
        """Pause the topic of a disabled endpoint, in case the one that disabled it could not."""
        if topic not in self._pausing and self._note(self._keep_paused, topic):
            self._pausing.add(topic)

    def _keep_paused(self, topic: str) -> None:
        try:
            record = table.find(self._engine, topic)
            if record is None or record.disabled is None:
                return
            table.pause(self._engine, topic)
            record = table.find(self._engine, topic)
            if record is None or record.disabled is None:  # it was enabled in this moment
                table.resume(self._engine, topic)
        finally:
            self._pausing.discard(topic)

    def _disable(self, topic: str, version: int, reason: str, text: str) -> None:
        now_us = table.now()
        is_done = False

        def change(record: Record | None) -> Record | None:
            nonlocal is_done
            is_done = False
            if record is not None and record.version == version and record.disabled is None:
                record.disabled, record.disabled_us, is_done = reason, now_us, True
            return record

        table.update(self._engine, topic, change)
        if is_done:
            table.pause(self._engine, topic)
            log.warning("endpoint %s: disabled: %s", topic, text)
            self._tell("disabled", topic, text, now_us)


def _leased_at(unit: WorkerDelivery) -> float:
    """When a unit was leased or last extended (monotonic seconds)."""
    return unit.expires - unit.length_us / units.SECOND
