"""`laneway subscription`: the named readers of topics."""

from __future__ import annotations

from typing import get_args

import click

from laneway.admin import subscriptions
from laneway.cli.session import Session, json_option, pass_session, say, show_list
from laneway.policy import check_pattern, check_topic, is_pattern
from laneway.subscriptions import Kind, Start, Where
from laneway.units import counted

COLUMNS = ("topic", "kind", "where", "set for", "set by")


@click.group(short_help="Show and change the subscriptions of topics.")
def subscription() -> None:
    """
    Show and change subscriptions: named readers of a topic, each with a copy of its messages.

    Other commands take the subscription `audit` of the topic `orders` as `orders#audit`.
    """


@subscription.command("list", epilog="Example: laneway subscription list orders")
@click.argument("topic")
@json_option
@pass_session
def list_subscriptions(session: Session, topic: str, *, as_json: bool) -> None:
    """
    List the subscriptions of TOPIC, those of patterns included.

    With a pattern like `orders.*`, list what it and the patterns under it declare, without the
    numbers of messages.
    """
    if is_pattern(topic):
        show_list(
            subscriptions.declared(session.engine(), check_pattern(topic)),
            COLUMNS,
            _row,
            as_json=as_json,
            empty=f"no pattern under {topic} declares subscriptions",
        )
    else:
        show_list(
            subscriptions.find(session.engine(), check_topic(topic)),
            (*COLUMNS, "waiting", "leased", "dead"),
            lambda each: (*_row(each), f"{each.waiting:,}", f"{each.leased:,}", f"{each.dead:,}"),
            as_json=as_json,
            empty=f"{topic} has no subscriptions",
        )


def _row(each: subscriptions.Declaration) -> tuple[str, ...]:
    where = where_in_words(each.where) or "every message"
    return each.topic, each.kind, where, each.pattern, each.layer


def where_in_words(where: Where) -> str:
    """The headers that a subscription takes, as the option --where has them."""
    return ", ".join(
        f"{header}={value if isinstance(value, str) else '|'.join(value)}"
        for header, value in where.items()
    )


@subscription.command(
    "add",
    short_help="Add a subscription, or change its settings.",
    epilog="Example: laneway subscription add 'orders.*' audit --where 'type=order.*'",
)
@click.argument("pattern")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(get_args(Kind)),
    default="shared",
    show_default=True,
    help=(
        "How its consumers divide its messages; shared: they compete; exclusive: one, a second is"
        " refused; failover: one, the next takes over."
    ),
)
@click.option(
    "--start",
    type=click.Choice(get_args(Start)),
    default="now",
    show_default=True,
    help='Where it starts; "all waiting" copies the messages that wait in its topics now.',
)
@click.option(
    "--where",
    multiple=True,
    metavar="HEADER=VALUE",
    help=(
        "Only messages with this header; VALUE may end in *. Several headers must all match,"
        " several values of one header are alternatives."
    ),
)
@click.option(
    "--expires",
    metavar="DURATION",
    help="Stop copying to it after this long without use, like 7d. [default: never]",
)
@pass_session
def add(
    session: Session,
    pattern: str,
    name: str,
    kind: Kind,
    start: Start,
    where: tuple[str, ...],
    expires: str | None,
) -> None:
    """
    Give the topics of PATTERN a subscription NAME, as the operator: it gets a copy of each message
    that is published from now on.
    """
    settings = subscriptions.settings_of(kind, _where(where), expires)
    engine = session.engine(create=True)
    changes = subscriptions.changes(engine, pattern, name, settings)

    def declare() -> None:
        for changed, fields in changes:
            engine.policy_set("operator", changed, fields)

    copied = ""
    if subscriptions.check_start(pattern, name, start):
        count = subscriptions.copy_waiting(engine, pattern, name, declare)
        copied = f"; {_messages_were(count, 'waiting message')} copied"
    else:
        declare()
    say(f"{pattern} has the subscription {name}{copied}")


def _where(texts: tuple[str, ...]) -> Where | None:
    """The values by header, or None if every message is taken."""
    values: dict[str, list[str]] = {}
    for text in texts:
        header, separator, value = text.partition("=")
        if not separator or not header:
            raise click.BadParameter(
                f"expected HEADER=VALUE, like 'type=order.*', got {text!r}", param_hint="--where"
            )
        values.setdefault(header, []).append(value)
    return {
        header: found[0] if len(found) == 1 else found for header, found in values.items()
    } or None


@subscription.command("remove", short_help="Remove a subscription and its messages.")
@click.argument("pattern")
@click.argument("name")
@pass_session
def remove(session: Session, pattern: str, name: str) -> None:
    """
    Remove the subscription NAME of PATTERN from all layers, with all messages that it holds.

    A program that declares it adds it again when it changes what it declares.
    """
    count = subscriptions.remove(session.engine(), pattern, name)
    removed = f"{_messages_were(count, 'message')} removed"
    say(f"{pattern} no longer has the subscription {name}; {removed}")


def _messages_were(count: int, one: str) -> str:
    return f"{counted(count, one)} {'was' if count == 1 else 'were'}"
