"""`laneway publish`: put messages into a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click
import msgspec

from laneway import Message, Receipt
from laneway.cli.session import (
    REFUSED,
    Session,
    json_option,
    pass_session,
    print_error,
    print_json,
    say,
)
from laneway.codec import MAX_PRIORITY, MIN_PRIORITY
from laneway.headers import MAX_COST
from laneway.producing.publish_options import KNOWN

EXAMPLES = """\b
Examples:
  laneway publish push.acme '{"order": 42}' --priority 5
  laneway publish mail.acme '{"template": "welcome"}' --delay 1h
  cat orders.jsonl | laneway publish push.acme --lines
"""


@click.command(short_help="Publish BODY to TOPIC.", epilog=EXAMPLES)
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--key", help="The message key; messages about the same thing share one.")
@click.option(
    "--priority",
    type=click.IntRange(MIN_PRIORITY, MAX_PRIORITY),
    default=0,
    help="Larger is delivered first.",
)
@click.option("--delay", help="Deliver after this time: 90, 10m, 1h30m.")
@click.option(
    "--at",
    callback=lambda _, __, text: _moment(text),
    help="Deliver at this time: 2026-12-24T18:00+01:00, or seconds since 1970.",
)
@click.option("--ttl", help="How long the message may wait.")
@click.option(
    "--id", "message_id", help="An id that you choose; publishing it again is a duplicate."
)
@click.option(
    "-H", "--header", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated."
)
@click.option("--at-front", is_flag=True, help="Deliver before other messages of this priority.")
@click.option(
    "--cost",
    type=click.IntRange(1, MAX_COST),
    default=1,
    help="How many permits of the rates of its topic and gates it uses; default 1.",
)
@click.option("--raw", is_flag=True, help="The body is bytes, not JSON.")
@click.option("--lines", is_flag=True, help="Read stdin; each line is a body.")
@json_option
@pass_session
def publish(
    session: Session,
    /,
    topic: str,
    body: str | None,
    *,
    raw: bool,
    lines: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """
    Publish BODY (JSON; "-" or no BODY reads it from stdin) to TOPIC.

    A BODY that is not JSON is refused: quote text ('"hello"') or use --raw.
    """
    if lines and body is not None:
        raise click.UsageError("--lines reads the bodies from stdin; leave BODY out")
    headers = dict(_header(text) for text in options.pop("header"))
    options["id"] = options.pop("message_id")
    if lines and options["id"] is not None:
        raise click.UsageError("--lines publishes many messages; they cannot share one --id")
    app = session.app(create=True)
    bodies: Iterator[Any] = _lines(raw=raw) if lines else iter([_body(body, raw=raw)])
    messages = (Message(topic, each, headers=headers or None, **options) for each in bodies)
    receipts = app.publish_many(messages) if lines else [app.publish(**_asdict(next(messages)))]
    _tell(receipts, as_json=as_json, many=lines)


def _moment(text: str | None) -> datetime | float | None:
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f'expected a time like 2026-12-24T18:00+01:00, or seconds since 1970, got "{text}"',
            param_hint="--at",
        ) from error
    if moment.tzinfo is None:
        raise click.BadParameter(
            f'expected a time with its zone, like "{text}+01:00" or "{text}Z", got "{text}"',
            param_hint="--at",
        )
    return moment


def _asdict(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in ("topic", "body", *sorted(KNOWN))}


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise click.BadParameter(f'expected NAME=VALUE, got "{text}"', param_hint="--header")
    return name, value


def _body(text: str | None, *, raw: bool) -> Any:
    if text is None or text == "-":
        return _read(sys.stdin.buffer.read(), raw=raw)
    return _read(text.encode(), raw=raw)


def _lines(*, raw: bool) -> Iterator[Any]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield _read(line.rstrip(b"\r\n"), raw=raw, what=f"line {number:,}")


def _read(data: bytes, *, raw: bool, what: str = "the body") -> Any:
    if raw:
        return data
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not data.strip():
            raise click.UsageError(f"{what} is empty; write JSON, such as null") from error
        shown = data[:60].decode(errors="replace")
        raise click.UsageError(
            f"{what} is not JSON ({error}): {shown}; quote text as '\"…\"', or use --raw"
        ) from error


def _tell(receipts: list[Receipt], *, as_json: bool, many: bool) -> None:
    refused = [receipt for receipt in receipts if receipt.outcome == "refused"]
    if as_json:
        print_json(receipts if many else receipts[0])
    elif many:
        outcomes = {
            name: sum(receipt.outcome == name for receipt in receipts)
            for name in ("accepted", "merged", "duplicate", "refused")
        }
        say(
            ", ".join(f"{number:,} {name}" for name, number in outcomes.items() if number)
            or "nothing to publish"
        )
    else:
        joined = f" into {receipts[0].joined}" if receipts[0].joined else ""
        say(f"{receipts[0].id} {receipts[0].outcome}{joined}")
    if refused:
        print_error(str(refused[0].reason))
        sys.exit(REFUSED)
