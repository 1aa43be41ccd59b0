"""Alarms: limits of the history, and the hooks that are called when a limit is exceeded."""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from laneway import arguments
from laneway.engines.base import FullEngine
from laneway.errors import UsageError
from laneway.history import figures
from laneway.history.figures import History
from laneway.policy import check_pattern
from laneway.units import counted, in_words

OnAlarm = Callable[["Alarm"], object]

log = logging.getLogger("laneway.worker")

ACTIVE, INACTIVE = b"1", b"0"


class AlarmRule(msgspec.Struct, frozen=True, kw_only=True):
    """
    An alarm, which is active while one of its limits is exceeded. Durations are seconds.

    - `full_within`: a backlog limit will be reached within this time. `drain_over`: the backlog
      needs longer than this to drain, or does not drain. `oldest_over`: a message has waited
      longer. `waiting_over`: more messages wait.
    """

    name: str
    tier: str | None = None
    pattern: str = "*"
    full_within: float | None = None
    drain_over: float | None = None
    oldest_over: float | None = None
    waiting_over: int | None = None

    @classmethod
    def checked(cls, **given: Any) -> AlarmRule:
        """Create the alarm from the arguments of `Laneway.alarm`. Raises UsageError, BadPolicy."""
        arguments.name("alarm", "the name", given["name"])
        if given["tier"] is not None:
            arguments.name("alarm", "tier", given["tier"])
        check_pattern(given["pattern"])
        for name in ("full_within", "drain_over", "oldest_over"):
            given[name] = arguments.seconds_or_none("alarm", name, given[name])
        if given["waiting_over"] is not None:
            arguments.whole("alarm", "waiting_over", given["waiting_over"], least=0)
        return cls(**given)

    def reasons(self, history: History) -> list[str]:
        """Return a sentence for each limit that is exceeded."""
        found = []
        if self.full_within is not None and history.full_seconds is not None:
            full = history.full_seconds
            if full <= self.full_within:
                what = history.full_topic or "the namespace"
                when = "is full" if not full else f"is full in {in_words(full)} at the earliest"
                found.append(
                    f"{what} {when} (limit {history.max_backlog:,} messages, alarm within"
                    f" {in_words(self.full_within)})"
                )
        if self.drain_over is not None and history.waiting:
            if history.drain_seconds is None:
                found.append(
                    f"the backlog does not drain: in {history.inflow:,.1f}/s, out"
                    f" {history.outflow:,.1f}/s, {history.waiting:,} waiting"
                )
            elif history.drain_seconds > self.drain_over:
                found.append(
                    f"the backlog needs {in_words(history.drain_seconds)} to drain (alarm over"
                    f" {in_words(self.drain_over)})"
                )
        if self.oldest_over is not None and (history.oldest or 0.0) > self.oldest_over:
            found.append(
                f"the oldest message has waited {in_words(history.oldest or 0.0)} (alarm over"
                f" {in_words(self.oldest_over)})"
            )
        if self.waiting_over is not None and history.waiting > self.waiting_over:
            wait = counted(history.waiting, "message waits", "messages wait")
            found.append(f"{wait} (alarm over {self.waiting_over:,})")
        return found

    @property
    def record(self) -> str:
        """
        The name of its state in the store. Rules with the same name and different limits, from two
        versions of a program, are two alarms: they would otherwise end each other's alarm forever.
        """
        digest = hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()
        return f"alarm:{digest}:{self.name}"

    @property
    def has_limit(self) -> bool:
        """Whether any limit is set."""
        return any(
            limit is not None
            for limit in (self.full_within, self.drain_over, self.oldest_over, self.waiting_over)
        )


class Alarm(msgspec.Struct, frozen=True, kw_only=True):
    """
    The argument of a hook of `on_alarm`.

    `is_active`: the alarm begins (True) or ends. `reasons`: a sentence for each limit that is
    exceeded. `history`: the history that it was compared with.
    """

    name: str
    is_active: bool
    reasons: list[str]
    history: History


class Alarms:
    """The alarms of a program, and its hooks."""

    def __init__(self) -> None:
        self._rules: dict[str, AlarmRule] = {}
        self._hooks: list[OnAlarm] = []
        self.max_backlog: int | None = None
        """The namespace's limit, as the program sets it."""

    def add_rule(self, rule: AlarmRule, max_backlog: int | None = None) -> None:
        """
        Add an alarm, or replace the one with this name. `max_backlog`: the namespace's limit.
        Raises UsageError if the alarm has no limit, or if its topics are not counted.
        """
        figures.check_pattern(rule.pattern)
        if not rule.has_limit:
            raise UsageError(
                f"alarm {rule.name!r:.80}: expected a limit, like full_within, drain_over,"
                " oldest_over or waiting_over"
            )
        self._rules[rule.name] = rule
        self.max_backlog = max_backlog

    def add_hook(self, hook: OnAlarm) -> None:
        """Add a hook. Raises UsageError if it is not a plain function."""
        if (
            not callable(hook)
            or inspect.iscoroutinefunction(hook)
            or inspect.isgeneratorfunction(hook)
        ):
            raise UsageError(
                f"on_alarm: expected a plain function, got {hook!r:.200}; hooks run in a thread,"
                ' write it as "def"'
            )
        self._hooks.append(hook)

    def check(self, engine: FullEngine) -> None:
        """
        Compare the alarms with the history. The process that is first to notice that an alarm
        begins or ends calls its hooks. Raises UsageError, after comparing the others, for an alarm
        that cannot be compared, such as one for a removed tier.
        """
        wrong: UsageError | None = None
        for rule in list(self._rules.values()):
            try:
                self._check(engine, rule)
            except UsageError as error:
                wrong = error
        if wrong is not None:
            raise wrong

    def _check(self, engine: FullEngine, rule: AlarmRule) -> None:
        history = figures.read(
            engine,
            last=figures.RECENT_SECONDS,
            tier=rule.tier,
            pattern=rule.pattern,
            max_backlog=self.max_backlog,
            must_exist=False,
        )
        reasons = rule.reasons(history)
        record = rule.record
        (before,) = engine.history_read([record])
        is_active = bool(reasons)
        if is_active == (before == ACTIVE):
            return
        if engine.history_write(record, before, {record: ACTIVE if is_active else INACTIVE}):
            self._call_hooks(
                Alarm(name=rule.name, is_active=is_active, reasons=reasons, history=history)
            )

    def _call_hooks(self, alarm: Alarm) -> None:
        if alarm.is_active:
            log.warning("alarm %s: %s", alarm.name, "; ".join(alarm.reasons))
        else:
            log.info("alarm %s is over", alarm.name)
        for hook in self._hooks:
            try:
                hook(alarm)
            except BaseException:  # even SystemExit: the other hooks are still called
                log.exception("the hook %s of on_alarm failed", getattr(hook, "__qualname__", hook))
