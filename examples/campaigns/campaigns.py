"""
E-mail campaigns of three classes share the senders 6 : 3 : 1, however many there are.

    python -m examples.campaigns.campaigns fill FOLDER [CAMPAIGNS] [RECIPIENTS]
    python -m examples.campaigns.campaigns send FOLDER        as often as you like

A campaign is a topic, so a huge one does not delay a small one of its class. A mail's id is its
recipient, so filling twice sends nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from laneway import Laneway, Message

SHARES = {"high": 6, "mid": 3, "low": 1}

PARTS = {"high": 3, "mid": 3, "low": 4}
"""Of ten campaigns, how many are of each class."""

SEND_SECONDS = 0.005
"""How long the mail server takes for a mail."""


def open_app(folder: Path) -> Laneway:
    app = Laneway(f"sqlite:///{folder}/laneway.db", tiers=SHARES, durability="memory")
    for tier in SHARES:
        app.policy(f"mail.{tier}.*", tier=tier, retries=5, dedupe="1d")
    return app


def class_of(campaign: int) -> str:
    """The class of a campaign, by its number."""
    place = campaign % sum(PARTS.values())
    for tier, part in PARTS.items():
        place -= part
        if place < 0:
            return tier
    raise AssertionError(campaign)


def mails(campaigns: int, recipients: int) -> Iterator[Message]:
    for campaign in range(campaigns):
        topic = f"mail.{class_of(campaign)}.{campaign}"
        for recipient in range(recipients):
            address = f"r{recipient}@example.com"
            yield Message(topic, {"to": address, "campaign": campaign}, id=address)


def fill(folder: Path, campaigns: int, recipients: int) -> int:
    """Publish all mails. Returns how many were new."""
    with open_app(folder) as app:
        receipts = app.publish_many(mails(campaigns, recipients))
        return sum(receipt.outcome == "accepted" for receipt in receipts)


def send(folder: Path) -> None:
    """Send mails until this process is stopped; the log has a line for each."""
    app = open_app(folder)
    log = os.open(folder / "sent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @app.handler("mail.*")
    async def send_mail(message: Message) -> None:
        await asyncio.sleep(SEND_SECONDS)
        os.write(log, f"{message.topic} {message.body['to']}\n".encode())

    app.run_worker(concurrency=20)


def main(what: str, folder: Path, *numbers: str) -> None:
    if what == "fill":
        campaigns, recipients = (*map(int, numbers), *(10_000, 2)[len(numbers) :])
        print(f"{fill(folder, campaigns, recipients):,} mails", flush=True)
    elif what == "send":
        send(folder)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
