"""Notifications about endpoints: ordinary messages in a topic, for a handler of the program."""

from __future__ import annotations

import msgspec

from laneway import units
from laneway.engines.base import Queue
from laneway.message import Draft

TOPIC = "laneway.endpoints"
HOUR_US = 3_600 * units.SECOND
TTL_US = 7 * 24 * HOUR_US
MAX_TEXT = 300


def notify(engine: Queue, kind: str, topic: str, text: str, now_us: int) -> None:
    """
    Publish that something happened to an endpoint: at most one message of a kind for each endpoint
    and hour.
    """
    body = {"type": f"endpoint.{kind}", "topic": topic, "detail": text[:MAX_TEXT]}
    draft = Draft(
        TOPIC,
        msgspec.json.encode(body),
        key=topic[:200],
        id=f"{kind}:{topic}:{now_us // HOUR_US}"[:250],
        headers={"event": f"endpoint.{kind}"},
        ttl_us=TTL_US,
        sticky=True,
    )
    engine.put([draft])
