"""`app.outbox`: the tables in the user's own database."""

from __future__ import annotations

from typing import Any

from laneway.producing import outbox
from laneway.runtime.runtime import Noun


class Outbox(Noun):
    """The tables in your own database, for `publish(connection=…)` and `once`."""

    def create(self, connection: Any) -> None:
        """
        Create the missing tables in the connection's transaction. Raises UsageError.
        """
        outbox.create(connection)
