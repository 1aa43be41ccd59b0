"""The arguments and answers of the function `settle`; its other half is `scripts/settle.lua`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, cast

from laneway.engines.sharded.splitting import Numbers
from laneway.engines.shared.naming import generated_id
from laneway.engines.valkey import record_formats
from laneway.message import Settlement, SettlementAnswer


class SettleCall:
    """
    One call of `settle`. Most settlements are plain acks, which the function takes as three numbers
    each; every other one is a row. It answers only those that are not "acked".
    """

    def __init__(
        self,
        shard: int,
        numbers: Numbers,
        settlements: Sequence[Settlement],
        publishing: Collection[int],
        nonce: str,
    ) -> None:
        """`publishing`: positions of the settlements that publish messages."""
        self._shard, self._nonce = shard, nonce
        self._numbers = numbers
        self._settlements = settlements
        handles = {settlement.handle for settlement in settlements}
        self._is_each_lease_once = len(handles) == len(settlements)  # else the first one counts
        self._publishing = publishing
        self.packed: tuple[bytes, bytes] = (b"", b"")
        self.outcomes = [
            settlement.outcome for settlement in settlements if settlement.outcome is not None
        ]

    def encode(self, draw: Callable[[], float]) -> None:
        """Pack the settlements and their outcomes. `draw` feeds the jitter."""
        shards = self._numbers.shards
        every: list[Any] = []
        for position, settlement in enumerate(self._settlements):
            if (
                settlement.action == "ack"
                and self._is_each_lease_once
                and settlement.overload is None
                and position not in self._publishing
            ):
                fence, index = divmod(settlement.fence, shards)  # as in `_row`, without calls
                every += (
                    settlement.handle // shards,
                    fence if index == self._shard else -1,
                    settlement.cost_us,
                )
            else:
                every.append(self._row(settlement, draw))
        outcomes: list[Any] = []
        for position, settlement in enumerate(self._settlements):
            if settlement.outcome is not None:
                ttl_ms = milliseconds(settlement.outcome_ttl_us)
                outcomes += (
                    position + 1,
                    settlement.topic,
                    settlement.id,
                    ttl_ms,
                    settlement.id == generated_id(self._nonce, settlement.handle),
                )
        self.packed = (record_formats.pack(every), record_formats.pack(outcomes))

    def _row(self, settlement: Settlement, draw: Callable[[], float]) -> tuple[Any, ...]:
        has_jitter = settlement.action == "retry" and settlement.delay_us is None
        return (
            self._numbers.number(settlement.handle),
            self._numbers.number_on(self._shard, settlement.fence),
            settlement.action,
            False if settlement.delay_us is None else settlement.delay_us,
            settlement.reason or False,
            settlement.error or False,
            settlement.cost_us,
            settlement.begun,
            draw() if has_jitter else 1,
            settlement.overload or False,
        )

    def answers(self, unlike: Sequence[Any]) -> list[SettlementAnswer]:
        """
        The answer of each settlement. `unlike`: (position from 1, answer) of those that are not
        "acked", flat.
        """
        answers: list[SettlementAnswer] = ["acked"] * len(self._settlements)
        for position, answer in zip(unlike[::2], unlike[1::2], strict=True):
            answers[position - 1] = cast("SettlementAnswer", answer.decode())
        return answers


def milliseconds(micros: int) -> int:
    """The server counts expiry in milliseconds, at least one."""
    return max(1, micros // 1000)
