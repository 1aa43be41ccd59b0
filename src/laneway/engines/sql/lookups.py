"""`Admin.lookup`: the states of many messages by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from laneway.engines.base import IdState
from laneway.engines.sharded.splitting import pages
from laneway.engines.shared.naming import parse_generated_id
from laneway.engines.shared.states import DEAD
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.views import Leased

AT_ONCE = 5_000
"""Ids that one statement looks up."""


def lookup(tx: Transaction, topic: str, ids: Sequence[str]) -> dict[str, IdState]:
    """The state of each id: unknown, waiting, leased, finished or dead."""
    states: dict[str, IdState] = dict.fromkeys(ids, "unknown")
    leased = Leased(tx)

    def state_of(mid: int, stored: int) -> IdState:
        if stored == DEAD:
            return "dead"
        return "leased" if leased.of(mid) is not None else "waiting"

    for page in pages(list(states), AT_ONCE):
        of_messages: set[str] = set()
        for message_id, mid, until, stored in tx.all("ident_states", topic, tx.array(page)):
            if stored is not None:
                states[message_id] = state_of(mid, stored)
            elif until is None or until > tx.now:
                states[message_id] = "finished"
            if mid is not None:
                of_messages.add(message_id)
        generated = {
            mid: message_id
            for message_id in page
            if message_id not in of_messages
            and (mid := parse_generated_id(tx.shard.nonce, message_id)) is not None
        }
        found = tx.all("generated_states", tx.array(list(generated))) if generated else ()
        for mid, stored, lane, its_topic in found:
            if topic == (its_topic if its_topic is not None else tx.lane(lane).topic):
                states[generated[mid]] = state_of(mid, stored)
    return states
