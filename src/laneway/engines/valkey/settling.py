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
    each and answers only where they failed; every other one is a row with an answer.
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
        is_each_lease_once = len(handles) == len(settlements)  # else the first of a lease counts
        self._plain: list[int] = []
        self._rows: list[int] = []
        for position, settlement in enumerate(settlements):
            is_plain = (
                is_each_lease_once
                and settlement.action == "ack"
                and settlement.overload is None
                and position not in publishing
            )
            (self._plain if is_plain else self._rows).append(position)
        self._row_numbers = {
            position: number for number, position in enumerate(self._rows, 1) if publishing
        }
        self.packed: tuple[bytes, bytes, bytes] = (b"", b"", b"")
        self.outcomes = [
            settlement.outcome for settlement in settlements if settlement.outcome is not None
        ]

    def encode(self, draw: Callable[[], float]) -> None:
        """Pack plain acks, rows and the settlements with an outcome. `draw` feeds the jitter."""
        shards = self._numbers.shards
        plain: list[int] = []
        for position in self._plain:
            settlement = self._settlements[position]
            fence, index = divmod(settlement.fence, shards)  # as in `_lease`, without calls
            plain += (
                settlement.handle // shards,
                fence if index == self._shard else -1,
                settlement.cost_us,
            )
        rows = [self._row(self._settlements[position], position, draw) for position in self._rows]
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
        self.packed = (
            record_formats.pack(plain),
            record_formats.pack(rows),
            record_formats.pack(outcomes),
        )

    def _lease(self, settlement: Settlement) -> tuple[int, int]:
        """The shard's numbers of message and fence."""
        return (
            self._numbers.number(settlement.handle),
            self._numbers.number_on(self._shard, settlement.fence),
        )

    def _row(
        self, settlement: Settlement, position: int, draw: Callable[[], float]
    ) -> tuple[Any, ...]:
        has_jitter = settlement.action == "retry" and settlement.delay_us is None
        return (
            *self._lease(settlement),
            settlement.action,
            False if settlement.delay_us is None else settlement.delay_us,
            settlement.reason or False,
            settlement.error or False,
            settlement.cost_us,
            settlement.begun,
            draw() if has_jitter else 1,
            position + 1,
            settlement.overload or False,
        )

    def row_of(self, position: int) -> int:
        """The number of a settlement's row, from 1."""
        return self._row_numbers[position]

    def answers(self, unlike: Sequence[Any], rows: Sequence[bytes]) -> list[SettlementAnswer]:
        """
        The answer of each settlement. `unlike`: (number of the plain ack from 1, answer) of those
        that are not "acked", flat. `rows`: the answers of the rows.
        """
        answers: list[SettlementAnswer] = ["acked"] * len(self._settlements)
        for number, answer in zip(unlike[::2], unlike[1::2], strict=True):
            answers[self._plain[number - 1]] = cast("SettlementAnswer", answer.decode())
        for position, answer in zip(self._rows, rows, strict=True):
            answers[position] = cast("SettlementAnswer", answer.decode())
        return answers


def milliseconds(micros: int) -> int:
    """The server counts expiry in milliseconds, at least one."""
    return max(1, micros // 1000)
