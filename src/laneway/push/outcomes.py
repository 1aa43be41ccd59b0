"""How an attempt ends that was no success, as the worker settles and logs it."""

from __future__ import annotations

from laneway.errors import DestinationUnavailable, LanewayError
from laneway.message import Action


class AttemptFailed(LanewayError):
    """A request failed: its message is tried again. `is_timeout`, `is_busy`: see `Verdict`."""

    kind = "attempt_failed"

    def __init__(self, text: str, *, is_timeout: bool = False, is_busy: bool = False) -> None:
        super().__init__(text)
        self.is_timeout = is_timeout
        self.is_busy = is_busy


class Released(DestinationUnavailable):
    """
    Nothing was sent, or the endpoint is gone: the message goes back, without an attempt.

    `delay`: seconds. `was_sent`: whether a request was made. `action`: of the settlement.
    """

    def __init__(
        self,
        text: str,
        *,
        delay: float | None = None,
        was_sent: bool = False,
        action: Action = "release",
    ) -> None:
        super().__init__(text)
        self.delay = delay
        self.was_sent = was_sent
        self.action: Action = action
