"""Why a topic delivers nothing, or not enough: sentences, the decisive one first, with advice."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

import msgspec

from laneway.admin import audit_log, subscriptions, top_topics, workers
from laneway.engines.base import Explanation, FullEngine, MessageView, TopicStats
from laneway.engines.shared.explaining import ITS_RATE
from laneway.policy import Resolved, gate_names
from laneway.producing import refused
from laneway.schedules import store
from laneway.subscriptions import is_copy
from laneway.units import SECOND, counted, rate_text

HOLDERS = 20
"""How many topics with the largest numbers of busy handlers are searched for holders of a limit."""

LISTED = 1000
"""How many topics, by name, are searched for holders if no worker runs their handlers."""

SUBSCRIPTIONS = 20
"""Subscriptions that are examined."""

SCHEDULES = 200
"""How many schedules are searched for those that publish to a topic."""

SLOW_SECONDS = 60.0
"""If draining a backlog takes longer than this, the rate and the duration are reported."""

READS = 3
"""How often a topic is read if its next message is delivered before it can be explained."""

LONG_SECONDS = 60.0
"""A handler that runs longer than this is named."""

WAITING = ("ready", "delayed", "parked")
"""States of a message that waits."""

LEFT_OUT = frozenset(("ahead", "key", "leased", "finished", "unknown"))
"""Causes that apply only to a message, or that a topic reports in another way."""

NEEDS_WORKER = frozenset(("worker", "turn"))
"""Causes that do not matter if no worker serves the topic."""

MOST_TEXT = 300
"""Characters that are shown of an error."""


class TopicReason(msgspec.Struct, frozen=True):
    """
    A reason why a topic delivers nothing, or not enough.

    `cause`: its kind, such as `"paused"`; `text`: a sentence; `advice`: what to do, as a shell
    command or a sentence; "" if there is nothing to do but wait.
    """

    cause: str
    text: str
    advice: str = ""


class TopicExplanation(msgspec.Struct, kw_only=True):
    """
    Why a topic delivers nothing, or not enough.

    - `reasons`: the decisive one first; at least one.
    - `state`: as in `Stats`. `waiting`, `leased`, `dead`: messages.
    - `published`: messages since the topic was last empty and deleted from the store.
    - `message`: the id of the next message, or None if nothing waits.
    """

    topic: str
    state: str
    reasons: list[TopicReason]
    waiting: int = 0
    leased: int = 0
    dead: int = 0
    published: int = 0
    message: str | None = None


def explain(
    engine: FullEngine,
    topic: str,
    *,
    max_backlog: int | None = None,
    shows_others: bool = True,
    shows_who: bool = True,
) -> TopicExplanation:
    """
    Explain why a topic is blocked: what its next message waits for, who set the limit or holds it,
    and what to do. The amount of data read is bounded for any number of topics.

    `max_backlog`: the namespace's. `shows_others`: name other topics and workers. `shows_who`: name
    the operator who changed a policy last, if the audit log knows.
    """
    stats, head, next_one = _read(engine, topic)
    case = _Case(engine, stats, shows_others=shows_others, shows_who=shows_who)
    of_head, of_keys = list(_of_head(case, next_one)), list(_of_keys(case, head))
    if head and head[0].state == "parked":
        of_head, of_keys = of_keys, of_head
    found = [*_refused(case, max_backlog), *of_head, *of_keys]
    if not found:
        found = [_delivering(case)] if stats.waiting else [*_without_backlog(case)]
    found += _refused_lately(case)
    if stats.dead and all(each.cause != "dead" for each in found):
        found.append(_dead(case))
    return TopicExplanation(
        topic=topic,
        state=stats.state,
        reasons=found,
        waiting=stats.waiting,
        leased=stats.leased,
        dead=stats.dead,
        published=stats.published,
        message=head[0].id if head else None,
    )


def _read(
    engine: FullEngine, topic: str, reads: int = READS
) -> tuple[TopicStats, list[MessageView], Explanation | None]:
    """
    The topic's counts, its next message, and what that message waits for: None if nothing waits, or
    if at each attempt a worker took the message meanwhile.
    """
    stats = engine.topic_stats(topic)
    head = engine.topic_peek(topic, limit=1) if stats.waiting else []
    found = workers.explain(engine, head[0].id, topic) if head else None
    if found is not None and found.state in WAITING:
        return stats, head, found
    return _read(engine, topic, reads - 1) if stats.waiting and reads > 1 else (stats, head, None)


class _Case:
    """The topic that is explained."""

    def __init__(
        self, engine: FullEngine, stats: TopicStats, *, shows_others: bool, shows_who: bool
    ) -> None:
        self.engine = engine
        self.shows_others = shows_others
        self.stats = stats
        self.shows_who = shows_who
        self.policy = engine.policy_of(stats.topic)
        self.topic = stats.topic
        self.quoted = shlex.quote(stats.topic)
        self._settings = engine.policies().why(stats.topic)
        self.now_us = engine.time_us(stats.topic)

    @property
    def is_paused(self) -> bool:
        """Whether a policy pauses the topic, not only its disabled endpoint."""
        return bool(self._settings.get("paused", (False,))[0])

    def set_by(self, field: str) -> str:
        """Who set a field of its policy."""
        _, layer, pattern = self._settings.get(field, (None, "", ""))
        if not layer:
            return "by default"
        whose = "for this topic" if pattern == self.topic else f"for {pattern}"
        if layer != "operator":
            return f"by the program {whose}"
        who = audit_log.last_change(self.engine, pattern) if self.shows_who else ""
        return f"by an operator {whose}{f' (last changed by {who})' if who else ''}"


# What the topic's messages wait for


def _refused(case: _Case, max_backlog: int | None) -> Iterator[TopicReason]:
    """Full backlogs, which refuse publishes."""
    limit, on_full = case.policy.max_backlog, case.policy.on_full
    does = {
        "refuse": "publishes are refused",
        "block": "publishes wait",
        "drop_oldest": "each publish removes the oldest message",
    }
    if limit is not None and case.stats.waiting >= limit:
        yield TopicReason(
            "backlog",
            f"its backlog is full: {_messages_wait(case.stats.waiting)}, the limit of {limit:,} is"
            f" set {case.set_by('max_backlog')}; {does.get(on_full, on_full)}",
            f"laneway policy set {case.quoted} --max-backlog COUNT",
        )
    most = case.policy.max_backlog_bytes
    if most is not None and case.stats.bytes >= most:
        yield TopicReason(
            "backlog",
            f"its backlog is full: {case.stats.bytes:,} of {most:,} bytes wait;"
            f" {does.get(on_full, on_full)}",
        )
    if max_backlog is not None and case.engine.overview().waiting >= max_backlog:
        yield TopicReason(
            "backlog",
            "the namespace is full, so publishes to any topic are refused, wait, or remove"
            f" messages: its limit is {max_backlog:,} messages",
            "laneway topics --order backlog",
        )


def _refused_lately(case: _Case) -> Iterator[TopicReason]:
    """Publishes that were refused in the last minutes."""
    refusals = refused.read(case.engine).get(case.topic)
    if refusals is not None:
        ago = duration((case.now_us - refusals.last_us) / SECOND)
        yield TopicReason("refused", f"{refusals.text()} (the last one {ago} ago)")


def _of_head(case: _Case, found: Explanation | None) -> Iterator[TopicReason]:
    """What the next message waits for."""
    if found is None:
        return
    left_out = LEFT_OUT | NEEDS_WORKER if "unserved" in found.causes else LEFT_OUT
    reasons = [
        _reason(case, found, cause or "", text)
        for cause, text in zip_longest(found.causes, found.reasons)
        if text is not None and cause not in left_out
    ]
    yield from (each for n, each in enumerate(reasons) if each not in reasons[:n])


def _reason(case: _Case, found: Explanation, cause: str, text: str) -> TopicReason:
    make = _BY_CAUSE.get(cause)
    return make(case, found, text) if make is not None else TopicReason(cause, text)


def _paused(case: _Case, _: Explanation, text: str) -> TopicReason:
    del text
    if not case.is_paused:
        advice = f"laneway endpoint enable {case.quoted}"
        return TopicReason("disabled", "its endpoint is disabled, so nothing is sent", advice)
    return TopicReason(
        "paused",
        f"the topic is paused {case.set_by('paused')}",
        f"laneway resume {case.quoted}",
    )


def _back_off(case: _Case, _: Explanation, text: str) -> TopicReason:
    return TopicReason("back_off", text, f"laneway back-off {case.quoted} 0")


def _rate(case: _Case, _: Explanation, text: str) -> TopicReason:
    text += f"; set {case.set_by('rate')}"
    if rate := case.policy.rate:
        text += _takes(case, rate)
    return TopicReason("rate", text, _set_rate(case))


def _takes(case: _Case, rate: float) -> str:
    """How long draining the topic's backlog takes at a rate, if that is long."""
    ready = case.stats.ready
    if ready / rate <= SLOW_SECONDS:
        return ""
    its = counted(ready, "message takes", "messages take")
    return f"; at {rate_text(rate)} its {its} {duration(ready / rate)}"


def _set_rate(case: _Case) -> str:
    return f"laneway policy set {case.quoted} --rate RATE"


def _slow_rate(case: _Case) -> TopicReason | None:
    """
    The topic's lowest rate, if draining the backlog at it takes long; a permit may be free now.
    """
    policy, group, named = case.policy, case.stats.group, gate_names(case.policy.gate)
    found: list[tuple[float, TopicReason]] = []
    if policy.rate:
        text = f"the topic's rate is {rate_text(policy.rate)}, set {case.set_by('rate')}"
        found.append((policy.rate, TopicReason("rate", text, _set_rate(case))))
    for gate in case.engine.gate_list() if named else ():
        if gate["rate"] and (name := gate["name"]) in named:
            text = f'the rate of the gate "{name}" is {rate_text(gate["rate"])}'
            advice = f"laneway gate set {shlex.quote(name)} --rate RATE"
            found.append((gate["rate"], TopicReason("gate", text, advice)))
    for limits in case.engine.topic_group_list() if group else ():
        if limits["rate"] and limits["name"] == group:
            text = f'the rate of its topic group "{group}" is {rate_text(limits["rate"])}'
            advice = f"laneway topic-group set {shlex.quote(group or '')} --rate RATE"
            found.append((limits["rate"], TopicReason("group", text, advice)))
    if not found:
        return None
    rate, reason = min(found, key=lambda each: each[0])
    takes = _takes(case, rate)
    return TopicReason(reason.cause, reason.text + takes, reason.advice) if takes else None


def _full(case: _Case, _: Explanation, text: str) -> TopicReason:
    text += f", set {case.set_by('concurrency')}"
    if (unheld := _unheld(case, [case.topic])) is not None:
        return TopicReason("full", f"{text}; {unheld.text}", unheld.advice)
    if (oldest := _longest(case)) is not None:
        text += f"; {oldest}"
    return TopicReason("full", text, f"laneway policy set {case.quoted} --concurrency COUNT")


def _gate(case: _Case, _: Explanation, text: str) -> TopicReason:
    names = [name for name in gate_names(case.policy.gate) if f'"{name}"' in text]
    name = names[0] if names else ""
    gates = {each["name"]: each for each in case.engine.gate_list()}
    holders = _holders(case, lambda policy, _: name in gate_names(policy.gate))
    text += _limits(gates.get(name)) + _most_handlers(holders)
    if ITS_RATE not in text and (unheld := _unheld(case, [case.topic, *holders])) is not None:
        return TopicReason("gate", f"{text}; {unheld.text}", unheld.advice)
    return TopicReason("gate", text, f"laneway gate set {shlex.quote(name)} {_wider(text)}")


def _group(case: _Case, _: Explanation, text: str) -> TopicReason:
    name = case.stats.group or ""
    groups = {each["name"]: each for each in case.engine.topic_group_list()}
    holders = _holders(case, lambda _, stats: stats.group == name)
    text += _limits(groups.get(name)) + _most_handlers(holders)
    if ITS_RATE not in text and (unheld := _unheld(case, [case.topic, *holders])) is not None:
        return TopicReason("group", f"{text}; {unheld.text}", unheld.advice)
    advice = f"laneway topic-group set {shlex.quote(name)} {_wider(text)}"
    return TopicReason("group", text, advice)


def _wider(text: str) -> str:
    """The option that changes the limit that is reached."""
    return "--rate RATE" if ITS_RATE in text else "--concurrency COUNT"


def _limits(limit: dict[str, object] | None) -> str:
    """The limits of a gate or group."""
    if limit is None:
        return ""
    found = []
    if limit.get("concurrency"):
        found.append(f"concurrency {limit['concurrency']}")
    if isinstance(rate := limit.get("rate"), float | int) and rate:
        found.append(f"rate {rate_text(float(rate))}")
    return f" ({', '.join(found)})" if found else ""


def _holders(case: _Case, shares: Callable[[Resolved, TopicStats], bool]) -> dict[str, TopicStats]:
    """
    The topics that share a limit, by the number of running handlers. If no worker runs one, the
    first topics by name that have leases.
    """
    if not case.shows_others:
        return {}
    found: dict[str, TopicStats] = {}
    orders: tuple[tuple[top_topics.ListOrder, int], ...] = (
        ("worker-time", HOLDERS),
        ("name", LISTED),
    )
    for order, limit in orders:
        if not found:
            for each in top_topics.topics(case.engine, order, limit=limit):
                if each.leased and shares(case.engine.policy_of(each.topic), each):
                    found[each.topic] = each
    return found


def _most_handlers(holders: dict[str, TopicStats]) -> str:
    found = [
        f"{topic} ({max(1, round(stats.worker_time))})"
        for topic, stats in holders.items()
        if stats.worker_time and stats.worker_time >= 0.5
    ]
    if found:
        return f"; most running handlers: {', '.join(found[:3])}"
    leased = [f"{topic} ({stats.leased:,})" for topic, stats in holders.items()]
    return f"; leases of {', '.join(leased[:3])}" if leased else ""


def _unheld(case: _Case, topics: Iterable[str]) -> TopicReason | None:
    """A lease of these topics that no worker on the list holds, or None if all are held."""
    holders = workers.Holders(case.engine)
    for topic in dict.fromkeys(topics):
        for view in case.engine.topic_peek(topic, limit=HOLDERS, state="leased"):
            if holders.lacks(view, case.now_us):
                age = duration((case.now_us - (view.leased_us or 0)) / SECOND)
                left = duration(((view.deadline_us or 0) - case.now_us) / SECOND)
                return TopicReason(
                    "leased",
                    f"{view.id} of {topic} was leased {age} ago for {left} more by"
                    f" {workers.holder_of(view, shows_holder=case.shows_others)}; no worker on the"
                    " list holds it; if its holder has ended, release it",
                    workers.release_command(view),
                )
    return None


def _due(case: _Case, found: Explanation, text: str) -> TopicReason:
    message = found.message
    if message is None or not message.attempts:
        return TopicReason("due", f"all its messages are delayed; the next one: {text}")
    return TopicReason(
        "retry",
        f"its next message {_waits_again(message, text)}",
        f"laneway message retry {shlex.quote(message.id)} --topic {case.quoted}",
    )


def _waits_again(message: MessageView, text: str) -> str:
    return (
        f"has failed {_times(message.attempts)} and waits for its next attempt:"
        f" {text}{_last_error(message)}"
    )


def explain_message(
    engine: FullEngine, message_id: str, topic: str | None, *, shows_workers: bool = True
) -> Explanation:
    """
    `workers.explain`, with the last error of a message that has failed, and the time limit of one
    that blocks its key.
    """
    found = workers.explain(engine, message_id, topic, shows_workers=shows_workers)
    message = found.message
    if message is not None and "key" in found.causes:
        found.reasons[found.causes.index("key")] += _time_limit(engine.policy_of(message.topic))
    if message is None or not message.attempts:
        return found
    for at, cause in enumerate(found.causes):
        if cause == "due":
            found.reasons[at] = f"it {_waits_again(message, found.reasons[at])}"
        elif cause == "dead" and message.error and _short(message.error) not in found.reasons[at]:
            found.reasons[at] += _last_error(message)
    return found


def _unserved(case: _Case, _: Explanation, text: str) -> TopicReason:
    pool = "" if case.policy.pool == "default" else f" --pool {shlex.quote(case.policy.pool)}"
    return TopicReason("unserved", text, f"laneway worker MODULE:APP{pool}")


def _unhandled(_: _Case, __: Explanation, text: str) -> TopicReason:
    return TopicReason("unhandled", text, "start a worker whose program handles the topic")


def _turn(case: _Case, _: Explanation, text: str) -> TopicReason:
    return _worker(case, _, f"it waits for its turn: {text}")


def _worker(case: _Case, _: Explanation, text: str) -> TopicReason:
    coverage = workers.Coverage(case.engine)
    if coverage.handler_limit(case.policy.pool, case.topic) is not None:
        return TopicReason("worker", text, "more workers, or a larger concurrency= of the handler")
    holder = coverage.holder(case.policy.pool)
    busy, slots = coverage.slots(case.policy.pool, case.topic)
    if busy < slots and holder is None and (slow := _slow_rate(case)):
        return slow  # it waits for a worker only while a permit is free
    if slots and case.shows_others:
        text += f"; {busy:,} of {slots:,} handlers are busy"
        if holder is not None:
            text += f"; {holder.pattern} {holder.text}"
            return TopicReason("worker", text, holder.cure(case.topic))
    return TopicReason("worker", text, "laneway workers")


_BY_CAUSE: dict[str, Callable[[_Case, Explanation, str], TopicReason]] = {
    "paused": _paused,
    "back_off": _back_off,
    "rate": _rate,
    "full": _full,
    "gate": _gate,
    "group": _group,
    "due": _due,
    "unserved": _unserved,
    "unhandled": _unhandled,
    "turn": _turn,
    "worker": _worker,
}


def _of_keys(case: _Case, head: list[MessageView]) -> Iterator[TopicReason]:
    """What the first message of a serial key waits for, if it is not the first of the topic."""
    if not case.stats.parked:
        return
    if head and head[0].state == "parked":
        parked = head[0]
    elif found := case.engine.topic_peek(case.topic, limit=1, state="parked"):
        parked = found[0]
    else:
        return
    busy_with = case.engine.explain(parked.id, case.topic).busy_with
    if busy_with is None:
        return
    blocking = workers.explain(case.engine, busy_with, case.topic, shows_workers=case.shows_others)
    message = blocking.message
    text = (
        f'{_messages_wait(case.stats.parked)} for their keys; the key "{parked.key}" is busy with'
        f" {busy_with}, which is {blocking.state}"
    )
    if blocking.reasons:
        text += f": {blocking.reasons[0]}"
    if message is not None:
        text += _last_error(message)
    if (oldest := _longest(case, busy_with)) is not None:
        text += f"; {oldest}"
    step = "dead"
    if blocking.state == "leased":
        is_held = message is None or not workers.Holders(case.engine).lacks(message, case.now_us)
        step = "cancel" if is_held else "release"
        text += _time_limit(case.policy) if is_held else ""
    advice = f"laneway message {step} {shlex.quote(busy_with)} --topic {case.quoted}"
    yield TopicReason("key", text, advice)


def _delivering(case: _Case) -> TopicReason:
    """The reason for a backlog whose next message is delivered at each read."""
    if slow := _slow_rate(case):
        return slow
    text = f"{_messages_wait(case.stats.waiting)}; its messages are being delivered"
    return TopicReason("worker", text, "laneway workers")


def _without_backlog(case: _Case) -> Iterator[TopicReason]:
    """The reasons for a topic in which nothing waits."""
    stats = case.stats
    if stats.leased:
        leased = counted(stats.leased, "message is leased", "messages are leased")
        text = f"nothing waits; {leased}"
        if (unheld := _unheld(case, [case.topic])) is not None:
            yield TopicReason("leased", f"{text}; {unheld.text}", unheld.advice)
        else:
            oldest = _longest(case)
            text += f"; {oldest}" if oldest else ""
            yield TopicReason("leased", text, "laneway workers")
    if not is_copy(case.topic):
        yield from _of_subscriptions(case)
    if case.shows_others:
        yield from _of_schedules(case)
    if stats.leased:
        return
    text = "nothing waits or runs in this topic"
    if stats.dead:
        yield _dead(case)
        if (others := stats.published - stats.dead) > 0:
            text += f"; the other messages have been {_ended(others, stats)}"
        yield TopicReason("empty", text)
    elif stats.published:
        ended = _ended(stats.published, stats)
        yield TopicReason("empty", f"{text}: every published message has been {ended}")
    else:
        yield TopicReason(
            "empty",
            f"{text}, and no publish is on record: every message is finished, or none was "
            f"published",
        )


def _ended(count: int, stats: TopicStats) -> str:
    """What happened to this many messages of a topic, if none is dead."""
    return "delivered" if stats.done >= count else "delivered or removed"


def _of_subscriptions(case: _Case) -> Iterator[TopicReason]:
    """Subscriptions in which copies wait, and messages that no subscription needs."""
    found = subscriptions.find(case.engine, case.topic)
    if not case.policy.own_backlog:
        set_by = case.set_by("own_backlog")
        if found:
            names = ", ".join(each.name for each in found[:SUBSCRIPTIONS])
            text = (
                f"it has no backlog of its own (own_backlog no, set {set_by}); published messages"
            )
            yield TopicReason("own_backlog", f"{text} go only to its subscriptions: {names}")
        else:
            yield TopicReason(
                "own_backlog",
                f"messages published to it are dropped: own_backlog no is set {set_by}, and it "
                f"has no"
                " subscription",
                f"laneway policy set {case.quoted} --own-backlog yes",
            )
    for each in found[:SUBSCRIPTIONS]:
        if each.waiting:
            yield TopicReason(
                "subscription",
                f"{each.waiting:,} copies wait in its subscription {each.topic}",
                f"laneway explain {shlex.quote(each.topic)}",
            )


def _of_schedules(case: _Case) -> Iterator[TopicReason]:
    """Paused schedules that would publish to the topic."""
    for name in store.paused_for(case.engine, case.topic, SCHEDULES):
        yield TopicReason(
            "schedule",
            f"the schedule {name}, which publishes to it, is paused",
            f"laneway schedules resume {shlex.quote(name)}",
        )


def _dead(case: _Case) -> TopicReason:
    letters = case.engine.dead_list(case.topic, limit=1)
    count = case.stats.dead
    text = f"{count:,} of its messages {'is a dead letter' if count == 1 else 'are dead letters'}"
    if letters:
        letter = letters[0][1]
        age, error = "", _short(letter.error or "")
        if letter.died_us is not None:
            age = f" died {duration((case.now_us - letter.died_us) / SECOND)} ago"
        text += f"; the oldest{age}: {letter.reason}"
        text += f": {error}" if error not in str(letter.reason) else ""
        if letter.reason is not None and letter.reason.startswith("expired"):
            text += _expires_again(case)
    return TopicReason("dead", text, f"laneway dead redrive --topic {case.quoted}")


def _expires_again(case: _Case) -> str:
    """What a redrive of an expired message leads to: the topic's ttl begins again."""
    if case.policy.ttl is None:
        return ""
    seconds = case.policy.ttl / SECOND
    span = duration(seconds) if seconds >= 120 else f"{seconds:g} s"
    return (
        f"; its ttl is set {case.set_by('ttl')}: once redriven, it expires again after {span}"
        " unless it is delivered first"
    )


def _longest(case: _Case, message_id: str | None = None) -> str | None:
    """The longest-running handler of the topic, or of a message, if it has run for long."""
    longest = 0.0
    found = None
    for worker in workers.read_all(case.engine, top_topics.MAX_WORKERS):
        oldest = worker.facts.oldest
        if oldest is None or oldest.topic != case.topic or message_id not in (None, oldest.id):
            continue
        seconds = (case.now_us - oldest.since_us) / SECOND
        if seconds >= LONG_SECONDS and seconds > longest:
            longest = seconds
            found = f"{oldest.id} has run for {duration(seconds)}"
            if case.shows_others:
                found += f" in worker {worker.facts.id}"
    return found


def _time_limit(policy: Resolved) -> str:
    """How long a handler of the topic may block its key."""
    limit = policy.seconds_allowed(None)
    if limit is None:
        return "; its topic has no time limit for handlers"
    if policy.time_limit is not None:
        return f"; a handler is stopped after {duration(limit)} (time_limit of the policy)"
    return (
        f"; a handler without a time limit of its own is stopped after {duration(limit)}"
        " (the default of serial and merged topics)"
    )


def _last_error(message: MessageView) -> str:
    error = message.error or ((message.history or [{}])[-1] or {}).get("error")
    return f"; its last error: {_short(error)}" if error else ""


def _short(error: object) -> str:
    """The first line of an error, which names it; the message's page has its frames."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def duration(seconds: float) -> str:
    """A duration, rounded."""
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def _messages_wait(count: int) -> str:
    return counted(count, "message waits", "messages wait")
