"""Functions that are called when a worker of this process has started, and when one stops."""

from __future__ import annotations

import logging
from collections.abc import Callable

Hook = Callable[[object], object]

log = logging.getLogger("laneway.worker")

STARTED: list[Hook] = []
STOPS: list[Hook] = []


def call(hooks: list[Hook], worker: object) -> None:
    """Call all of them; an error is logged and changes nothing."""
    for hook in list(hooks):
        try:
            hook(worker)
        except Exception:
            log.exception("the hook %r of a worker failed", hook)
