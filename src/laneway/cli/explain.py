"""`laneway explain`: why a topic delivers nothing, or a message is not running."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from laneway.admin import top_topics
from laneway.cli.session import (
    REFUSED,
    Session,
    json_option,
    pass_session,
    print_json,
    say,
)
from laneway.engines.base import Explanation
from laneway.errors import LanewayError
from laneway.policy import check_topic
from laneway.presenting import duration
from laneway.push import table

if TYPE_CHECKING:
    from laneway.admin.topic_reasons import TopicExplanation

EXAMPLES = """\b
Examples:
  laneway explain push.acme                     why is nothing delivered?
  laneway explain 4aefe1-660da8564b05           a message by its generated id
  laneway explain order-42 --topic push.acme    by an id of your own
"""


@click.command(
    short_help="Explain why a topic delivers nothing, or what a message waits for.", epilog=EXAMPLES
)
@click.argument("name", metavar="TOPIC|MESSAGE_ID")
@click.option("--topic", help="The message's topic; needed for an id that you chose.")
@json_option
@pass_session
def explain(session: Session, name: str, *, topic: str | None, as_json: bool) -> None:
    """
    Explain why a topic delivers nothing, or what a message waits for, with what to do about it.

    The first reason decides. A name that no message has as its id is a topic, or what stands for
    the star of a policy's pattern: `acme` is push.acme where there is a policy of push.*.
    """
    explanation = session.app().explain(name, topic)
    if explanation.state in ("unknown", "finished") and topic is None:
        found = _topics(session, name)
        if len(found) == 1:
            _show_topic(found[0], as_json=as_json)
            return
        if found:
            names = " or ".join(f"`laneway explain {shlex.quote(each.topic)}`" for each in found)
            explanation.reasons = [f'several topics are named "{name}": {names}']
        elif explanation.state == "unknown":
            text = (
                f'no message has the id "{name}", and no topic of this name has messages: they'
                " are finished, or none was published; an id that you chose needs its"
                " --topic"
            )
            explanation.reasons = [text]
    _show_message(explanation, as_json=as_json)
    if explanation.state == "unknown" and "sent" not in explanation.causes:
        raise SystemExit(REFUSED)


def _topics(session: Session, name: str) -> list[TopicExplanation]:
    """
    The topic with this name, or those that have it in place of the star of a policy's pattern:
    `acme` finds `push.acme` where there is `push.*`.
    """
    if (found := _topic(session, name)) is not None:
        return [found]
    engine = session.app().engine
    topics = [beginning + name for beginning in top_topics.beginnings(engine.policies())]
    return [
        session.app().explain_topic(topic)
        for topic in topics
        if _is_topic(topic)
        and (top_topics.is_known(engine.topic_stats(topic)) or table.find(engine, topic))
    ]


def _is_topic(name: str) -> bool:
    try:
        check_topic(name)
    except LanewayError:
        return False
    return True


def _topic(session: Session, name: str) -> TopicExplanation | None:
    """The explanation of the topic with this name, or None if the topic is unknown."""
    if not _is_topic(name):
        return None
    found = session.app().explain_topic(name)
    is_known = found.waiting or found.leased or found.dead or found.published
    says_more = any(each.cause != "empty" for each in found.reasons)
    return found if is_known or says_more else None


def _show_topic(found: TopicExplanation, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    for n, reason in enumerate(found.reasons):
        say(f"{found.topic}: {reason.text}" if n == 0 else f"  also: {reason.text}")
        if reason.advice:
            say(f"    try: {reason.advice}")
    next_one = f"; the next message is {found.message}" if found.message else ""
    say(f"  {found.waiting:,} wait, {found.leased:,} leased, {found.dead:,} dead{next_one}")


def _show_message(explanation: Explanation, *, as_json: bool) -> None:
    if as_json:
        print_json(explanation)
        return
    say(
        f"{explanation.state}"
        + (f" in {explanation.topic}" if explanation.topic else "")
        + f": {explanation.reasons[0]}"
    )
    for reason in explanation.reasons[1:]:
        say(f"  also: {reason}")
    if explanation.starts_us is not None and explanation.now_us is not None:
        soon = (explanation.starts_us - explanation.now_us) / 1e6
        say(
            "  likely to start "
            + (
                f"in {duration(soon)}, if a worker is free then"
                if soon > 0
                else "as soon as a worker is free"
            )
        )
