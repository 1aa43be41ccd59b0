"""
Storage of a flow: completely, or not at all.

A flow that one call of the engine stores atomically needs nothing else. A larger one is stored in
several steps, and nothing of it runs before the last of them:

    1. the timeout, a message that is due in an hour, and the root, a message that waits for one
       signal;
    2. openers, which wait for a signal, too: a tree below the root, whose leaves name all calls of
       the flow, a hundred each;
    3. the calls; those that start the flow wait for a signal of their opener;
    4. the signal to the root: this last write opens the flow.

Then a worker handles the root, which signals its openers. They signal the next ones, and the leaves
signal the calls. Each signals in the same step as its own end, at most a hundred signals in a step,
so that no shard is locked for long. A signal counts once, so a worker that dies in between, or a
publisher that repeats all of it, does no harm.

If the last write never happens, the timeout signals a failure to the root. The failure spreads down
the same tree: every stored call ends with it, and none runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from laneway import codec
from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER, TASK_HEADER
from laneway.errors import EngineUnavailable, UsageError
from laneway.message import Draft, Message, Receipt
from laneway.producing.bulk import BATCH
from laneway.runtime.runtime import Runtime
from laneway.tasks import outcomes
from laneway.tasks.flow import OPEN, Flow, Opener, Opening, Target, encode, opening_signal, signal
from laneway.units import SECOND

T = TypeVar("T")

FAN = 100
"""Messages that one opener signals."""

ENDS_AFTER = 3600
"""Seconds after which an incomplete flow ends."""

LAST_WRITE_BEFORE = ENDS_AFTER - 300
"""Seconds from its start within which a flow may be completed: before the timeout."""

NOT_WHOLE = "incomplete flow: not all of it was stored within 1 h, so none of it runs"


def publish(runtime: Runtime, flow_id: str, messages: Sequence[Message], *, again: bool) -> None:
    """
    Store a flow's messages, the last first. Raises the errors of publishing; then nothing of the
    flow runs.

    `again`: an earlier call with this id may have stored a part of it.
    """
    if not _is_one_step(runtime, messages):
        _Staged(runtime, flow_id, messages).publish()
    elif not (again and _is_stored(runtime, messages)):
        receipts = runtime.producer.publish_flow(messages)
        try:
            _check(receipts)
        except UsageError:  # a limit that was set just now
            for receipt in receipts:
                if receipt.outcome == "accepted":
                    runtime.engine.cancel(receipt.id, receipt.topic)
            raise


def _is_one_step(runtime: Runtime, messages: Sequence[Message]) -> bool:
    if len(messages) == 1:
        return True
    if len(messages) > BATCH or runtime.max_backlog is not None:
        return False
    return runtime.engine.is_put_atomic(
        [Draft(message.topic, b"", key=message.key, id=message.id) for message in messages]
    )


def _is_stored(runtime: Runtime, messages: Sequence[Message]) -> bool:
    """Whether the single step was done: one of the messages is known, or its outcome is."""
    engine = runtime.engine
    if any(
        result.outcome is not None
        for result in engine.results([(message.id or "", message.topic) for message in messages])
    ):
        return True
    by_topic: dict[str, list[str]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message.id or "")
    return any(
        state != "unknown"
        for topic, ids in by_topic.items()
        for state in engine.lookup(topic, ids).values()
    )


def _check(receipts: Sequence[Receipt]) -> None:
    for receipt in receipts:
        if receipt.outcome == "refused":
            raise UsageError(f"a flow: {receipt.topic}: {receipt.reason}; none of the flow runs")


class _Staged:
    """A flow that takes several steps."""

    def __init__(self, runtime: Runtime, flow_id: str, messages: Sequence[Message]) -> None:
        self._runtime = runtime
        self._messages = messages
        self._topic = messages[-1].topic
        self._root = Target(self._topic, f"{flow_id}.open", 1)
        self._timeout_id = f"{flow_id}.timeout"

    def publish(self) -> None:
        self._check_room()
        levels = self._openers()
        began = time.monotonic()
        timeout = Opener(Flow(others=[self._root]), NOT_WHOLE)
        delayed = Draft(
            self._topic, encode(timeout), id=self._timeout_id, headers={TASK_HEADER: OPEN}, own=True
        )
        delayed.delay_us, delayed.ttl_us = ENDS_AFTER * SECOND, UNLIMITED_US
        self._put([delayed, *levels[0]])
        try:
            for level in levels[1:]:
                for start in range(0, len(level), BATCH):
                    self._put(level[start : start + BATCH])
            _check(
                self._runtime.producer.publish_flow(
                    [_held_back(message) for message in self._messages], sticky=True
                )
            )
            if time.monotonic() - began > LAST_WRITE_BEFORE:
                raise UsageError(
                    f"a flow: to store its {len(self._messages):,} calls took longer than"
                    f" {LAST_WRITE_BEFORE:,} s; none of it runs"
                )
        except EngineUnavailable:
            raise  # the timeout ends it, or publishing it again completes it
        except Exception as error:
            self._give_up(error)
            raise
        self._put(
            [
                opening_signal(
                    Opening(self._root.topic, self._root.id, ttl_us=UNLIMITED_US), self._root.id
                )
            ]
        )
        self._end_timeout()

    def _put(self, drafts: list[Draft]) -> None:
        self._runtime.engine.put(drafts)

    def _give_up(self, error: Exception) -> None:
        """End the stored part immediately, not after an hour."""
        ended = outcomes.Outcome(status=outcomes.CANCELLED, reason=f"incomplete flow: {error}")
        with suppress(EngineUnavailable):
            self._put([signal(self._root, self._root.id, ended)])
            self._end_timeout()

    def _end_timeout(self) -> None:
        with suppress(EngineUnavailable):  # the timeout has no effect once the root has its signal
            self._runtime.engine.cancel(self._timeout_id, self._topic)

    def _check_room(self) -> None:
        """Refuse a flow that never fits: all of it waits before any of it runs."""
        for topic, count in Counter(message.topic for message in self._messages).items():
            limit = self._runtime.engine.policy_of(topic).max_backlog
            if limit is not None and count > limit:
                raise UsageError(
                    f"a flow: {count:,} calls in topic {topic}, whose max_backlog is {limit:,};"
                    " raise it, or make the flow smaller"
                )

    def _openers(self) -> list[list[Draft]]:
        """The tree of openers, from the root down, by levels."""
        parts = [_leaf(part) for part in _parts(self._messages)]
        levels: list[list[Draft]] = []
        while len(parts) > 1:
            targets = [
                Opening(self._topic, f"{self._root.id}.{len(levels)}.{n}", ttl_us=UNLIMITED_US)
                for n in range(len(parts))
            ]
            levels.append(
                [self._opener(target.id, flow) for target, flow in zip(targets, parts, strict=True)]
            )
            parts = [Flow(opens=part) for part in _parts(targets)]
        levels.append([self._opener(self._root.id, parts[0], size=len(self._messages))])
        return levels[::-1]

    def _opener(self, message_id: str, flow: Flow, *, size: int = 0) -> Draft:
        headers = {TASK_HEADER: OPEN, FLOW_HEADER: "1", SIGNALS_HEADER: "1"}
        body = encode(Opener(flow, size=size))
        return Draft(
            self._topic, body, id=message_id, headers=headers, at_front=True, sticky=True, own=True
        )


UNLIMITED_US = 100 * 365 * 86_400 * SECOND
"""The ttl of openers, to which the ttl of the topic's policy does not apply."""


def _begins(message: Message) -> bool:
    """Whether it waits for none of the flow's other calls."""
    return SIGNALS_HEADER not in (message.headers or {})


def _held_back(message: Message) -> Message:
    """A call that starts the flow, waiting for its opener."""
    if not _begins(message):
        return message
    return msgspec.structs.replace(
        message, headers={**(message.headers or {}), SIGNALS_HEADER: "1"}
    )


def _leaf(messages: Sequence[Message]) -> Flow:
    """
    An opener's flow: it signals the calls that start the flow, or all of them if it does not open.
    """
    flow = Flow()
    for message in messages:
        draft = codec.draft(message)
        if _begins(message):
            flow.opens.append(
                Opening(
                    draft.topic,
                    draft.id or "",
                    draft.key,
                    draft.delay_us,
                    draft.at_us,
                    draft.ttl_us,
                )
            )
        else:
            flow.others.append(Target(draft.topic, draft.id or "", 1, draft.key))
    return flow


def _parts(things: Sequence[T]) -> Iterator[list[T]]:
    for start in range(0, len(things), FAN):
        yield list(things[start : start + FAN])
