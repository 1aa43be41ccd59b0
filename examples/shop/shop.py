"""
A shop that stores orders in a database of its own, and sends each customer exactly one invoice.

    python -m examples.shop.shop order /tmp/shop 100
    python -m examples.shop.shop work /tmp/shop
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from laneway import Laneway, Message, once

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS invoices (order_id INTEGER NOT NULL, customer TEXT NOT NULL);
"""


def connect(folder: str) -> sqlite3.Connection:
    """Connect to the shop's database."""
    return sqlite3.connect(f"{folder}/shop.db", timeout=30)


def prepare(folder: str) -> Laneway:
    """Create the tables. Returns the application, whose messages are in another file."""
    app = Laneway(f"sqlite:///{folder}/queue.db", outbox=f"sqlite:///{folder}/shop.db")
    with closing(connect(folder)) as database:
        database.executescript(SCHEMA)
        app.outbox.create(database)
        database.commit()
    return app


def order(app: Laneway, folder: str, customer: str, *, is_paid: bool = True) -> None:
    """Store an order and publish it, in one transaction."""
    with closing(connect(folder)) as database, database:  # commits, or rolls back for an error
        cursor = database.execute("INSERT INTO orders (customer) VALUES (?)", (customer,))
        body = {"order": cursor.lastrowid, "customer": customer}
        app.publish(f"invoice.{customer}", body, connection=database)
        if not is_paid:
            raise ValueError("the payment was refused")


def handle(app: Laneway, folder: str) -> Callable[[Message], None]:
    """Register the handler that writes invoices, and return it."""

    @app.handler("invoice.*")
    def invoice(message: Message) -> None:
        with closing(connect(folder)) as database, database:
            if once(database, message):
                values = (message.body["order"], message.body["customer"])
                database.execute("INSERT INTO invoices VALUES (?, ?)", values)

    return invoice


if __name__ == "__main__":
    command, folder, *rest = sys.argv[1:]
    with prepare(folder) as app:
        if command == "order":
            for number in range(int(rest[0])):
                order(app, folder, f"customer{number % 7}")
        else:
            handle(app, folder)
            app.run_worker()
