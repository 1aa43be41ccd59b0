"""What stands out: a state in words, and causes, made by rules, each with a link."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice

import msgspec

from laneway.admin.workers import UNSERVED_SECONDS
from laneway.engines.base import TopicStats
from laneway.gateway.dashboard import charts, words
from laneway.gateway.dashboard.pages.limits import HELD_SECONDS, gates_held
from laneway.gateway.dashboard.reader import LARGEST_TOPICS, OLDEST_TOPICS
from laneway.gateway.dashboard.view import View
from laneway.producing import refused
from laneway.push import events, table
from laneway.push.endpoint import EndpointInfo, list_endpoints
from laneway.subscriptions import is_copy
from laneway.units import SECOND, counted

MOST = 5
"""Sentences of a rule, and those that the page shows; the others are counted."""

LARGE_PART = 0.5
"""A topic with this part of the backlog is named."""

FLOOD_SECONDS = 900
CALM_SECONDS = 1.0
"""If 95% of the messages of quiet topics wait less than this, nobody waits for a flood."""

MANY = 100
"""Fewer messages are nothing to speak of."""

SHOWN_NAMES = 3
"""Pools without workers that are named; of the others, the number."""

FAILING_PART = 0.1
LONG_SECONDS = 600.0
LAG_SECONDS = 0.5
HOUR = FULL_SECONDS = 3600.0

GROWING_PART = 0.1
"""A backlog that grows by less than this part within an hour is as good as steady."""


class Sentence(msgspec.Struct, frozen=True):
    """
    What stands out. `about`: the name in bold before the text, or "" without one. `since_us`:
    shown behind the text, and `more` behind that. `kind`: as those of states.
    """

    about: str
    text: str
    link: str
    kind: str = "slow"
    since_us: int | None = None
    more: str = ""

    def with_more(self, other: Sentence) -> Sentence:
        """The sentence, with the text of another one about the same name."""
        return msgspec.structs.replace(self, more=f"{self.more}; {other.text}")


def sentences(view: View) -> list[Sentence]:
    """
    The sentences in order of urgency. A rule's second one comes after the first ones of all
    rules, so that twenty gates do not hide what holds the backlog.
    """
    found = [
        (each.kind != "bad", place, each)
        for rule in RULES
        for place, each in enumerate(islice(rule(view), MOST))
    ]
    found.sort(key=lambda ranked: ranked[:2])
    merged: dict[str, Sentence] = {}
    for _, _, each in found:  # what is about one topic is one sentence
        first = merged.get(each.about)
        merged[each.about] = each if first is None else first.with_more(each)
    return list(merged.values())


def health(view: View, found: list[Sentence]) -> tuple[str, str]:
    """The state of the namespace in words, and its kind. `found`: its sentences."""
    bad = sum(each.kind == "bad" for each in found)
    parts = [f"{counted(bad, 'problem')}"] if bad else []
    if (flood := _flooding(view)) is not None:
        waited = charts.waited(view.reader.history(FLOOD_SECONDS).others)
        if waited is None or waited > CALM_SECONDS:
            others = f"other topics wait up to {words.bound(waited)}" if waited else ""
        else:
            others = "nobody else waits"
        parts += ["; ".join(filter(None, (f"{flood.topic} floods", others)))]
    if not parts:
        parts = ["Healthy"]
        if found:
            parts = [f"Nothing is broken; {counted(len(found), 'thing')} to watch"]
    return ". ".join(parts) + ".", "bad" if bad else "slow" if found else "good"


def _flooding(view: View) -> TopicStats | None:
    """The topic that has most of a large backlog, while others have messages, too."""
    waiting = view.reader.overview().waiting
    for stats in view.reader.largest()[:1]:
        if stats.ready >= max(MANY, LARGE_PART * waiting) and view.reader.overview().topics > 1:
            return stats
    return None


def _unserved(view: View) -> Iterator[Sentence]:
    pools = view.reader.coverage().unserved_pools(view.reader.overview(), view.reader.largest())
    if pools:
        yield Sentence(
            f"Pool {pools[0]}" if len(pools) == 1 else f"{len(pools)} pools",
            f"has {_waiting_in(view, pools[0])}, and no worker"
            if len(pools) == 1
            else f"have work that could run, and no worker: {_named(pools)}",
            view.urls.page("/workers"),
            "bad",
        )


def _waiting_in(view: View, pool: str) -> str:
    """What waits in a pool, of the topics with the largest backlogs."""
    topics = view.reader.largest()
    waiting = sum(stats.ready for stats in topics if stats.pool == pool)
    if not waiting:
        return "work that could run"
    more = " or more" if len(topics) == LARGEST_TOPICS else ""
    return f"{waiting:,}{more} message{'s' * (waiting > 1)} that could run"


def _breakers(view: View) -> Iterator[Sentence]:
    if not view.may("endpoints"):
        return
    found = view.reader.seldom("open endpoints", lambda: events.open_endpoints(view.engine))
    if len(found) == 1:
        topic, condition = found[0]
        yield Sentence(
            topic,
            f"endpoint fails, breaker open: {condition.text or 'it failed too often'}",
            view.urls.page("/endpoint", topic=topic),
            "bad",
            condition.opened_us,
        )
    elif found:
        names = [topic for topic, _ in found]
        yield Sentence(
            f"{len(found)} endpoints",
            f"opened their breaker: {_named(names)}",
            view.urls.page("/endpoints", state="open"),
            "bad",
            found[0][1].opened_us,
        )


def _endpoints(view: View) -> Iterator[Sentence]:
    """Endpoints that are disabled, and those that ask for pauses."""
    if not view.may("endpoints"):
        return

    def read(state: table.State) -> tuple[int, list[EndpointInfo]]:
        found = list_endpoints(view.engine, ["*"], limit=SHOWN_NAMES, after="", state=state)[0]
        return table.count(view.engine, state) if found else 0, found

    states: tuple[tuple[table.State, str, str], ...] = (
        ("disabled", "disabled, so nothing is sent", "bad"),
        ("busy", "asking for pauses (HTTP 429 or 503)", "slow"),
    )
    for state, text, kind in states:
        count, found = view.reader.seldom(("endpoints", state), functools.partial(read, state))
        if count == 1:
            answer = found[0].disabled or found[0].last_failure
            yield Sentence(
                found[0].topic,
                f"endpoint is {text}: {answer}",
                view.urls.page("/endpoint", topic=found[0].topic),
                kind,
            )
        elif count:
            more = "+" if count >= table.MAX_COUNTED else ""
            names = _named([each.topic for each in found], count)
            yield Sentence(
                f"{count:,}{more} endpoints",
                f"are {text}: {names}",
                view.urls.page("/endpoints", state=state),
                kind,
            )


def _unhandled(view: View) -> Iterator[Sentence]:
    """Topics whose messages no running worker handles, although one serves their pool."""
    now_us, coverage = view.reader.now_us(), view.reader.coverage()
    oldest = view.reader.topics("age", ("*",), OLDEST_TOPICS)
    waiting = {stats.topic: stats for stats in (*oldest, *view.reader.largest())}
    found = [
        stats
        for stats in waiting.values()
        if coverage.serves_pool(stats.pool)
        and not coverage.serves_topic(stats.pool, stats.topic)
        and not is_copy(stats.topic)
        and (
            now_us - stats.oldest_us >= UNSERVED_SECONDS * SECOND
            if stats.ready and stats.oldest_us is not None
            else _was_returned(view, stats)
        )
    ]
    if found:
        yield Sentence(
            _named([stats.topic for stats in found]),
            f"{'has' if len(found) == 1 else 'have'} messages that no worker handles",
            view.urls.topic(found[0].topic),
            "bad",
            found[0].oldest_us,
        )


def _was_returned(view: View, stats: TopicStats) -> bool:
    """Whether the next message is delayed because a worker that leased it had no handler for it."""
    delayed = view.engine.topic_peek(stats.topic, limit=1, state="delayed") if stats.delayed else []
    return any("unhandled" in view.engine.explain(it.id, stats.topic).causes for it in delayed)


def _dead_letters(view: View) -> Iterator[Sentence]:
    history = view.reader.history(HOUR)
    died = sum(row.died for row in history.rows if row.start >= history.now - HOUR)
    if died:
        text = "in the last hour"
        yield Sentence(counted(died, "dead letter"), text, view.urls.page("/dead"))


def _named(names: list[str], count: int | None = None) -> str:
    """The first names, and how many more there are. `count`: of all, if these are the first."""
    more = (len(names) if count is None else count) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _dead_workers(view: View) -> Iterator[Sentence]:
    dead = [each for each in view.reader.workers() if each.state == "dead"]
    if dead:
        what = dead[0].facts.id if len(dead) == 1 else f"{len(dead)} workers"
        yield Sentence(
            what,
            "missed the heartbeat; leases expire on their own",
            view.urls.page("/workers"),
            "bad",
        )


def _kept_slots(view: View) -> Iterator[Sentence]:
    """Patterns whose handlers keep the slots of a pool's workers while topics wait for them."""
    tiers = view.reader.overview().tiers
    for pool, holder in view.reader.coverage().slot_holders().items():
        waiting = sum(each.runnable for each in tiers if each.pool == pool)
        if waiting:
            topics = "1 topic waits" if waiting == 1 else f"{waiting:,} topics wait"
            where = "" if pool == "default" else f" of pool {pool}"
            yield Sentence(
                holder.pattern,
                f"{holder.text}{where}; {topics} for a slot: {holder.cure()}",
                view.urls.page("/workers"),
            )


def _failing(view: View) -> Iterator[Sentence]:
    history = view.reader.history(900)
    rows = [row for row in history.rows if row.start >= history.now - 300]
    failed = sum(row.retried + row.died for row in rows)
    ended = failed + sum(row.done for row in rows)
    if failed >= MANY / 10 and failed / ended >= FAILING_PART:
        died = sum(row.died for row in rows)
        yield Sentence(
            words.part(failed / ended),
            f"of the attempts of the last 5 minutes failed; {counted(died, 'message')} died",
            view.urls.page("/dead"),
            "bad",
        )


def _backlog(view: View) -> Iterator[Sentence]:
    reader = view.reader
    overview, largest = reader.overview(), reader.largest()[:1]
    waiting = max(overview.waiting, *(stats.waiting for stats in largest), 0)  # not read together
    if waiting < MANY:
        return
    for stats in largest:
        if stats.waiting >= LARGE_PART * waiting and overview.topics > 1:
            yield Sentence(
                stats.topic,
                f"holds {words.part(stats.waiting / waiting)} of the backlog"
                f" ({stats.waiting:,} messages)",
                view.urls.topic(stats.topic),
                since_us=stats.oldest_us,
            )
    history = reader.history(900)
    if history.growth * HOUR > GROWING_PART * waiting:
        yield Sentence(
            "The backlog grows:",
            f"in {words.rate(history.inflow)}, out {words.rate(history.outflow)}",
            view.urls.page("/topics", order="backlog"),
        )


def _full(view: View) -> Iterator[Sentence]:
    history = view.reader.history(900)
    if history.full_seconds is not None and history.full_seconds < FULL_SECONDS:
        when = (
            f"can be full in {words.span(history.full_seconds)}"
            if history.full_seconds
            else "is full"
        )
        topic = history.full_topic
        yield Sentence(
            topic or "The namespace",
            f"{when}: its limit is {history.max_backlog:,} messages",
            view.urls.topic(topic) if topic else view.urls.page("/topics"),
            "bad",
        )


def _refused(view: View) -> Iterator[Sentence]:
    """Topics to which publishes were refused in the last minutes."""
    found = view.reader.seldom("refused", lambda: refused.read(view.engine))
    for topic, refusals in islice(found.items(), 1):
        text = refusals.text()
        if len(found) > 1:
            text += f"; so were publishes to {_named(list(found)[1:])}"
        yield Sentence(topic, text, view.urls.topic(topic), "bad", refusals.since_us)


def _gates(view: View) -> Iterator[Sentence]:
    held = gates_held(view.reader.rows(HELD_SECONDS))
    for gate in view.reader.gates():
        if gate["waiting"]:
            topics = "1 topic waits" if gate["waiting"] == 1 else f"{gate['waiting']:,} topics wait"
            part = held.get(gate["name"], 0.0)
            often = f"; topics waited for it {words.part(part)} of the last hour" if part else ""
            yield Sentence(
                f"Gate {gate['name']}:", f"{topics} for it{often}", view.urls.page("/limits")
            )


def _rates(view: View) -> Iterator[Sentence]:
    for stats in view.reader.topics("throttled", ("*",), 1):
        if stats.state == "asleep" and stats.ready >= MANY and stats.backs_off_until_us is None:
            yield Sentence(
                stats.topic,
                f"is held back by its rate, with {stats.ready:,} messages ready",
                view.urls.topic(stats.topic),
            )


def _stuck(view: View) -> Iterator[Sentence]:
    now_us = view.reader.now_us()
    for worker in view.reader.workers():
        facts, oldest = worker.facts, worker.facts.oldest
        if worker.state == "dead":
            continue
        if facts.loop_lag is not None and facts.loop_lag >= LAG_SECONDS:
            yield Sentence(
                facts.id,
                f"responds {words.span(facts.loop_lag)} late: a handler blocks its event loop",
                view.urls.page("/workers"),
            )
        if oldest is not None and (seconds := (now_us - oldest.since_us) / SECOND) > LONG_SECONDS:
            yield Sentence(
                oldest.topic,
                f"has a handler that has run for {words.span(seconds)}",
                view.urls.message(oldest.topic, oldest.id),
            )


RULES = (
    _unserved,
    _dead_workers,
    _breakers,
    _endpoints,
    _unhandled,
    _dead_letters,
    _kept_slots,
    _failing,
    _backlog,
    _full,
    _refused,
    _gates,
    _rates,
    _stuck,
)
"""The rules; of equally urgent sentences those of earlier rules come first."""
