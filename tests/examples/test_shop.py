"""The shop: an order and its message are stored together, and each order has one invoice."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from examples.shop import shop

if TYPE_CHECKING:
    from pathlib import Path

    from laneway import Message


def test_each_order_has_one_invoice(tmp_path: Path) -> None:
    """A refused order has neither message nor invoice; a repeated message has no second one."""
    folder = str(tmp_path)
    handled: list[Message] = []
    with shop.prepare(folder) as app, closing(shop.connect(folder)) as database:
        invoice = shop.handle(app, folder)
        with pytest.raises(ValueError, match="refused"):
            shop.order(app, folder, "a", is_paid=False)
        shop.order(app, folder, "b")

        async def work() -> None:
            is_done = asyncio.Event()
            loop = asyncio.get_running_loop()

            @app.on_success
            def success(message: Message) -> None:
                handled.append(message)
                loop.call_soon_threadsafe(is_done.set)

            async with app.worker():
                await asyncio.wait_for(is_done.wait(), 60)

        asyncio.run(work())
        invoice(handled[0])  # as if its ack had been lost
        assert database.execute("SELECT customer FROM invoices").fetchall() == [("b",)]
        assert database.execute("SELECT customer FROM orders").fetchall() == [("b",)]
    assert [each.topic for each in handled] == ["invoice.b"]
