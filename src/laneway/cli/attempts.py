"""`laneway endpoint attempts` and `replay`: the delivery log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from laneway import units
from laneway.cli.session import (
    REFUSED,
    Session,
    exit_with,
    json_option,
    pass_session,
    print_json,
    say,
    show_list,
)
from laneway.presenting import duration, moment

if TYPE_CHECKING:
    from laneway.push.delivery_log import AttemptInfo
    from laneway.push.endpoint import Endpoint
    from laneway.push.replay import ReplayResult

ATTEMPTS_EXAMPLES = """\b
Examples:
  laneway endpoint attempts push.acme
  laneway endpoint attempts push.acme --id order-42 --details
  laneway endpoint attempts 'push.*' --status 5xx --since 1h
"""

REPLAY_EXAMPLES = """\b
Examples:
  laneway endpoint replay push.acme order-42
  laneway endpoint replay push.acme --since 2h --dry-run
  laneway endpoint replay push.acme --since 2026-11-22T10:00Z --until 2026-11-22T12:00Z --rate 10/s
"""


def _past(_context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    """A past time in Unix seconds: RFC 3339, Unix seconds, or how long ago."""
    if text is None:
        return None
    try:
        return units.past_us(text, time.time_ns() // 1_000) / units.SECOND
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(
            f'expected a time such as 2026-11-22T12:00Z, Unix seconds, or how long ago, as "10m",'
            f' got "{text:.80}" ({error})',
            param=option,
        ) from error


_since = click.option("--since", callback=_past, help="Not before: a time, or 10m (ago).")
_until = click.option("--until", callback=_past, help="Not after: a time, or 10m (ago).")
_after = click.option("--after", help="Continue after the page that ended with this cursor.")


@click.command("attempts", epilog=ATTEMPTS_EXAMPLES)
@click.argument("pattern", default="*")
@_since
@_until
@click.option("--result", help="acked, retried, dead, backed_off or released.")
@click.option("--status", help="An HTTP status, a class such as 5xx, or an error such as timeout.")
@click.option("--id", "message_id", help="Of this message.")
@click.option("--key", help="Only of messages with this key.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True)
@_after
@click.option("--details", is_flag=True, help="Show requests and answers.")
@json_option
@pass_session
def attempts(
    session: Session, /, pattern: str, *, details: bool, as_json: bool, **options: Any
) -> None:
    """
    Show what was sent to endpoints, and what they answered, the newest first.

    Of one topic, or of a pattern: then 10,000 attempts are searched for a page.
    """
    page = session.app().endpoints.attempts(pattern, **options)
    if as_json:
        print_json(page)
        return
    if details and page.attempts:
        for each in page.attempts:
            _show(each)
    else:
        show_list(
            page.attempts,
            ("at", "topic", "id", "attempt", "result", "took", "answer"),
            _row,
            as_json=False,
            empty="no attempts",
        )
    if page.next is not None:
        why = "10,000 attempts were searched, older ones were not" if page.is_truncated else "more"
        say(f"{why}: --after {page.next}")


def _row(info: AttemptInfo) -> tuple[str | None, ...]:
    took = duration(info.milliseconds.get("ended", 0) / 1_000)
    number = f"{info.attempt}{' (probe)' if info.is_probe else ''}"
    at = moment(round(info.at * units.SECOND))
    return at, info.topic, info.id, number, info.result, took, info.text


def _show(info: AttemptInfo) -> None:
    at, topic, message_id, number, result, took, answer = _row(info)
    say(f"{at} {topic} {message_id}: attempt {number} by {info.sender}: {result} after {took}")
    for name, value in info.request_headers.items():
        say(f"  > {name}: {value}")
    say(f"  < {answer}")
    for name, value in info.headers.items():
        say(f"  < {name}: {value}")
    for line in info.body.splitlines():
        say(f"    {line}")


@click.command("replay", short_help="Send messages again.", epilog=REPLAY_EXAMPLES)
@click.argument("topic")
@click.argument("message_ids", nargs=-1)
@_since
@_until
@click.option("--result", type=click.Choice(["acked", "dead"]), help="Only such messages.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=1_000, show_default=True)
@click.option("--rate", help="Messages per second, such as 10/s. [default: no limit]")
@click.option("--dry-run", is_flag=True, help="Only count.")
@_after
@json_option
@pass_session
def replay(
    session: Session, /, topic: str, *, message_ids: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """
    Send messages of a topic's endpoint again, with the same webhook-id.

    By id, or those whose last attempts were within a time: the newest --limit of them. A dead
    letter is put back; a message that was acked is sent as a new one, if the endpoint has log=all.
    """
    given = [name for name, value in options.items() if value and name != "limit"]
    if message_ids and given:
        raise click.UsageError(
            f"--{given[0].replace('_', '-')}: expected either ids or a time range"
        )
    has_range = options["since"] is not None or options["after"] or options["dry_run"]
    if not (message_ids or has_range):
        raise click.UsageError("expected the ids of messages, or --since")
    endpoint = session.app().endpoint(topic)
    if message_ids:
        _replay_ids(endpoint, message_ids, as_json=as_json)
        return
    result = endpoint.replay_many(**options)
    if as_json:
        print_json(result)
    else:
        _tell(result, is_dry_run=options["dry_run"])
    if result.not_kept and not (result.replayed or result.redriven):
        exit_with("nothing was replayed: the bodies are no longer kept", REFUSED)


def _replay_ids(endpoint: Endpoint, message_ids: Sequence[str], *, as_json: bool) -> None:
    """Replay messages, and report even those before one that is refused."""
    new: dict[str, str] = {}
    try:
        for old in message_ids:
            new[old] = endpoint.replay(old)
            if not as_json:
                again = "put back" if old == new[old] else f"sent again as {new[old]}"
                say(f"{old}: {again}")
    finally:
        if as_json and new:
            print_json(new)


def _tell(result: ReplayResult, *, is_dry_run: bool) -> None:
    would = "would be " if is_dry_run else ""
    letters = units.counted(result.redriven, "dead letter")
    say(f"{result.replayed:,} {would}sent again, {letters} {would}put back")
    if result.ids:
        say(f"  as {', '.join(result.ids)}")
    for count, why in (
        (result.waiting, "still wait"),
        (result.not_kept, "are not replayed: their bodies are no longer kept"),
        (result.refused, "are refused: the backlog is full"),
    ):
        if count:
            say(f"{count:,} {why}")
    if result.next is not None:
        say(f"older messages exist: --after {result.next}")
