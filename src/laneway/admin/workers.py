"""The workers of a namespace: the list, pings, and what no worker serves."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec

from laneway import arguments, units
from laneway.awaitable import async_variant
from laneway.cluster import consumer
from laneway.engines.base import (
    Check,
    Explanation,
    FullEngine,
    MessageView,
    Overview,
    TopicStats,
    WorkerFacts,
    WorkerState,
    WorkerView,
)
from laneway.errors import Refused
from laneway.policy import handling_patterns, level_of, matches
from laneway.runtime.runtime import Noun
from laneway.subscriptions import SEPARATOR, consumer_pool, is_copy
from laneway.units import Duration
from laneway.working import commands
from laneway.working.commands import WorkerCommand

PAGE = 1000
"""Workers per read."""

MAX_WORKERS = 20_000
"""The maximum number of workers that are read; with more, a pool or topic counts as served."""

MIN_LOOK_SECONDS, MAX_LOOK_SECONDS = 0.01, 0.2
"""The minimum and maximum pause of `ping` between two checks for answers."""

ASK_SECONDS = 1.0
"""How often a worker that does not answer a command is pinged again."""

BUSY_PART = 0.7
"""If this part of the slots is busy, possibly no unreserved slot is free."""

KEPT_PART, KEPT_SECONDS = 0.5, 0.5
"""A pattern keeps slots if it has this part of them, and one of them for that long."""

HELD_SECONDS = 20.0
"""A lease of this age is in a heartbeat of the worker that holds it."""

MAX_HOLDERS = 1000
"""Workers that are read to find the holder of a lease; with more, none is missed."""

UNSERVED_SECONDS = 60.0
"""How long a message waits before the doctor finds that no worker serves it."""

OLDEST_TOPICS = 100
"""How many topics with the oldest messages, and with the most, the doctor examines."""


class WorkerInfo(msgspec.Struct, kw_only=True):
    """
    A worker that serves the namespace, as of its last heartbeat.

    - `id`, `host`, `pid`: the worker's.
    - `state`: `"running"`; `"stopping"`: it only finishes running handlers; `"dead"`: its heartbeat
      is overdue.
    - `program`, `version`: the application's; `laneway`: the version of Laneway.
    - `pools`: the pools that it serves; `topics`: the only topics (None for all topics of the
      pools); `patterns`: the topics that its handlers cover (None for any).
    - `concurrency`: the maximum number of concurrent handlers; `busy`: how many run; `leased`: how
      many leases it holds.
    - `oldest_topic`, `oldest_id`, `oldest_since`: the message whose handler has run for the longest
      time, and since when.
    - `loop_lag`: seconds that its event loop needed to respond.
    - `started`, `last_heartbeat`: Unix seconds by the store's clock, as `oldest_since`.
    """

    id: str
    state: WorkerState
    host: str
    pid: int
    program: str
    version: str | None
    laneway: str
    pools: list[str]
    topics: list[str] | None
    patterns: list[str] | None
    concurrency: int
    busy: int
    leased: int
    oldest_topic: str | None
    oldest_id: str | None
    oldest_since: float | None
    loop_lag: float | None
    started: float
    last_heartbeat: float


def info_of(worker: WorkerView) -> WorkerInfo:
    """An engine's view of a worker, as the public API shows it."""
    facts, oldest = worker.facts, worker.facts.oldest
    return WorkerInfo(
        id=facts.id,
        state=worker.state,
        host=facts.host,
        pid=facts.pid,
        program=facts.program,
        version=facts.version,
        laneway=facts.laneway,
        pools=facts.pools,
        topics=facts.topics,
        patterns=facts.patterns,
        concurrency=facts.concurrency,
        busy=facts.busy,
        leased=facts.leased,
        oldest_topic=None if oldest is None else oldest.topic,
        oldest_id=None if oldest is None else oldest.id,
        oldest_since=None if oldest is None else oldest.since_us / units.SECOND,
        loop_lag=facts.loop_lag,
        started=worker.started_us / units.SECOND,
        last_heartbeat=worker.beat_us / units.SECOND,
    )


def listed(engine: FullEngine, pool: str | None, limit: int, after: str | None) -> list[WorkerInfo]:
    """`Laneway.workers`. Raises UsageError."""
    pool = None if pool is None else arguments.pool("workers", pool)
    arguments.whole("workers", "limit", limit)
    after = "" if after is None else arguments.name("workers", "after", after)
    return [info_of(worker) for worker in engine.workers(limit=limit, after=after, pool=pool)]


def read_all(engine: FullEngine, most: int = MAX_WORKERS) -> Iterator[WorkerView]:
    """The workers in the order of their ids, read in pages."""
    after = ""
    while most > 0 and (page := engine.workers(limit=min(PAGE, most), after=after)):
        yield from page
        after = page[-1].facts.id
        most -= len(page)


def ping(engine: FullEngine, worker_id: str | None, timeout: float) -> dict[str, float | None]:
    """
    Ask workers for a heartbeat, and wait at most `timeout` seconds for it.

    Arguments: `worker_id`: None for all on the list, even dead ones.

    Returns the seconds until each answered, or None if it did not. A worker that stops normally
    meanwhile is left out. Raises Refused if no worker has this id.
    """
    before = {
        worker.facts.id: worker.beat_us
        for worker in read_all(engine)
        if worker_id in (None, worker.facts.id)
    }
    if worker_id is not None and not before:
        raise Refused(f'ping: there is no worker "{worker_id[:80]}"; `laneway workers` lists them')
    answers: dict[str, float | None] = dict.fromkeys(before)
    began = time.monotonic()
    engine.ping(list(before))
    pause = MIN_LOOK_SECONDS
    while before and (left := began + timeout - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        looked = time.monotonic()
        now = {worker.facts.id: worker.beat_us for worker in read_all(engine)}
        for each, beat_us in list(before.items()):
            if each not in now:
                answers.pop(each)
                del before[each]
            elif now[each] > beat_us:
                answers[each] = round(time.monotonic() - began, 3)
                del before[each]
        # Checks take at most a third of the time, for any number of workers.
        pause = max(min(pause * 1.5, MAX_LOOK_SECONDS), 2 * (time.monotonic() - looked))
    return answers


def command(engine: FullEngine, worker_id: str, what: WorkerCommand, timeout: float) -> str:
    """
    Send a command to a worker, and return its answer. The command is repeated each second.

    Raises Refused if the worker does not exist, has another command, or does not answer within
    `timeout` seconds; the command is then withdrawn.
    """
    _check_alive(engine, worker_id)
    now_us = engine.time_us()
    until_us = now_us + commands.COMMAND_SECONDS * units.SECOND
    given = commands.Command(what, secrets.token_hex(8), until_us)
    before, stored = commands.read(engine, worker_id)
    is_free = before is None or before.answer is not None or before.until_us < now_us
    record = commands.encode(given)
    if not is_free or not engine.record_swap("command", worker_id, stored, record):
        raise Refused(f'worker "{worker_id[:80]}" has another command; try again in a moment')
    answer = _await_answer(engine, worker_id, given, timeout)
    if answer is not None:
        engine.record_swap("command", worker_id, answer, None)
        _sweep_commands(engine, now_us)
        return commands.decode(answer).answer or ""
    engine.record_swap("command", worker_id, record, None)
    raise Refused(
        f'worker "{worker_id[:80]}" did not answer within {timeout:g} s; nothing was changed.'
        " Workers of older versions do not know commands"
    )


def _check_alive(engine: FullEngine, worker_id: str) -> None:
    for worker in read_all(engine):
        if worker.facts.id == worker_id and worker.state != "dead":
            return
    raise Refused(
        f'there is no worker "{worker_id[:80]}" that is alive; `laneway workers` lists them'
    )


def _await_answer(
    engine: FullEngine, worker_id: str, given: commands.Command, timeout: float
) -> bytes | None:
    """The record of the answer, or None if it did not arrive in time."""
    deadline = time.monotonic() + timeout
    asked, pause = 0.0, MIN_LOOK_SECONDS
    while (now := time.monotonic()) < deadline:
        if now - asked >= ASK_SECONDS:
            engine.ping([worker_id])
            asked = now
        found, stored = commands.read(engine, worker_id)
        if found is None or found.number != given.number:
            return None
        if found.answer is not None:
            return stored
        time.sleep(min(pause, max(0.0, deadline - now)))
        pause = min(pause * 1.5, MAX_LOOK_SECONDS)
    return None


def _sweep_commands(engine: FullEngine, now_us: int) -> None:
    """Remove commands whose caller did not wait for the answer."""
    for worker_id, stored in engine.records("command", limit=PAGE):
        if commands.decode(stored).until_us < now_us:
            engine.record_swap("command", worker_id, stored, None)


class SlotHolder(NamedTuple):
    """
    The pattern of handlers that occupy the workers' slots.

    They occupy `kept` of `slots`, for up to `seconds` so far. `most`: slots of the largest worker.
    """

    pattern: str
    kept: int
    slots: int
    seconds: float
    most: int

    @property
    def text(self) -> str:
        """What it occupies, as a sentence without its subject."""
        return f"keeps {self.kept:,} of {self.slots:,} slots, for up to {self.seconds:.1f} s each"

    def cure(self, topic: str = "") -> str:
        """Advice for a topic that waits."""
        more = f"more slots (-c {4 * self.most})"
        if topic and matches(self.pattern, topic):
            return f"{more}, or another worker"
        others = level_of(topic) if topic else "the others"
        return f"{more}, a pool or a gate for {self.pattern}, or a tier with a reserve for {others}"


class Coverage:
    """What the running workers serve."""

    def __init__(self, engine: FullEngine) -> None:
        self._engine = engine
        self._facts: list[WorkerFacts] = []
        self._pools: set[str] = set()
        self.count = 0
        """How many workers run."""
        self.busy = self.concurrency = 0
        """Running handlers, and the maximum number of them."""
        self._in_pool: dict[str, list[WorkerFacts]] = {}
        listed = 0
        for worker in read_all(engine):
            listed += 1
            if worker.state == "running":
                self._add(worker.facts)
        self._is_cut = listed >= MAX_WORKERS

    def _add(self, facts: WorkerFacts) -> None:
        self.count += 1
        self.busy += facts.busy
        self.concurrency += facts.concurrency
        self._pools.update(facts.pools)
        for pool in facts.pools:
            self._in_pool.setdefault(pool, []).append(facts)
        if not any(_serves_the_same(facts, other) for other in self._facts):
            self._facts.append(facts)

    def serves_pool(self, pool: str) -> bool:
        """Whether a running worker serves the pool."""
        return self._is_cut or pool in self._pools

    def serves_topic(self, pool: str, topic: str) -> bool:
        """Whether a running worker serves the topic in the pool, and has a handler for it."""
        return self._is_cut or any(
            pool in facts.pools and _serves(facts, topic) for facts in self._facts
        )

    def slots(self, pool: str, topic: str) -> tuple[int, int]:
        """
        How many handlers run in the workers that serve the topic in the pool, and the maximum
        number of them.
        """
        serving = [facts for facts in self._in_pool.get(pool, []) if _serves(facts, topic)]
        return sum(each.busy for each in serving), sum(each.concurrency for each in serving)

    def lack(self, pool: str, topic: str) -> str | None:
        """A sentence if no worker serves the pool or the topic."""
        if not self.serves_pool(pool):
            return f'no worker serves pool "{pool}"'
        if not self.serves_topic(pool, topic):
            return f'no worker of pool "{pool}" handles topic "{topic}"'
        return None

    def holder(self, pool: str) -> SlotHolder | None:
        """The pattern whose handlers occupy the slots of a pool's workers, or None if none does."""
        workers = self._in_pool.get(pool, [])
        slots = sum(facts.concurrency for facts in workers)
        busy = sum(facts.busy for facts in workers)
        kept: dict[str, tuple[int, float]] = {}
        for facts in workers:
            for pattern, (count, seconds) in facts.slots.items():
                had, longest = kept.get(pattern, (0, 0.0))
                kept[pattern] = had + count, max(longest, seconds)
        if not kept or busy < BUSY_PART * slots:
            return None
        pattern, (count, seconds) = max(kept.items(), key=lambda item: item[1])
        if count < KEPT_PART * slots or seconds < KEPT_SECONDS:
            return None
        most = max(facts.concurrency for facts in workers)
        return SlotHolder(pattern, count, slots, seconds, most)

    def slot_holders(self) -> dict[str, SlotHolder]:
        """By pool: the pattern whose handlers occupy its workers' slots."""
        found = {pool: self.holder(pool) for pool in self._in_pool}
        return {pool: holder for pool, holder in found.items() if holder is not None}

    def unserved_pools(self, overview: Overview, topics: Iterable[TopicStats] = ()) -> list[str]:
        """
        The pools that have messages to run now and that no worker serves. They include the pools
        of those `topics` that wait for their rates or back off, or whose delayed messages are due.
        """
        pools = {tier.pool for tier in overview.tiers if tier.runnable}.union(
            each.pool
            for each in topics
            if (each.ready and each.state == "asleep") or self.overdue_us(each)
        )
        return sorted(pool for pool in pools if not (self.serves_pool(pool) or SEPARATOR in pool))

    def overdue_us(self, stats: TopicStats) -> int:
        """
        For how many microseconds a delayed message of the topic has been due, if no worker leases
        in the topic's pool: only leasing makes it ready. Otherwise 0.
        """
        if not stats.delayed or stats.state == "paused" or self.serves_pool(stats.pool):
            return 0
        first = self._engine.topic_peek(stats.topic, limit=1, state="delayed")
        now_us = self._engine.time_us(stats.topic)
        return max(0, now_us - first[0].since_us) if first else 0

    def handler_limit(self, pool: str, topic: str) -> str | None:
        """
        A sentence if each worker that handles the topic runs as many calls of its handler as the
        handler's own `concurrency` allows.
        """
        limits = {
            facts.full.get(pattern, 0)
            for facts in self._in_pool.get(pool, [])
            if facts.topics is None or topic in facts.topics
            for pattern in _handled_by(facts, topic, facts.full)
        }
        return (
            "each worker runs as many calls of its handler as the handler's own concurrency allows"
            f" ({', '.join(map(str, sorted(limits)))})"
            if limits and all(limits)
            else None
        )


def _serves(facts: WorkerFacts, topic: str) -> bool:
    """Whether a worker leases the topic, where its pool is that of the topic."""
    if facts.is_cut:
        return True
    if facts.topics is not None and topic not in facts.topics:
        return False
    return not is_copy(topic) if facts.patterns is None else _handled_by(facts, topic) != []


def _handled_by(facts: WorkerFacts, topic: str, among: Collection[str] = ()) -> list[str]:
    """
    The pattern of the worker's handler for the topic, or an empty list if it has none. `among`: the
    patterns of a worker that lists none because it handles any topic.
    """
    patterns = among if facts.patterns is None else facts.patterns
    return [each for each in handling_patterns(topic) if each in patterns][:1]


def _serves_the_same(one: WorkerFacts, other: WorkerFacts) -> bool:
    return (one.pools, one.topics, one.patterns, one.is_cut) == (
        other.pools,
        other.topics,
        other.patterns,
        other.is_cut,
    )


class Holders:
    """Which workers hold leases, as of their last heartbeats."""

    def __init__(self, engine: FullEngine) -> None:
        self._by_handle: dict[int, WorkerFacts] = {}
        listed = list(read_all(engine, MAX_HOLDERS))
        self._are_all_known = len(listed) < MAX_HOLDERS
        for facts in (each.facts for each in listed):
            self._are_all_known &= len(facts.held) >= facts.leased
            self._by_handle.update(dict.fromkeys(facts.held, facts))

    def of(self, view: MessageView) -> WorkerFacts | None:
        """The worker that holds a message, or None if no worker on the list is known to hold it."""
        return self._by_handle.get(view.handle or 0)

    def lacks(self, view: MessageView, now_us: int) -> bool:
        """Whether no worker on the list holds a message that is leased."""
        if view.leased_us is None or not (self._are_all_known or view.holder is not None):
            return False
        return now_us - view.leased_us >= HELD_SECONDS * units.SECOND and self.of(view) is None


def unheld(view: MessageView, now_us: int, *, shows_holder: bool) -> str:
    """The text for a leased message that no worker on the list holds."""
    age_s = (now_us - (view.leased_us or now_us)) / units.SECOND
    return (
        f"no worker on the list holds it: {holder_of(view, shows_holder=shows_holder)} leased it"
        f" {age_s:,.0f} s ago; if that has ended: {release_command(view)}"
    )


def holder_of(view: MessageView, *, shows_holder: bool) -> str:
    """The holder of a message that no worker on the list holds."""
    if view.holder is None:
        return "a worker that no longer responds"
    return view.holder if shows_holder else "a program or an HTTP client"


def release_command(view: MessageView) -> str:
    """The command that ends the lease of a message."""
    return f"laneway message release {shlex.quote(view.id)} --topic {shlex.quote(view.topic)}"


def _add_holder(engine: FullEngine, explanation: Explanation, *, shows_workers: bool) -> None:
    """Add which worker holds a leased message, or that none does."""
    view, now_us = explanation.message, explanation.now_us
    if view is None or now_us is None or "leased" not in explanation.causes:
        return
    holders = Holders(engine)
    facts, at = holders.of(view), explanation.causes.index("leased")
    if facts is not None and shows_workers:
        explanation.reasons[at] += f"; worker {facts.id} holds it (pid {facts.pid})"
    elif holders.lacks(view, now_us):
        explanation.reasons[at] += f"; {unheld(view, now_us, shows_holder=shows_workers)}"
    elif view.holder is not None and shows_workers:
        explanation.reasons[at] += f"; {view.holder} holds it"


def explain(
    engine: FullEngine, message_id: str, topic: str | None, *, shows_workers: bool = True
) -> Explanation:
    """
    `Admin.explain`, with a sentence if the message is due and no worker serves it, and with the
    holder of a lease.
    """
    explanation = engine.explain(message_id, topic)
    _add_holder(engine, explanation, shows_workers=shows_workers)
    view = explanation.message
    if view is None or not (
        view.state in ("ready", "parked")
        or (view.state == "delayed" and view.since_us <= (explanation.now_us or 0))
    ):
        return explanation
    topic, policy = view.topic, engine.policy_of(view.topic)
    consumed = policy.consumed_by or topic
    if is_copy(topic) and policy.pool == consumer_pool(consumed):
        lack = consumer.lack(engine, consumed)
    else:
        coverage = Coverage(engine)
        lack = coverage.lack(policy.pool, topic)
        limit = coverage.handler_limit(policy.pool, topic)
        if limit is not None and not {"worker", "turn"}.isdisjoint(explanation.causes):
            explanation.drop("worker")
            explanation.add("worker", limit, 0)
    if lack is None:
        return explanation
    explanation.drop("worker")  # no worker is going to take it
    now_us = explanation.now_us or 0
    is_decisive = explanation.starts_us is not None and explanation.starts_us <= now_us
    if is_decisive:
        explanation.starts_us = None
    explanation.add("unserved", lack, 0 if is_decisive else None)
    return explanation


def check(engine: FullEngine) -> Check:
    """
    The doctor's finding about workers: not ok if messages have waited for a minute that no worker
    serves.
    """
    coverage = Coverage(engine)
    now_us = engine.time_us()
    lacks: dict[str, None] = {}
    examined = {
        each.topic: each
        for order in ("age", "backlog")
        for each in engine.topic_list(order=order, limit=OLDEST_TOPICS)
    }
    for topic in examined.values():
        waited_us = coverage.overdue_us(topic)
        if topic.ready and topic.state != "paused" and topic.oldest_us is not None:
            waited_us = max(waited_us, now_us - topic.oldest_us)
        if waited_us > UNSERVED_SECONDS * units.SECOND:
            lack = (
                consumer.lack(engine, engine.policy_of(topic.topic).consumed_by or topic.topic)
                if SEPARATOR in topic.pool
                else coverage.lack(topic.pool, topic.topic)
            )
            if lack is not None:
                lacks[lack] = None
    if lacks:
        first, *others = lacks
        more = f", and {len(others)} more" if others else ""
        return Check(
            "workers",
            ok=False,
            detail=f"{first}{more}, and messages wait",
            advice="start one: laneway worker MODULE --pool POOL; programs that lease by hand are"
            " not counted",
        )
    if not coverage.count:
        return Check("workers", ok=True, detail="none is running", available=False)
    workers = units.counted(coverage.count, "worker")
    busy = units.counted(coverage.busy, "handler runs", "handlers run")
    return Check("workers", ok=True, detail=f"{workers}, {busy}")


class Control(Noun):
    """Commands to the workers that `Laneway.workers` lists: `app.control`."""

    def ping(
        self, worker_id: str | None = None, *, timeout: Duration = 5.0
    ) -> dict[str, float | None]:
        """
        Ask one worker, or all workers (None), for a heartbeat now, and wait for it.

        Returns the seconds until each worker answered, by id, or None if it did not within
        `timeout`. Raises Refused if no worker has this id.
        """
        worker_id = None if worker_id is None else arguments.name("ping", "the id", worker_id)
        seconds = arguments.seconds("ping", "timeout", timeout)
        return ping(self._runtime.engine, worker_id, seconds)

    def drain(self, worker_id: str, *, timeout: Duration = 5.0) -> None:
        """
        Tell a worker to lease no more messages, finish those that run, and exit.

        Raises Refused if no worker has this id, or if it does not confirm within `timeout`.
        """
        self._command("drain", worker_id, timeout)

    def stacks(self, worker_id: str, *, timeout: Duration = 5.0) -> str:
        """
        Return what a worker is doing: its messages, and the stack of each thread and coroutine.

        Raises Refused if no worker has this id, or it did not answer within `timeout`.
        """
        return self._command("stack_dump", worker_id, timeout)

    def _command(self, name: WorkerCommand, worker_id: str, timeout: Duration) -> str:
        checked = arguments.name("control", "the id", worker_id)
        seconds = arguments.seconds("control", "timeout", timeout)
        return command(self._runtime.engine, checked, name, seconds)

    aping = async_variant(ping)
    adrain = async_variant(drain)
    astacks = async_variant(stacks)
