"""`laneway explain`: why a message is not running."""

from __future__ import annotations

import click

from laneway.cli.session import (
    STATE_SAYS_NO,
    Session,
    duration,
    json_option,
    pass_session,
    print_json,
    say,
)


@click.command()
@click.argument("message_id")
@click.option("--topic", help="Its topic; needed for ids of your own that several topics have.")
@json_option
@pass_session
def explain(session: Session, message_id: str, *, topic: str | None, as_json: bool) -> None:
    """Say what the message waits for, and when it will likely start."""
    told = session.engine().explain(message_id, topic)
    if as_json:
        print_json(told)
    else:
        say(f"{told.state}" + (f" in {told.topic}" if told.topic else "") + f": {told.reasons[0]}")
        for reason in told.reasons[1:]:
            say(f"  also: {reason}")
        if told.starts_us is not None and told.now_us is not None:
            soon = (told.starts_us - told.now_us) / 1e6
            say(
                "  likely to start "
                + (
                    f"in {duration(soon)}, if a worker is free then"
                    if soon > 0
                    else "as soon as a worker is free"
                )
            )
    if told.state == "unknown":
        raise SystemExit(STATE_SAYS_NO)
