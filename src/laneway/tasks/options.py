"""The options of a task, and of one of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from laneway.producing.publish_options import PublishOptions
from laneway.tasks.serializers import Serializer
from laneway.units import Duration
from laneway.working.handler import Isolation

if TYPE_CHECKING:

    class Linkable(Protocol):
        """A call that is not published yet, such as `task.s(1)`."""

        immutable: bool

        def calls(self) -> Iterator[Any]: ...


class CallOptions(PublishOptions, total=False):
    """
    The options of one call.

    `delay` (a duration) or `at` (an aware datetime or Unix seconds): when it is due.
    `ttl`: how long it may wait.
    `priority`: an integer up to ±(2**52 - 1), a larger number is delivered first.
    `key`, `topic`: replace the task's.
    `id`: an id of your own.
    `headers`: short texts by name.
    `at_front`: deliver it before all others of its priority.
    `cost`: how many permits of the rates of its topic and gates it uses.
    `retries`: the maximum number of retries; the topic's policy is the upper limit.
    `ignore_result`, `result_ttl`, `failure_ttl`, `time_limit`, `soft_time_limit`: replace the
    task's.
    `connection`: publish in its transaction, as `Laneway.publish` does.
    `link`: calls that follow it and get its result.
    `link_error`: calls that follow its final failure and get its id, its error and the traceback.
    """

    topic: str | None
    retries: int | None
    ignore_result: bool
    result_ttl: Duration | None
    failure_ttl: Duration | None
    time_limit: Duration | None
    soft_time_limit: Duration | None
    connection: Any
    link: Linkable | Sequence[Linkable] | None
    link_error: Linkable | Sequence[Linkable] | None


CALL_OPTIONS = frozenset(CallOptions.__annotations__)

MESSAGE_OPTIONS = frozenset({"delay", "at", "ttl", "priority", "key", "id", "at_front"})
"""Options of a call that are options of its message."""

RESULT_OPTIONS = ("ignore_result", "result_ttl", "failure_ttl")
"""Options of a call that say for how long its result is stored."""


class TaskOptions(msgspec.Struct, kw_only=True):
    """The options of `app.task` for one task, without the fields of its topic's policy."""

    topic: str | None = None
    name: str | None = None
    key: str | None = None
    id: str | None = None
    cost: int = 1
    bind: bool = False
    serializer: Serializer = "json"
    autoretry_for: tuple[type[BaseException], ...] | None = None
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    isolation: Isolation | None = None
    time_limit: Duration | None = None
    soft_time_limit: Duration | None = None
    ignore_result: bool = False
    result_ttl: Duration | None = None
    failure_ttl: Duration | None = None


def has_links(options: Mapping[str, Any]) -> bool:
    """Whether the options link other calls to this one."""
    return options.get("link") is not None or options.get("link_error") is not None


def listed(value: Any) -> list[Any]:
    """A list of one value, of several, or of none (None)."""
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]
