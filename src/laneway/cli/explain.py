"""`laneway explain`: why a message is not running."""

from __future__ import annotations

import click

from laneway.cli.session import (
    REFUSED,
    Session,
    json_option,
    pass_session,
    print_json,
    say,
)
from laneway.presenting import duration


@click.command(short_help="Explain what a message waits for.")
@click.argument("message_id")
@click.option("--topic", help="Its topic; needed for ids of your own that several topics have.")
@json_option
@pass_session
def explain(session: Session, message_id: str, *, topic: str | None, as_json: bool) -> None:
    """Explain what a message waits for, and when it will likely start."""
    explanation = session.app().explain(message_id, topic)
    if as_json:
        print_json(explanation)
    else:
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
    if explanation.state == "unknown":
        raise SystemExit(REFUSED)
