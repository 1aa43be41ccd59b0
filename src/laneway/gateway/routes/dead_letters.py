"""Dead letters: list, group, redrive and drop them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from laneway import arguments
from laneway.admin import dead_letters
from laneway.admin.fingerprints import fingerprint_of, grouped
from laneway.engines.base import FullEngine, MessageView
from laneway.gateway.call import Call
from laneway.gateway.http import Response
from laneway.gateway.problems import Problem
from laneway.gateway.routes.operations import begun
from laneway.gateway.schema import (
    CountAnswer,
    DeadBody,
    DeadGroupAnswer,
    DeadGroupsAnswer,
    DeadGroupsQuery,
    DeadLetterAnswer,
    DeadLettersAnswer,
    DeadLettersQuery,
    RedriveBody,
)
from laneway.gateway.wire import message_answer, moment, past_us
from laneway.policy import check_topic

SCANNED = 10_000
"""Most dead letters that one request compares with a filter."""

DEFAULT_LIMIT, MAX_LIMIT = 1000, 100_000
"""How many dead letters one request changes by default, and at most."""

TOPICS = 10
"""Topics of a group that are listed."""

Letter = tuple[int, MessageView]

Pause = Callable[[float], object]


def list_dead_letters(call: Call) -> DeadLettersAnswer:
    """
    List dead letters, oldest first, with their reason and history.

    With `fingerprint` or `since` a request reads at most 10,000; `next` continues after them.
    """
    query: DeadLettersQuery = call.query
    topic, is_wanted = _topic(call, query.topic), _filter(call, query.fingerprint, query.since)
    if is_wanted is None:
        page = call.engine.dead_list(topic, limit=query.limit, after=query.after)
        is_full = len(page) == query.limit
        following = str(page[-1][0]) if is_full else None
        return DeadLettersAnswer([_answer(call, view) for _, view in page], following)
    found: list[MessageView] = []
    scanned, last = 0, query.after
    for number, view in _letters(call, topic, query.after):
        scanned, last = scanned + 1, number
        found += [view] if is_wanted(view) else []
        if len(found) == query.limit or scanned == SCANNED:
            break
    else:
        return DeadLettersAnswer([_answer(call, view) for view in found], scanned=scanned)
    is_cut = len(found) < query.limit
    return DeadLettersAnswer([_answer(call, view) for view in found], str(last), is_cut, scanned)


def list_groups(call: Call) -> DeadGroupsAnswer:
    """
    Group dead letters by their fingerprint: the class of the error and the program's own function.

    At most 10,000 are read, the oldest ones.
    """
    query: DeadGroupsQuery = call.query
    topic, is_wanted = _topic(call, query.topic), _filter(call, None, query.since)
    views: list[MessageView] = []
    scanned, truncated = 0, False
    for _, view in _letters(call, topic, 0):
        if truncated := scanned == SCANNED:
            break
        scanned += 1
        views += [view] if is_wanted is None or is_wanted(view) else []
    groups = [
        DeadGroupAnswer(
            fingerprint=group.fingerprint,
            title=group.title,
            count=group.count,
            first=moment(group.first_us),
            last=moment(group.last_us),
            topics=dict(
                sorted(group.topics.items(), key=lambda each: (-each[1], each[0]))[:TOPICS]
            ),
            example=_answer(call, group.example),
        )
        for group in grouped(views)[: query.limit]
    ]
    return DeadGroupsAnswer(groups, scanned, truncated)


def redrive(call: Call) -> CountAnswer | Response:
    """
    Put dead letters back into their topics, the oldest first: all immediately or at a rate.

    With a rate they are delayed, each by its place. With a fingerprint, those among the oldest
    10,000. In the background (202): without these bounds, and `/v1/operations` shows the progress.
    """
    body: RedriveBody = call.body
    topic = _topic(call, body.topic)
    if body.background and not body.dry_run:
        dead_letters.spacing_us("redrive", body.rate)  # checks it
        return _in_background(
            call,
            "redrive",
            body,
            lambda engine, limit, pause: dead_letters.redrive_steps(
                engine, topic, body.ids, limit, body.fingerprint, rate=body.rate, pause=pause
            ),
        )
    limit, ids = _limit(body), _ids(call, body)
    if body.dry_run:
        return _count(call, body, topic)
    return CountAnswer(dead_letters.redrive(call.engine, topic, ids, rate=body.rate, limit=limit))


def drop(call: Call) -> CountAnswer | Response:
    """
    Delete dead letters, the oldest first. With a fingerprint, those among the oldest 10,000.

    In the background (202): all of them, and `/v1/operations` shows the progress.
    """
    body: DeadBody = call.body
    topic = _topic(call, body.topic)
    if body.background and not body.dry_run:
        return _in_background(
            call,
            "drop",
            body,
            lambda engine, limit, _: dead_letters.drop_steps(
                engine, topic, body.ids, limit, body.fingerprint
            ),
        )
    limit, ids = _limit(body), _ids(call, body)
    if body.dry_run:
        return _count(call, body, topic)
    return CountAnswer(dead_letters.drop(call.engine, topic, ids, limit=limit))


def _limit(body: DeadBody) -> int:
    """The maximum number that one request changes. Raises Problem."""
    if body.background:  # a dry run of it
        return min(body.limit or MAX_LIMIT, MAX_LIMIT)
    limit = DEFAULT_LIMIT if body.limit is None else body.limit
    if limit > MAX_LIMIT:
        raise Problem(
            "bad-request",
            f"body: limit: expected at most {MAX_LIMIT:,}, or background: true; got {limit:,}",
            pointer="#/limit",
        )
    return limit


Letters = Callable[[FullEngine, int, Pause], Iterator[int]]


def _in_background(
    call: Call, kind: Literal["redrive", "drop"], body: DeadBody, letters: Letters
) -> Response:
    """
    Begin an operation on the dead letters that there are now; those that die again while it runs
    are not its own.
    """
    _check_fingerprint(body)
    engine, total = call.engine, None
    if body.ids is not None:
        total = len(body.ids)
    elif body.fingerprint is None:
        held = engine.overview() if body.topic is None else engine.topic_stats(body.topic)
        total = held.dead
    limit = sys.maxsize if body.limit is None else body.limit
    if total is not None:
        total = limit = min(total, limit)
    operation_id = call.services.operations.begin(
        call.caller,
        kind,
        lambda engine, pause: letters(engine, limit, pause),
        topic=body.topic,
        fingerprint=body.fingerprint,
        total=total,
    )
    return begun(call, operation_id, CountAnswer(0, operation=operation_id))


def _topic(call: Call, topic: str | None) -> str | None:
    """The topic, which the caller may see, or None for all."""
    if topic is not None:
        call.caller.check_topic(check_topic(topic))
    elif not call.caller.sees_all:
        raise Problem(
            "forbidden",
            f'the token "{call.caller.name}" is for topics {", ".join(call.caller.patterns)}; name'
            " one of them",
        )
    return topic


def _answer(call: Call, view: MessageView) -> DeadLetterAnswer:
    message = message_answer(view, shows_body=call.shows_bodies, shows_holder=False)
    return DeadLetterAnswer(
        **msgspec.structs.asdict(message), fingerprint=fingerprint_of(view.reason, view.error)
    )


def _letters(call: Call, topic: str | None, after: int) -> Iterator[Letter]:
    """The dead letters behind a number, read page by page."""
    while page := call.engine.dead_list(topic, limit=dead_letters.PAGE, after=after):
        yield from page
        after = page[-1][0]


def _filter(
    call: Call, fingerprint: str | None, since: str | None
) -> Callable[[MessageView], bool] | None:
    """Whether a dead letter is wanted, or None if all are."""
    if fingerprint is None and since is None:
        return None
    since_us = 0 if since is None else past_us("since", since, call.engine.time_us())

    def is_wanted(view: MessageView) -> bool:
        return (view.died_us or 0) >= since_us and (
            fingerprint is None or fingerprint_of(view.reason, view.error) == fingerprint
        )

    return is_wanted


def _ids(call: Call, body: DeadBody) -> list[str] | None:
    """The request's ids, or those of the failure that it names, or None for all."""
    _check_fingerprint(body)
    if body.fingerprint is None:
        return body.ids
    wanted = None if body.ids is None else set(body.ids)
    found: list[str] = []
    for scanned, (_, view) in enumerate(_letters(call, body.topic, 0)):
        if scanned == SCANNED or len(found) == _limit(body):
            break
        if fingerprint_of(view.reason, view.error) == body.fingerprint:
            found += [view.id] if wanted is None or view.id in wanted else []
    return found


def _check_fingerprint(body: DeadBody) -> None:
    if body.fingerprint is not None and body.topic is None:
        raise Problem(
            "bad-request",
            "body: a fingerprint takes a topic: ids of your own are unique in their topic only",
            pointer="#/topic",
        )


def _count(call: Call, body: DeadBody, topic: str | None) -> CountAnswer:
    """How many there are, at most the limit."""
    ids = _ids(call, body)
    wanted = None if ids is None else set(arguments.texts("dead", "ids", ids))
    count = 0
    for _, view in _letters(call, topic, 0):
        count += wanted is None or view.id in wanted
        if count == _limit(body):
            break
    return CountAnswer(count, dry_run=True)
