"""`app.push(pattern)`: the handler of topics whose messages are sent to their endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laneway import units
from laneway.engines.base import FullEngine
from laneway.errors import UsageError
from laneway.message import Draft, Lease, Settlement
from laneway.push import notifications, secret_store, table
from laneway.push.answers import AttemptFailed, Released
from laneway.push.settings import SenderSettings
from laneway.runtime.runtime import Runtime
from laneway.subscriptions import ANY, SEPARATOR, topic_of
from laneway.working.handler import Handler

if TYPE_CHECKING:
    from laneway.push.sender import Sender
    from laneway.working.executors.executor import Dispatch, Finished

RETRY_DELAYS = ("5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h")
"""The schedule of Standard Webhooks: a message is tried for about three days."""

POLICY: dict[str, Any] = {
    "backoff": list(RETRY_DELAYS),
    "retries": len(RETRY_DELAYS),
    "ttl": "4d",
    "concurrency": "auto",
}
"""The policy of a pattern that is pushed, as far as the program has set no fields itself."""


def push(runtime: Runtime, pattern: str) -> None:
    """Register the handlers of `app.push(pattern)`, with the policy that they need."""
    declared = runtime.holder.declared_fields(pattern)
    runtime.holder.set_policy(
        pattern, {name: value for name, value in POLICY.items() if name not in declared}
    )
    known = next((each for each in runtime.handlers if isinstance(each, PushHandler)), None)
    settings = (
        SenderSettings(url=lambda: runtime.url, handlers=runtime.handlers)
        if known is None
        else known.settings
    )
    runtime.handlers.add(PushHandler(pattern, None, settings))
    if SEPARATOR not in pattern:
        runtime.handlers.add(PushHandler(pattern, ANY, settings))


class PushHandler(Handler):
    """
    Sends the messages of a pattern's topics. `pattern` may be `push.*#*`, the subscriptions of
    `push.*`. The handlers of one worker share one sender.
    """

    def __init__(self, pattern: str, subscription: str | None, settings: SenderSettings) -> None:
        super().__init__(_never, pattern, name=f"push {pattern}")
        if subscription is not None:
            self.pattern = topic_of(pattern, subscription)
        self.kind = "push"
        self.settings = settings
        self.make_executor = self._sender

    def key_names(self) -> list[str]:
        return secret_store.of_process(self.settings.url()).names

    def problem(self, engine: FullEngine) -> str | None:
        """With a look at some endpoints: this process has no key for any of them."""
        lacking = table.first_without_keys(engine, self.key_names())
        if lacking is None:
            return None
        return (
            f"the secrets of endpoints need the key {lacking}, which {secret_store.KEY_VARIABLE} of"
            " this process does not have"
        )

    def _sender(
        self, engine: FullEngine, finished: Finished, dispatch: Dispatch, concurrency: int
    ) -> Sender:
        """The sender of a worker."""
        try:
            from laneway.push.sender import Sender  # noqa: PLC0415  # only a worker that sends needs it
        except ImportError as error:
            raise UsageError(
                'push: it needs the package pycurl; install it: pip install "laneway[push]"'
            ) from error
        handlers = self.settings.handlers
        if not handlers.has_pattern(notifications.TOPIC):
            handlers.add(PushHandler(notifications.TOPIC, None, self.settings))
        return Sender(engine, finished, dispatch, concurrency, self.settings)

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> Sequence[Draft]:
        del returned
        if isinstance(error, AttemptFailed):
            settlement.error = str(error)
            if lease.limited and (error.is_timeout or error.is_busy):
                settlement.overload = "timeout" if error.is_timeout else "answer"
        elif isinstance(error, Released):
            settlement.action = error.action
            settlement.begun = error.was_sent
            settlement.delay_us = None if error.delay is None else round(error.delay * units.SECOND)
        return ()


def _never(_message: Any) -> None:
    raise UsageError("push: its messages are sent by the worker's sender")  # never called
